"""The wire form of tensors, their data, scalars and slices.

MessagePack is unpacked either to lists and dictionaries or, where speed matters, to tuples and
``FrozenMap``. Decoding accepts both; encoding produces lists and dictionaries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from burn_remote_protocol import quantized_storage as quantization
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ProtocolViolation, shown
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.vocabularies import Vocabulary, check_dtype
from burn_remote_protocol.tensors import (
    Slice,
    TensorData,
    TensorSpec,
    TensorStatus,
    checked_shape,
)

__all__ = [
    "ARRAYS",
    "MAX_UNSIGNED",
    "Scalar",
    "TensorUse",
    "decode_scalar",
    "decode_slice",
    "decode_tensor",
    "decode_tensor_data",
    "dtype_to_wire",
    "encode_scalar",
    "encode_slice",
    "encode_tensor",
    "encode_tensor_data",
    "is_scalar_value",
    "is_unsigned",
    "sequence",
    "unexpected",
    "variant",
]

# The types of unpacked MessagePack arrays. Maps and byte buffers can be iterated too, so a value's
# type is checked before it is unpacked.
ARRAYS: Final = (tuple, list)

MAX_UNSIGNED: Final = 2**64 - 1
MIN_SIGNED: Final = -(2**63)
MAX_SIGNED: Final = 2**63 - 1

_STATUSES: Final = {status.value: status for status in TensorStatus}


class TensorUse(NamedTuple):
    """A tensor in a signature: its spec and its status, without its id."""

    spec: TensorSpec
    status: TensorStatus


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A number with the variant it has on the wire: ``Float``, ``Int``, ``UInt`` or ``Bool``.

    Scalars with equal bytes are equal: ``0.0`` differs from ``-0.0``, and a NaN equals itself.
    """

    variant: str
    value: float | int | bool

    @classmethod
    def of(cls, value: float | int | bool) -> Scalar:
        """Wrap a Python number; an integer becomes ``Int``, or ``UInt`` if it is too large."""
        if type(value) is bool:
            return cls("Bool", value)
        if type(value) is int:
            return cls("UInt" if value > MAX_SIGNED else "Int", value)
        return cls("Float", float(value))

    def _exact(self) -> tuple[str, float | int | bytes]:
        if self.variant == "Float":
            return self.variant, struct.pack("<d", self.value)
        return self.variant, self.value

    def __eq__(self, other: object) -> bool:
        return type(other) is Scalar and self._exact() == other._exact()

    def __hash__(self) -> int:
        return hash(self._exact())


def unexpected(expected: str, seen: Any) -> ProtocolViolation:
    """Return the error for a value other than the expected one."""
    return ProtocolViolation(f"expected {expected}, saw {shown(seen)}")


def sequence(wire: Any, length: int, expected: str) -> Any:
    """Return an array unchanged if it has exactly ``length`` elements."""
    if type(wire) not in ARRAYS or len(wire) != length:
        raise unexpected(f"{expected}, an array of {length}", wire)
    return wire


def variant(wire: Any, expected: str) -> tuple[str, Any]:
    """Split ``{name: body}``, the form of a Rust variant with a body."""
    if type(wire) is FrozenMap and len(wire) == 1:
        name, body = wire[0]
    elif type(wire) is dict and len(wire) == 1:
        ((name, body),) = wire.items()
    else:
        raise unexpected(f"{expected}, a map of one name", wire)
    if type(name) is str:
        return name, body
    raise unexpected(f"{expected}, a map of one name", wire)


def is_unsigned(value: Any) -> bool:
    """Whether a value is an exact integer that fits ``u64``."""
    return type(value) is int and 0 <= value <= MAX_UNSIGNED


def _is_signed(value: Any) -> bool:
    return type(value) is int and MIN_SIGNED <= value <= MAX_SIGNED


def _is_float(value: Any) -> bool:
    return type(value) is float


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def decode_tensor(wire: Any) -> tuple[int, TensorUse]:
    """Read ``[[id], [[dims]], status, dtype]``; return the id and the rest."""
    identifier, shape, status, dtype = sequence(wire, 4, "a tensor")
    (identifier,) = sequence(identifier, 1, "the id of a tensor")
    if not is_unsigned(identifier):
        raise unexpected("the id of a tensor, an unsigned 64-bit integer", identifier)
    (dims,) = sequence(shape, 1, "a shape")
    if type(status) is not str or status not in _STATUSES:
        raise unexpected(f"a tensor status ({', '.join(_STATUSES)})", status)
    spec = TensorSpec(checked_shape(dims), DType.from_wire(dtype))
    return identifier, TensorUse(spec, _STATUSES[status])


def encode_tensor(
    identifier: int, use: TensorUse, vocabulary: Vocabulary = Vocabulary.NATIVE
) -> list[Any]:
    """Write a tensor as ``decode_tensor`` reads it. Raises ``Unsupported``."""
    (shape, dtype), status = use
    return [[identifier], [list(shape)], status.value, dtype_to_wire(dtype, vocabulary)]


def dtype_to_wire(dtype: DType, vocabulary: Vocabulary) -> Any:
    """Write a dtype as a vocabulary does; those of quantized tensors have two forms.

    Raises ``Unsupported`` for a complex dtype or a quantization scheme that the vocabulary cannot
    express.
    """
    if dtype.scheme is None:
        return check_dtype(dtype, vocabulary).wire
    if vocabulary is Vocabulary.BURN_0_22:
        return {"QFloat": dtype.scheme.to_wire_0_22()}
    if vocabulary is Vocabulary.BURN_0_21:
        return {"QFloat": dtype.scheme.to_wire()}
    return dtype.wire


def decode_tensor_data(wire: Any) -> TensorData:
    """Read ``[bytes, [dims], dtype]``; the number of bytes must match shape and dtype."""
    content, dims, dtype = sequence(wire, 3, "the data of a tensor")
    spec = TensorSpec(checked_shape(dims), DType.from_wire(dtype))
    if type(content) not in (bytes, bytearray, memoryview):
        raise unexpected("the elements of a tensor, a byte buffer", content)
    seen = content.nbytes if type(content) is memoryview else len(content)
    scheme = spec.dtype.scheme
    lengths = quantization.byte_lengths(spec.shape, scheme) if scheme else (spec.nbytes,)
    if seen not in lengths:
        allowed = " or ".join(f"{length:,}" for length in lengths)
        raise ProtocolViolation(f"expected {allowed} bytes for {spec}, saw {seen:,}")
    return TensorData(content, spec.shape, spec.dtype)


def encode_tensor_data(data: TensorData, vocabulary: Vocabulary = Vocabulary.NATIVE) -> list[Any]:
    """Write the data of a tensor as ``decode_tensor_data`` reads it. Raises ``Unsupported``."""
    return [data.bytes, list(data.shape), dtype_to_wire(data.dtype, vocabulary)]


_SCALARS: Final[dict[str, Callable[[Any], bool]]] = {
    "Float": _is_float,
    "Int": _is_signed,
    "UInt": is_unsigned,
    "Bool": _is_bool,
}


def decode_scalar(wire: Any) -> Scalar:
    """Read ``{"Float" | "Int" | "UInt" | "Bool": value}``."""
    name, value = variant(wire, "a scalar")
    fits = _SCALARS.get(name)
    if fits is None or not fits(value):
        raise unexpected(f"a scalar ({', '.join(_SCALARS)}, with a value that fits)", wire)
    return Scalar(name, value)


def is_scalar_value(variant: str, value: Any) -> bool:
    """Whether a value fits a variant of ``Scalar``."""
    return _SCALARS[variant](value)


def encode_scalar(scalar: Scalar) -> dict[str, Any]:
    """Write a scalar as ``decode_scalar`` reads it."""
    return {scalar.variant: scalar.value}


def decode_slice(wire: Any) -> Slice:
    """Read ``[start, end | nil, step]``, signed; a step of 0 is refused."""
    start, end, step = sequence(wire, 3, "a slice")
    if not _is_signed(start) or not (end is None or _is_signed(end)) or not _is_signed(step):
        raise unexpected("a slice of signed 64-bit integers", wire)
    if step == 0:
        raise unexpected("a slice with a step other than 0", wire)
    return Slice(start, end, step)


def encode_slice(item: Slice) -> list[int | None]:
    """Write a slice as ``decode_slice`` reads it."""
    return [item.start, item.end, item.step]
