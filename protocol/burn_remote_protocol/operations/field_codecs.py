"""Codecs for the fields of operations: tensors, and lists, options and structs of values.

A codec converts a wire value to the *argument* that a ``Signature`` holds, and back. A signature is
independent of the tensors it is applied to: decoding appends tensor ids to a list, and encoding
takes them from an iterator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, Unsupported
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import (
    ARRAYS,
    decode_tensor,
    encode_tensor,
    is_unsigned,
    sequence,
    unexpected,
)
from burn_remote_protocol.tensors import TensorStatus

__all__ = [
    "FieldCodec",
    "ListCodec",
    "OptionalCodec",
    "QuantizationParametersCodec",
    "StructCodec",
    "TensorCodec",
]


class FieldCodec(ABC):
    """Checks, decodes and encodes the values of one field, and presents them to rules."""

    @abstractmethod
    def decode(self, wire: Any, tensors: list[int]) -> Any:
        """Return the argument in a decoded wire value; append the ids of its tensors.

        Raises ``ProtocolViolation`` with what was seen and what was expected.
        """

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        """Return the wire value of an argument; take the ids of its tensors."""
        return argument

    def strip(self, wire: Any, tensors: list[int]) -> Any:
        """Return a wire value without the ids of its tensors; append the ids to ``tensors``.

        The returned value is a key in the cache of signatures. Only the removed parts, ids and the
        arrays around them, are checked. Raises ``TypeError`` or ``ValueError``.
        """
        return wire

    def specs(self, argument: Any) -> Any:
        """Return a tensor argument as rules see it: a spec, ``None``, or a tuple of specs."""
        raise TypeError(f"{type(self).__name__} holds no tensor")

    def plain(self, argument: Any) -> Any:
        """Return an argument as rules and kernels see it."""
        return argument

    def collect(self, name: str, argument: Any, parameters: dict[str, Any]) -> None:
        """Add an argument to the parameters of a call, under its name."""
        parameters[name] = self.plain(argument)

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        """Return the codec for the wire form of one vocabulary; the arguments are the same.

        A codec by itself has the form of the native dialect.
        """
        return self


@dataclass(frozen=True, slots=True)
class TensorCodec(FieldCodec):
    """One tensor, in one of the statuses that its role allows."""

    statuses: frozenset[TensorStatus]
    vocabulary: Vocabulary = Vocabulary.NATIVE

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        identifier, use = decode_tensor(wire)
        if use.status not in self.statuses:
            raise unexpected(f"a tensor in status {' or '.join(sorted(self.statuses))}", wire)
        tensors.append(identifier)
        return use

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return encode_tensor(next(tensors), argument, self.vocabulary)

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        return TensorCodec(self.statuses, vocabulary)

    def strip(self, wire: Any, tensors: list[int]) -> Any:
        name, shape, status, dtype = wire
        if type(wire) not in ARRAYS or type(name) not in ARRAYS:
            raise TypeError
        (identifier,) = name
        if not is_unsigned(identifier):
            raise ValueError
        tensors.append(identifier)
        return shape, status, dtype

    def specs(self, argument: Any) -> Any:
        return argument.spec


@dataclass(frozen=True, slots=True)
class OptionalCodec(FieldCodec):
    """Nil, or a value of another codec."""

    inner: FieldCodec

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        return None if wire is None else self.inner.decode(wire, tensors)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return None if argument is None else self.inner.encode(argument, tensors)

    def strip(self, wire: Any, tensors: list[int]) -> Any:
        return None if wire is None else self.inner.strip(wire, tensors)

    def specs(self, argument: Any) -> Any:
        return None if argument is None else self.inner.specs(argument)

    def plain(self, argument: Any) -> Any:
        return None if argument is None else self.inner.plain(argument)

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        return OptionalCodec(self.inner.form(vocabulary))


@dataclass(frozen=True, slots=True)
class ListCodec(FieldCodec):
    """An array of values of one codec, with a length between two bounds."""

    inner: FieldCodec
    least: int
    most: int
    what: str

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) not in ARRAYS:
            raise unexpected(f"an array of {self.what}", wire)
        if len(wire) > self.most:
            raise LimitExceeded(f"length of {self.what}", seen=len(wire), allowed=self.most)
        if len(wire) < self.least:
            raise unexpected(f"{self.least} {self.what}", wire)
        return tuple([self.inner.decode(item, tensors) for item in wire])

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return [self.inner.encode(item, tensors) for item in argument]

    def strip(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) not in ARRAYS:
            raise TypeError
        return [self.inner.strip(item, tensors) for item in wire]

    def specs(self, argument: Any) -> Any:
        return tuple([self.inner.specs(item) for item in argument])

    def plain(self, argument: Any) -> Any:
        return tuple([self.inner.plain(item) for item in argument])

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        return ListCodec(self.inner.form(vocabulary), self.least, self.most, self.what)


@dataclass(frozen=True, slots=True)
class QuantizationParametersCodec(FieldCodec):
    """The scales of a quantized tensor; since Burn 0.22 also an optional scale of all scales.

    The argument is the ``TensorUse`` of the scales, or a tuple of two if there is a scale of all
    scales. The native dialect writes a second element only in that case.
    """

    inner: FieldCodec
    vocabulary: Vocabulary = Vocabulary.NATIVE

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        scales, whole = self._elements(wire)
        use = self.inner.decode(scales, tensors)
        return use if whole is None else (use, self.inner.decode(whole, tensors))

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        uses = argument if type(argument) is tuple else (argument,)
        written = [self.inner.encode(use, tensors) for use in uses]
        if self.vocabulary is Vocabulary.BURN_0_22 and len(written) == 1:
            return [*written, None]
        if self.vocabulary is Vocabulary.BURN_0_21 and len(written) == 2:
            raise Unsupported("Burn 0.21 has no quantized tensors with scales of two levels")
        return written

    def strip(self, wire: Any, tensors: list[int]) -> Any:
        try:
            scales, whole = self._elements(wire)
        except ProtocolViolation as error:
            raise TypeError from error
        stripped = self.inner.strip(scales, tensors)
        return stripped, None if whole is None else self.inner.strip(whole, tensors)

    def specs(self, argument: Any) -> Any:
        if type(argument) is tuple:
            return tuple([self.inner.specs(use) for use in argument])
        return self.inner.specs(argument)

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        return QuantizationParametersCodec(self.inner.form(vocabulary), vocabulary)

    def _elements(self, wire: Any) -> Any:
        length = 2 if self.vocabulary is Vocabulary.BURN_0_22 else 1
        if self.vocabulary is Vocabulary.NATIVE and type(wire) in ARRAYS and len(wire) == 2:
            length = 2
        elements = sequence(wire, length, "quantization parameters")
        return (*elements, None)[:2]


@dataclass(frozen=True, slots=True)
class StructCodec(FieldCodec):
    """A struct of parameters; each is a parameter of the call under its own name."""

    what: str
    members: tuple[tuple[str, FieldCodec], ...]

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        items = sequence(wire, len(self.members), self.what)
        pairs = zip(self.members, items, strict=True)
        return tuple([kind.decode(item, tensors) for (_, kind), item in pairs])

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        pairs = zip(self.members, argument, strict=True)
        return [kind.encode(item, tensors) for (_, kind), item in pairs]

    def form(self, vocabulary: Vocabulary) -> FieldCodec:
        members = tuple((name, kind.form(vocabulary)) for name, kind in self.members)
        return StructCodec(self.what, members)

    def collect(self, name: str, argument: Any, parameters: dict[str, Any]) -> None:
        for (member, kind), item in zip(self.members, argument, strict=True):
            kind.collect(member, item, parameters)
