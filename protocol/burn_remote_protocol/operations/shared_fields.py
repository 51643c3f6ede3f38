"""The fields of structs that several operations share, in wire order.

Names are those of Burn's schema without the suffix: ``BINARY`` is ``BinaryOpIr``. Structs with the
same fields share a name: ``UNARY`` is also ``CastOpIr``, ``ReduceOpIr`` and ``ShapeOpIr``,
``BINARY`` is also ``MatmulOpIr``.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations.fields import (
    Field,
    boolean,
    distribution,
    name_of,
    options,
    scalar,
    tensor_in,
    tensor_out,
    usize,
)
from burn_remote_protocol.operations.vocabularies import Vocabulary

__all__ = [
    "BINARY",
    "CREATION",
    "DIM",
    "INTERPOLATE_MODES",
    "INTERPOLATE_MODES_SINCE",
    "INTERPOLATE_OPTIONS",
    "RANDOM_NUMBERS",
    "REDUCE_DIM",
    "REDUCE_DIM_WITH_INDICES",
    "SCALAR",
    "UNARY",
    "UPDATES",
]

Fields = tuple[Field, ...]

UNARY: Final[Fields] = (tensor_in("input"), tensor_out("out"))
BINARY: Final[Fields] = (tensor_in("lhs"), tensor_in("rhs"), tensor_out("out"))
SCALAR: Final[Fields] = (tensor_in("lhs"), scalar("rhs"), tensor_out("out"))
DIM: Final[Fields] = (tensor_in("input"), tensor_out("out"), usize("axis"))
REDUCE_DIM: Final[Fields] = (
    tensor_in("input"),
    tensor_out("out"),
    usize("axis"),
    usize("accumulator_len"),
)
REDUCE_DIM_WITH_INDICES: Final[Fields] = (
    tensor_in("tensor"),
    usize("dim"),
    tensor_out("out"),
    tensor_out("out_indices"),
)
CREATION: Final[Fields] = (tensor_out("out"),)
RANDOM_NUMBERS: Final[Fields] = (tensor_out("out"), distribution("distribution"))

UPDATES: Final = ("Assign", "Add", "Mul", "Min", "Max")
INTERPOLATE_MODES: Final = ("Nearest", "NearestExact", "Bilinear", "Bicubic", "Lanczos3")
# The modes that a release of Burn added.
INTERPOLATE_MODES_SINCE: Final = {"NearestExact": Vocabulary.BURN_0_22}
INTERPOLATE_OPTIONS: Final = options(
    "options",
    name_of("mode", *INTERPOLATE_MODES, since=INTERPOLATE_MODES_SINCE),
    boolean("align_corners"),
)
