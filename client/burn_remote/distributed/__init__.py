"""Groups of devices and their collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.diagnostics.foreign_names import DISTRIBUTED, missing_from
from burn_remote.distributed.group import Group
from burn_remote.distributed.reductions import ReduceOperation
from burn_remote.distributed.reductions import ReduceOperation as ReduceOp

__all__ = ["Group", "ReduceOp", "ReduceOperation"]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__, DISTRIBUTED)
