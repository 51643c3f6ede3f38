"""The rows of the table of operations, and operations.

A ``Row`` describes a variant of the IR. A ``Signature`` is an operation without the ids of its
tensors: it repeats from call to call, so both sides prepare it once. An ``Operation`` is a
signature with ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.vocabularies import EVERYWHERE, Lifetime
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["Call", "Estimate", "Estimates", "Operation", "Row", "Rule", "Signature", "TensorUse"]


class Call(NamedTuple):
    """The arguments of an operation as its rule and its estimates receive them: shapes, no tensors.

    ``inputs`` has one entry per input field in wire order: a spec, ``None`` for an absent optional
    tensor, or a tuple of specs for a list. ``parameters`` maps every other field to its value, the
    fields of an options struct by their own names. ``requested`` holds the outputs that the caller
    declared; it is empty if the rule determines them.
    """

    inputs: tuple[Any, ...]
    parameters: Mapping[str, Any]
    requested: tuple[TensorSpec, ...] = ()


# Returns the outputs in wire order. If the caller may choose a property (a target shape, the
# integer type of indices, the storage of a bool), the rule takes it from ``requested`` and checks
# it. Raises ShapeMismatch or DTypeMismatch.
Rule = Callable[[Call], tuple[TensorSpec, ...]]


# Computes an estimate from a call whose ``requested`` holds its outputs.
Estimate = Callable[[Call], int]


class Estimates(NamedTuple):
    """Estimates of an operation's duration and memory.

    ``cost`` is in nanoseconds of one core, ``workspace`` in bytes of scratch memory in addition to
    inputs and outputs. ``converts``: the kernel computes with ``float32`` copies of 16-bit floats,
    which ``estimates.estimated`` adds.
    """

    cost: Estimate
    workspace: Estimate
    converts: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One variant of the IR, with all that the packages need to know about it.

    Rows are equal only if they are one object, so a row is a fast key of a dictionary.

    ``family`` and ``name`` are as on the wire, and the fields in wire order. The rule computes the
    shape and dtype of the outputs; the estimates give the operation's cost. ``lifetime`` says which
    releases of Burn have the row; an extension row is in none of them.
    """

    family: str
    name: str
    fields: tuple[Field, ...]
    rule: Rule
    estimates: Estimates
    lifetime: Lifetime = EVERYWHERE

    def __str__(self) -> str:
        return f"{self.family}.{self.name}" if self.name != self.family else self.name


@dataclass(frozen=True, slots=True)
class Signature:
    """An operation without the ids of its tensors.

    ``kind`` is the outer name on the wire (``"NumericFloat"``); ``dtype`` is the dtype that some
    kinds carry in addition to the variant. ``arguments`` has one entry per field of the row: a
    ``TensorUse``, a tuple of them for a list, ``None`` for an absent option, or the parameter's
    value.
    """

    kind: str
    row: Row
    dtype: DType | None
    arguments: tuple[Any, ...]
    call: Call = field(init=False, compare=False, repr=False)
    outputs: tuple[TensorSpec, ...] = field(init=False, compare=False, repr=False)
    # The input tensors that are present, with the members of lists; an Operation has an id for
    # each.
    input_uses: tuple[TensorUse, ...] = field(init=False, compare=False, repr=False)
    output_count: int = field(init=False, compare=False, repr=False)
    # Values that a client derives from the signature. They are kept here, although they are not
    # part of it: a lookup in a dictionary by the signature's identity would take longer than the
    # rest of recording an operation.
    derived: dict[int, Any] = field(init=False, compare=False, repr=False)
    # ``id(self)``: computing it again takes longer than looking it up in a dictionary.
    identity: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        inputs: list[Any] = []
        uses: list[TensorUse] = []
        outputs: list[TensorSpec] = []
        parameters: dict[str, Any] = {}
        for item, argument in zip(self.row.fields, self.arguments, strict=True):
            if item.role is Role.PARAMETER:
                item.codec.collect(item.name, argument, parameters)
                continue
            found = argument if type(argument) is tuple else (argument,)
            present = [use for use in found if use is not None]
            if item.role is Role.OUTPUT:
                outputs += [use.spec for use in present]
                continue
            uses += present
            inputs.append(item.codec.specs(argument))
        object.__setattr__(self, "outputs", tuple(outputs))
        object.__setattr__(self, "call", Call(tuple(inputs), parameters, tuple(outputs)))
        object.__setattr__(self, "input_uses", tuple(uses))
        object.__setattr__(self, "output_count", len(outputs))
        object.__setattr__(self, "derived", {})
        object.__setattr__(self, "identity", id(self))

    def with_scalars(self, changes: Iterable[tuple[int, float | int | bool]]) -> Signature:
        """Return this signature with other values of some scalars.

        ``changes`` has the positions of the scalars among the arguments, and the new values, which
        keep their variants.
        """
        arguments = [*self.arguments]
        for position, value in changes:
            arguments[position] = Scalar(arguments[position].variant, value)
        return Signature(self.kind, self.row, self.dtype, tuple(arguments))

    def describe(self) -> str:
        """List the inputs and outputs: ``float32[2, 3], float32[3, 4] -> float32[2, 4]``."""
        inputs = ", ".join(str(use.spec) for use in self.input_uses)
        return f"{inputs} -> {', '.join(map(str, self.outputs))}"


class Operation(NamedTuple):
    """One call: a signature and the ids of its tensors, inputs before outputs, in wire order."""

    signature: Signature
    tensors: tuple[int, ...]
