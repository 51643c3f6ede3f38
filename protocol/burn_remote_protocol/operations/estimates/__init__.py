"""Estimates of one operation's duration (``cost``) and scratch memory (``workspace``).

A cost is in nanoseconds of one core of a current server. The server decides by it whether an
operation may run on the event loop, and refuses operations above ``max_operation_cost``. A cost is
an upper estimate in most cases, and must never be less than a tenth of the real duration:
``benchmarks/costs.py`` measures every row. A workspace is in bytes, in addition to inputs and
outputs, for the NumPy kernels.

Estimates are functions of a ``Call`` whose ``requested`` holds the outputs. Similar rows share a
factory function; each row passes its own constants, so the table shows them.
"""

from __future__ import annotations

from burn_remote_protocol.operations.estimates.convolutions import (
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    DEFORMABLE,
    DEFORMABLE_BACKWARD,
    TRANSPOSED_BACKWARD,
    TRANSPOSED_CONVOLUTION,
    UNFOLD4D,
)
from burn_remote_protocol.operations.estimates.elementwise import (
    NONZERO,
    SEARCHED,
    SORTED,
    along_rows,
    conversion,
    elementwise,
    padding,
    per_element,
    positions,
    ranked,
    scanned_rows,
)
from burn_remote_protocol.operations.estimates.matrices import (
    ATTENTION,
    LINEAR,
    LINEAR_WEIGHT_BACKWARD,
    LINEAR_X_BACKWARD,
    MATMUL,
    SOLVE,
    factorization,
)
from burn_remote_protocol.operations.estimates.movement import (
    CAT,
    EMBEDDING_BACKWARD,
    GATHER_ND,
    SCATTER_ND,
    indexed,
    updated,
)
from burn_remote_protocol.operations.estimates.pooling import (
    ADAPTIVE_POOLING,
    ADAPTIVE_POOLING_BACKWARD,
    GRID_SAMPLE,
    INTERPOLATE,
    INTERPOLATE_BACKWARD,
    POOL,
    POOL_BACKWARD,
    POOL_INDICES_BACKWARD,
    POOL_WITH_INDICES,
)
from burn_remote_protocol.operations.estimates.shared_costs import NOTHING, UNKNOWN, VIEW, estimated
from burn_remote_protocol.operations.estimates.signals import CTC, CTC_BACKWARD, FOURIER, TRANSFORM

__all__ = [
    "ADAPTIVE_POOLING",
    "ADAPTIVE_POOLING_BACKWARD",
    "ATTENTION",
    "CAT",
    "CONVOLUTION",
    "CONVOLUTION_BACKWARD",
    "CTC",
    "CTC_BACKWARD",
    "DEFORMABLE",
    "DEFORMABLE_BACKWARD",
    "EMBEDDING_BACKWARD",
    "FOURIER",
    "GATHER_ND",
    "GRID_SAMPLE",
    "INTERPOLATE",
    "INTERPOLATE_BACKWARD",
    "LINEAR",
    "LINEAR_WEIGHT_BACKWARD",
    "LINEAR_X_BACKWARD",
    "MATMUL",
    "NONZERO",
    "NOTHING",
    "POOL",
    "POOL_BACKWARD",
    "POOL_INDICES_BACKWARD",
    "POOL_WITH_INDICES",
    "SCATTER_ND",
    "SEARCHED",
    "SOLVE",
    "SORTED",
    "TRANSFORM",
    "TRANSPOSED_BACKWARD",
    "TRANSPOSED_CONVOLUTION",
    "UNFOLD4D",
    "UNKNOWN",
    "VIEW",
    "along_rows",
    "conversion",
    "elementwise",
    "estimated",
    "factorization",
    "indexed",
    "padding",
    "per_element",
    "positions",
    "ranked",
    "scanned_rows",
    "updated",
]
