"""Codecs for the parameters of operations: numbers, text, slices, schemes and distributions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from burn_remote_protocol.dtypes import DType, QuantScheme
from burn_remote_protocol.errors import LimitExceeded, Unsupported
from burn_remote_protocol.operations.field_codecs import FieldCodec
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import (
    decode_scalar,
    decode_slice,
    dtype_to_wire,
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
    "PaddingCodec",
    "PaddingModeCodec",
    "PairCodec",
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
class PaddingCodec(FieldCodec):
    """The padding of one axis: the same number at both ends, or ``(before, after)``.

    The argument is an integer if both ends are equal. Burn 0.21 writes only that; Burn 0.22 always
    writes both ends.
    """

    vocabulary: Vocabulary = Vocabulary.NATIVE

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if is_unsigned(wire) and self.vocabulary is not Vocabulary.BURN_0_22:
            return wire
        if self.vocabulary is Vocabulary.BURN_0_21:
            raise unexpected("an unsigned 64-bit integer", wire)
        before, after = sequence(wire, 2, "the padding of an axis")
        if not is_unsigned(before) or not is_unsigned(after):
            raise unexpected("the padding of an axis, unsigned 64-bit integers", wire)
        return before if before == after else (before, after)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        if self.vocabulary is Vocabulary.BURN_0_22:
            return [*argument] if type(argument) is tuple else [argument, argument]
        if type(argument) is not tuple:
            return argument
        if self.vocabulary is Vocabulary.BURN_0_21:
            raise Unsupported(
                f"Burn 0.21 pads both ends of an axis alike, not with {argument[0]} and "
                f"{argument[1]}; pad the tensor first"
            )
        return [*argument]

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        return PaddingCodec(vocabulary)


@dataclass(frozen=True, slots=True)
class NameCodec(FieldCodec):
    """One of the given names: a Rust enum whose variants have no data.

    ``since`` has the names that the first release did not have, with the release that added them.
    """

    names: tuple[str, ...]
    since: tuple[tuple[str, Vocabulary], ...] = ()

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        later = {name for name, added in self.since if added > vocabulary}
        return NameCodec(tuple(name for name in self.names if name not in later), self.since)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        if argument not in self.names:
            raise Unsupported(f"{argument} is not one of {', '.join(self.names)}")
        return argument

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


@dataclass(frozen=True, slots=True)
class SchemeCodec(FieldCodec):
    """A ``QuantScheme``."""

    vocabulary: Vocabulary = Vocabulary.NATIVE

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        return QuantScheme.from_wire(wire)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        wire = dtype_to_wire(DType.quantized(argument), self.vocabulary)
        return wire["QFloat"]

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        return SchemeCodec(vocabulary)


class PairCodec(FieldCodec):
    """A pair of unsigned integers."""

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        pair = tuple(sequence(wire, 2, "a pair of sizes"))
        if not all(map(is_unsigned, pair)):
            raise unexpected("a pair of unsigned 64-bit integers", wire)
        return pair

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return [*argument]


class PaddingModeCodec(FieldCodec):
    """A mode of padding: ``("Reflect",)``, ``("Edge",)``, or ``("Constant", Scalar)``."""

    PLAIN: ClassVar = ("Reflect", "Edge")

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) is str and wire in self.PLAIN:
            return (wire,)
        name, body = variant(wire, "a mode of padding")
        if name != "Constant":
            raise unexpected(f"a mode of padding (Constant, {', '.join(self.PLAIN)})", name)
        return ("Constant", decode_scalar(body))

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        name, *numbers = argument
        return {name: encode_scalar(numbers[0])} if numbers else name

    def plain(self, argument: Any) -> Any:
        name, *numbers = argument
        return (name, *[number.value for number in numbers])


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
