"""Codecs for the parameters of operations: numbers, text, slices, schemes and distributions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from burn_remote_protocol.dtypes import QuantScheme
from burn_remote_protocol.errors import LimitExceeded
from burn_remote_protocol.operations.field_codecs import FieldCodec
from burn_remote_protocol.operations.wire_values import (
    decode_scalar,
    decode_slice,
    encode_scalar,
    encode_slice,
    is_unsigned,
    sequence,
    unexpected,
    variant,
)

__all__ = [
    "BoolCodec",
    "DistributionCodec",
    "NameCodec",
    "ScalarCodec",
    "SchemeCodec",
    "SliceCodec",
    "StringCodec",
    "UnsignedCodec",
]


class UnsignedCodec(FieldCodec):
    """``usize``: an integer below 2**64."""

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if not is_unsigned(wire):
            raise unexpected("an unsigned 64-bit integer", wire)
        return wire


class BoolCodec(FieldCodec):
    """``bool``."""

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) is not bool:
            raise unexpected("true or false", wire)
        return wire


@dataclass(frozen=True, slots=True)
class StringCodec(FieldCodec):
    """Text of at most ``most`` characters."""

    most: int

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) is not str:
            raise unexpected("text", wire)
        if len(wire) > self.most:
            raise LimitExceeded("characters of a name", seen=len(wire), allowed=self.most)
        return wire


@dataclass(frozen=True, slots=True)
class NameCodec(FieldCodec):
    """One of the given names: a Rust enum whose variants have no data."""

    names: tuple[str, ...]

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) is not str or wire not in self.names:
            raise unexpected(f"one of {', '.join(self.names)}", wire)
        return wire


class ScalarCodec(FieldCodec):
    """A ``Scalar``; rules and kernels receive its Python number."""

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        return decode_scalar(wire)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return encode_scalar(argument)

    def plain(self, argument: Any) -> Any:
        return argument.value


class SliceCodec(FieldCodec):
    """A ``Slice``."""

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        return decode_slice(wire)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return encode_slice(argument)


class SchemeCodec(FieldCodec):
    """A ``QuantScheme``."""

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        return QuantScheme.from_wire(wire)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return argument.to_wire()


class DistributionCodec(FieldCodec):
    """A distribution of random numbers: ``("Default",)``, or a name and one or two parameters."""

    NUMBERS: ClassVar = {"Bernoulli": 1, "Uniform": 2, "Normal": 2}

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) is str and wire == "Default":
            return ("Default",)
        name, body = variant(wire, "a distribution")
        if name not in self.NUMBERS:
            raise unexpected(f"a distribution (Default, {', '.join(self.NUMBERS)})", name)
        count = self.NUMBERS[name]
        numbers = (body,) if count == 1 else tuple(sequence(body, count, f"{name} numbers"))
        if any(type(number) is not float for number in numbers):
            raise unexpected(f"{name} with floating-point numbers", wire)
        return (name, *numbers)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        name, *numbers = argument
        if not numbers:
            return name
        return {name: numbers[0] if len(numbers) == 1 else numbers}
