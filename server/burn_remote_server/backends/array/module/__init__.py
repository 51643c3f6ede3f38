"""Which kernels does the IR's family ``Module`` have? One class per subject, one table."""

from __future__ import annotations
