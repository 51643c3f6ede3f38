"""Checks and encodings of the values that the native dialect's tasks and messages share."""

from __future__ import annotations

import functools
from typing import Any, Final

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ProtocolViolation, shown
from burn_remote_protocol.ids import MAX_ID, TRANSFER_ID_BYTES
from burn_remote_protocol.kept_tensors import is_published_name
from burn_remote_protocol.tensors import TensorSpec, checked_shape

__all__ = [
    "array",
    "count",
    "exactly",
    "memory_handle",
    "published_name",
    "seconds",
    "spec_from_wire",
    "spec_to_wire",
    "text",
    "transfer_id",
]

# CUDA's handles have 64 bytes.
MAX_HANDLE_BYTES: Final = 256

# Names of clients, addresses, and reasons of failures.
MAX_TEXT_LENGTH: Final = 1024


def spec_to_wire(spec: TensorSpec) -> list[Any]:
    return [list(spec.shape), spec.dtype.wire]


def array(wire: Any) -> Any:
    """Return an array unchanged. Maps, texts and bytes can be iterated too."""
    if type(wire) is not tuple and type(wire) is not list:
        raise ProtocolViolation(f"expected an array, not {shown(wire)}")
    return wire


def spec_from_wire(wire: Any) -> TensorSpec:
    if type(wire) is not tuple and type(wire) is not list:
        raise ProtocolViolation(f"expected a shape and a dtype, not {shown(wire)}")
    dims, dtype = wire
    if type(dims) is tuple:
        return _known_spec(dtype, *dims)
    return TensorSpec(checked_shape(dims), DType.from_wire(dtype))


# Programs repeat their shapes. ``typed``, because 1, 1.0 and ``True`` are equal.
@functools.lru_cache(maxsize=256, typed=True)
def _known_spec(dtype: Any, *dims: Any) -> TensorSpec:
    return TensorSpec(checked_shape(dims), DType.from_wire(dtype))


def count(value: Any, maximum: int = MAX_ID) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise ProtocolViolation(f"expected an integer from 0 to {maximum}, not {shown(value)}")
    return value


def transfer_id(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != TRANSFER_ID_BYTES:
        raise ProtocolViolation(f"a transfer id is {TRANSFER_ID_BYTES} bytes, not {shown(value)}")
    return value


def exactly(byte_count: int, what: str, value: Any) -> bytes:
    """Check the length of bytes. The error does not quote them, because they may be secret."""
    if type(value) is not bytes or len(value) != byte_count:
        seen = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise ProtocolViolation(f"{what} has {byte_count} bytes, not {seen}")
    return value


def memory_handle(value: Any) -> bytes:
    if type(value) is not bytes or not 1 <= len(value) <= MAX_HANDLE_BYTES:
        raise ProtocolViolation(
            f"a memory handle has 1 to {MAX_HANDLE_BYTES} bytes, not {shown(value)}"
        )
    return value


def seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 86_400:
        raise ProtocolViolation(f"expected seconds from 0 to 86,400, not {shown(value)}")
    return float(value)


def published_name(value: Any) -> str:
    if type(value) is not str or not is_published_name(value):
        raise ProtocolViolation(f"{shown(value)} cannot be the name of a published tensor")
    return value


def text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT_LENGTH:
        raise ProtocolViolation(
            f"expected a text of at most {MAX_TEXT_LENGTH} characters: {shown(value)}"
        )
    return value
