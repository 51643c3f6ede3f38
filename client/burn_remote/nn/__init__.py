"""Layers and losses of neural networks; ``burn_remote.functional`` exports them."""

from typing import TYPE_CHECKING

from burn_remote.diagnostics.advice import missing_from

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)
