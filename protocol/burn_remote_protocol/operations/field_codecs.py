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

from burn_remote_protocol.errors import LimitExceeded
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
    "StructCodec",
    "TensorCodec",
    "WrappedCodec",
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


@dataclass(frozen=True, slots=True)
class TensorCodec(FieldCodec):
    """One tensor, in one of the statuses that its role allows."""

    statuses: frozenset[TensorStatus]

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        identifier, use = decode_tensor(wire)
        if use.status not in self.statuses:
            raise unexpected(f"a tensor in status {' or '.join(sorted(self.statuses))}", wire)
        tensors.append(identifier)
        return use

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return encode_tensor(next(tensors), argument)

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


@dataclass(frozen=True, slots=True)
class WrappedCodec(FieldCodec):
    """A struct of one field: an array of length one on the wire, the field's value otherwise."""

    inner: FieldCodec
    what: str

    def decode(self, wire: Any, tensors: list[int]) -> Any:
        (item,) = sequence(wire, 1, self.what)
        return self.inner.decode(item, tensors)

    def encode(self, argument: Any, tensors: Iterator[int]) -> Any:
        return [self.inner.encode(argument, tensors)]

    def strip(self, wire: Any, tensors: list[int]) -> Any:
        if type(wire) not in ARRAYS:
            raise TypeError
        (item,) = wire
        return self.inner.strip(item, tensors)

    def specs(self, argument: Any) -> Any:
        return self.inner.specs(argument)


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

    def collect(self, name: str, argument: Any, parameters: dict[str, Any]) -> None:
        for (member, kind), item in zip(self.members, argument, strict=True):
            kind.collect(member, item, parameters)
