"""Backward functions of recorded operations, moves and aliases."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from burn_remote.arguments.traced_numbers import TracedScalar
from burn_remote.autodiff.nodes import TRACKED, BackwardFunction, Node, Visit, saved_handle
from burn_remote.autodiff.rule_table import (
    GRADIENT,
    GRADIENT_SPEC,
    NUMBER,
    RULES,
    SPEC,
    Formula,
    JointRule,
    Never,
    PastCall,
    Rule,
)
from burn_remote.autodiff.uniform_gradients import Uniform, tensor_of
from burn_remote.dispatch.operators import Operator
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import base, complex_rows
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "FIRST_INPUT",
    "NOTHING",
    "OUTPUTS",
    "SECOND_INPUT",
    "UNRECORDED",
    "AliasBackward",
    "MoveBackward",
    "OperationBackward",
    "RetainingBackward",
]

# What a node saves: no handle, that of the first or second input, those of all outputs, or others.
# ``NOTHING`` is 0. There is no node if no output can have a gradient (``UNRECORDED``).
NOTHING, FIRST_INPUT, SECOND_INPUT, OUTPUTS, SOME, UNRECORDED = range(6)


# The kinds of Burn's operations on complex tensors. Their rules are those of real tensors. All are
# holomorphic: given the conjugate of the output's gradient, the rule returns the conjugate of the
# input's gradient. docs/gradients.md has the convention.
_HOLOMORPHIC: Final = frozenset({"BaseComplex", "NumericComplex", "FloatComplex"})
CONJUGATE: Final = Operator(complex_rows.CONJUGATE)


def _conjugate(gradient: Any) -> Any:
    return None if gradient is None else CONJUGATE.unary(gradient)


@final
class OperationBackward:
    """The gradients of one signature with certain inputs tracked, by the table of rules."""

    __slots__ = (
        "_conjugates", "_joint", "_names", "_outputs", "_parameters", "_places", "_refusal",
        "_signature", "_steps", "_uniform", "output_count", "saves", "select", "specs",
        "transposes",
    )  # fmt: skip

    def __init__(self, signature: Signature, tracked: int) -> None:
        self._signature = signature
        # Whether the tensors are complex and the rule is that of real numbers.
        self._conjugates = signature.kind in _HOLOMORPHIC
        self.specs: tuple[TensorSpec, ...] = tuple([use.spec for use in signature.input_uses])
        self.output_count: int = len(signature.outputs)
        # Whether the operation transposes a matrix.
        self.transposes = (
            signature.row is base.SWAP_DIMS
            and len(self.specs[0].shape) == 2
            and signature.call.parameters["dim1"] != signature.call.parameters["dim2"]
        )
        # The name of the field of each present input and output.
        self._names = tuple(_present(signature, Role.INPUT))
        self._outputs = tuple(_present(signature, Role.OUTPUT))
        self._parameters = _parameters(signature)
        self._joint: JointRule | None = None
        self._refusal: str | None = None
        self._steps: tuple[_Step, ...] = ()
        entry = RULES.of_call(signature.row, self._parameters)
        wanted: set[str] = set()
        if isinstance(entry, Never):
            self._refusal = entry.reason
        elif isinstance(entry, JointRule):
            self._joint = entry
            wanted = {*entry.uses}
        else:
            for place, name in enumerate(self._names):
                if tracked >> place & 1 and name in entry.formulas:
                    wanted |= {*entry.formulas[name].needs} - {GRADIENT}
        # The places, among inputs and outputs, of the handles that are saved.
        every = (*self._names, *self._outputs)
        self._places = tuple([place for place, name in enumerate(every) if name in wanted])
        outputs = tuple(range(len(self._names), len(every)))
        # The second place is that of the output if there is one input.
        known = {(): NOTHING, (0,): FIRST_INPUT, (1,): SECOND_INPUT, outputs: OUTPUTS}
        self.saves: int = known.get(self._places, SOME)
        if not any(spec.dtype.category in TRACKED for spec in signature.outputs):
            self.saves = UNRECORDED
        self.select: Callable[[tuple[TensorHandle, ...]], tuple[TensorHandle, ...]]
        self.select = _selecting(self._places)
        if isinstance(entry, Rule):
            self._steps = tuple(self._bind(entry))
        self._uniform = self._bind_uniform(RULES.uniform_formulas(signature.row))

    def describe(self) -> str:
        """Return the row, with the shapes and dtypes of inputs and outputs."""
        return f"{self._signature.row}({self._signature.describe()})"

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Return the gradient of each input; see ``BackwardFunction.apply``."""
        grads, kind, is_wanted, is_recorded = visit
        if self._refusal is not None:
            raise UsageError(f"no gradient passes through {self.describe()}: {self._refusal}")
        saved = node.saved or ()
        values = [
            kind(saved_handle(handle, place, node, is_recorded))
            for place, handle in zip(self._places, saved, strict=True)
        ]
        if not self._conjugates:
            return self._formulas(values, grads, is_wanted)
        found = self._formulas(values, [*map(_conjugate, grads)], is_wanted)
        return [*map(_conjugate, map(tensor_of, found))]

    def _formulas(
        self, values: list[Any], grads: Sequence[Any], is_wanted: tuple[bool, ...]
    ) -> Sequence[Any]:
        """Return the gradient of each input, as the row's rule computes it."""
        if self._joint is not None:
            return self._apply_jointly(self._joint, values, grads, is_wanted)
        found: list[Any] = [None] * len(self.specs)
        gradient = grads[0]
        if gradient is None:
            return found
        for place, function, template, fills in self._steps:
            if is_wanted[place]:
                arguments = [*template]
                for position, source in fills:
                    arguments[position] = gradient if source < 0 else values[source]
                found[place] = function(*arguments)
        return found

    def of_uniform(self, gradient: Uniform, is_wanted: tuple[bool, ...]) -> list[Any] | None:
        """Return the gradient of each input if all that are wanted are uniform too."""
        found: list[Any] = [None] * len(self.specs)
        for place, wanted in enumerate(is_wanted):
            if wanted:
                step = self._uniform.get(place)
                if step is None:
                    return None
                function, arguments = step
                number = function(gradient.number, *arguments)
                # A number that changes with each call of a compiled function is a ``TracedNumber``.
                if type(number) is not float:
                    return None
                found[place] = gradient.like(self.specs[place], number)
        return found

    def _bind_uniform(
        self, formulas: Mapping[str, Formula]
    ) -> dict[int, tuple[Callable[..., Any], tuple[Any, ...]]]:
        """Return the formula for uniform gradients of each place, with its arguments."""
        bound: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        for place, name in enumerate(self._names):
            if name in formulas:
                function, needs = formulas[name]
                known = {
                    **self._parameters,
                    GRADIENT_SPEC: self._signature.outputs[0],
                    f"{name}{SPEC}": self.specs[place],
                }
                arguments = tuple([known[need] for need in needs if need != NUMBER])
                bound[place] = (function, arguments)
        return bound

    def _bind(self, entry: Rule) -> list[_Step]:
        every = (*self._names, *self._outputs)
        indices = {every[place]: index for index, place in enumerate(self._places)}
        steps: list[_Step] = []
        for place, name in enumerate(self._names):
            if name not in entry.formulas:
                continue
            function, needs = entry.formulas[name]
            template: list[Any] = []
            fills: list[tuple[int, int]] = []
            for position, need in enumerate(needs):
                value = None  # also for an optional input that is absent
                if need == GRADIENT:
                    fills.append((position, -1))
                elif need in indices:
                    fills.append((position, indices[need]))
                elif need in self._parameters:
                    value = self._parameters[need]
                elif need.endswith(SPEC) and need.removesuffix(SPEC) in self._names:
                    value = self.specs[self._names.index(need.removesuffix(SPEC))]
                template.append(value)
            steps.append((place, function, tuple(template), tuple(fills)))
        return steps

    def _apply_jointly(
        self, entry: JointRule, values: list[Any], grads: Sequence[Any], needed: tuple[bool, ...]
    ) -> Sequence[Any]:
        row = self._signature.row
        every = (*self._names, *self._outputs)
        saved = [(every[place], value) for place, value in zip(self._places, values, strict=True)]
        past = PastCall(
            _by_field(self._signature, saved, None),
            grads,
            self._parameters,
            _by_field(self._signature, [*zip(self._names, self.specs, strict=True)], None),
            _by_field(self._signature, [*zip(self._names, needed, strict=True)], False),
        )
        answer = entry.function(past)
        found: list[Any] = []
        for field in row.fields:
            count = self._names.count(field.name)
            given = answer.get(field.name) if field.role is Role.INPUT else None
            if field.role is Role.INPUT:
                found += [None] * count if given is None else _listed(given)
        return found


# The place of an input, its formula, and the formula's arguments with ``None`` for each tensor. The
# last member lists the position and the source of each tensor: its index among the saved tensors,
# or -1 for the gradient.
_Step = tuple[int, Callable[..., Any], tuple[Any, ...], tuple[tuple[int, int], ...]]


@final
class MoveBackward:
    """The backward function of a move to another device: it moves the gradient back."""

    __slots__ = ("_source", "specs")

    output_count = 1

    def __init__(self, source: RunnerStack, spec: TensorSpec) -> None:
        self._source = source
        self.specs: tuple[TensorSpec, ...] = (spec,)

    def describe(self) -> str:
        """Return what was moved."""
        return f"the move of {self.specs[0]} from {self._source.device}"

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Move the gradient to the device from which the tensor came."""
        handle = visit.grads[0].handle
        return (visit.kind(handle.client.move(handle, self._source)),)


@final
class RetainingBackward:
    """A wrapper of another backward function that also accumulates the gradients of outputs.

    ``add`` adds two gradients. ``grads`` has the sum of the gradients of each output whose
    gradients are kept, by its position; ``None`` before a pass.
    """

    __slots__ = ("_add", "_backward", "grads")

    def __init__(self, backward: BackwardFunction, add: Callable[[Any, Any], Any]) -> None:
        self._backward = backward
        self._add = add
        self.grads: dict[int, Any] = {}

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The shapes and dtypes of the inputs."""
        return self._backward.specs

    @property
    def output_count(self) -> int:
        """The number of outputs."""
        return self._backward.output_count

    def describe(self) -> str:
        """Return the name of the operation, with the shapes of its tensors."""
        return self._backward.describe()

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Keep the gradients of the outputs, and return those of the inputs."""
        for place, before in self.grads.items():
            arrived = visit.grads[place]
            if arrived is not None:
                sum_of = arrived if before is None else self._add(before, arrived)
                self.grads[place] = visit.kind(sum_of.handle)
        return self._backward.apply(node, visit)


@final
class AliasBackward:
    """The backward function of an alias: passes the gradient on.

    An alias is the same tensor with another source.
    """

    __slots__ = ("specs",)

    output_count = 1

    def __init__(self, spec: TensorSpec) -> None:
        self.specs: tuple[TensorSpec, ...] = (spec,)

    def describe(self) -> str:
        """Return the tensor."""
        return str(self.specs[0])

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Return the gradient itself."""
        return visit.grads


def _selecting(
    places: tuple[int, ...],
) -> Callable[[tuple[TensorHandle, ...]], tuple[TensorHandle, ...]]:
    """Return a function that returns the members of a tuple at these places, as a tuple."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return operator.itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _present(signature: Signature, role: Role) -> list[str]:
    """Return the field name of each present tensor; that of a list once for each member."""
    names: list[str] = []
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if field.role is role and argument is not None:
            names += [field.name] * (len(argument) if type(argument) is tuple else 1)
    return names


def _parameters(signature: Signature) -> dict[str, Any]:
    """Return the parameters by name; numbers of a function that is being compiled are traced."""
    parameters = dict(signature.call.parameters)
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if type(argument) is TracedScalar:
            parameters[field.name] = argument.number
    return parameters


def _by_field(
    signature: Signature, named: Sequence[tuple[str, Any]], absent: Any
) -> dict[str, Any]:
    """Return values by field: a tuple for a list of tensors, ``absent`` for a missing tensor."""
    found: dict[str, Any] = {}
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if field.role is not Role.PARAMETER:
            values = tuple([value for name, value in named if name == field.name])
            if type(argument) is tuple:
                found[field.name] = values
            else:
                found[field.name] = values[0] if values else absent
    return found


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, tuple | list) else [value]
