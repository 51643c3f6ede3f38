"""Shapes, specs and data of tensors, slices, and how an operation uses a tensor."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, shown
from burn_remote_protocol.quantized_storage import stored_bytes

__all__ = [
    "MAX_ELEMENTS",
    "MAX_RANK",
    "Shape",
    "Slice",
    "TensorData",
    "TensorSpec",
    "TensorStatus",
    "checked_shape",
]

Shape = tuple[int, ...]

# Attention over blocked layouts has been seen with 12 dimensions; recorded Burn programs have fewer
# than 10. NumPy's own limit is 64, but it would be reported late and with another error.
MAX_RANK = 32

_INTEGER = frozenset({int})

# Keeps the byte count of 16-byte items within 64 bits. No machine holds more.
MAX_ELEMENTS = 2**59


class TensorStatus(StrEnum):
    """How an operation uses a tensor, in the terms of Burn's IR.

    ``READ_WRITE`` marks the last use: the server frees the tensor after the operation.
    ``NOT_INIT`` marks an output.
    """

    READ_ONLY = "ReadOnly"
    READ_WRITE = "ReadWrite"
    NOT_INIT = "NotInit"


class TensorSpec(NamedTuple):
    """The shape and dtype of a tensor; hashable, so it can be the key of a cache."""

    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as they cross the wire, with the scales of quantized ones."""
        itemsize = self.dtype.itemsize
        if not itemsize and self.dtype.scheme is not None:
            return stored_bytes(self.shape, self.dtype.scheme)
        return math.prod(self.shape) * itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Slice(NamedTuple):
    """One range of ``Slice`` and ``SliceAssign``.

    ``start`` and ``end`` may be negative, counted from the end; ``end=None`` means to the end. A
    negative ``step`` walks the selected range ``start..end`` backwards (Burn's rule, not Python's).
    """

    start: int
    end: int | None
    step: int


class TensorData(NamedTuple):
    """The elements of a tensor in C order, little-endian, with their shape and dtype."""

    bytes: bytes | bytearray | memoryview
    shape: Shape
    dtype: DType

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype without the elements."""
        return TensorSpec(self.shape, self.dtype)


def checked_shape(dims: Any) -> Shape:
    """Return ``dims`` as a tuple of sizes.

    Raises ``ProtocolViolation`` for anything but a sequence of non-negative integers and
    ``LimitExceeded`` for more than ``MAX_RANK`` dimensions or ``MAX_ELEMENTS`` elements.
    """
    if type(dims) is not tuple and type(dims) is not list:
        raise ProtocolViolation(f"a shape is a list of sizes, not {shown(dims)}")
    if len(dims) > MAX_RANK:
        raise LimitExceeded("rank of a tensor", seen=len(dims), allowed=MAX_RANK)
    if _INTEGER.issuperset(map(type, dims)) and min(dims, default=1) > 0:
        size = math.prod(dims)
        if size <= MAX_ELEMENTS:
            return tuple(dims)
    size = 1
    for dim in dims:
        if type(dim) is not int or dim < 0:
            raise ProtocolViolation(f"a dimension is a non-negative integer, not {shown(dim)}")
        size *= dim or 1
    if size > MAX_ELEMENTS:
        raise LimitExceeded("elements of a tensor", seen=size, allowed=MAX_ELEMENTS)
    return tuple(dims)
