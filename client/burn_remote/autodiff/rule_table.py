"""The table of gradient rules: for each row of the table of operations, a rule or a refusal.

The modules of ``gradient_rules`` fill the table with ``rule``, ``joint`` and ``never``. A rule
consists of operations on tensors, so gradients of gradients follow from the same rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from burn_remote_protocol.operations.field_codecs import ListCodec, StructCodec
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Row

__all__ = [
    "RULES",
    "Formula",
    "JointRule",
    "Never",
    "PastCall",
    "Rule",
    "RuleTable",
    "Variants",
    "joint",
    "never",
    "rule",
    "uniform",
]

# The name of the gradient of the output among the parameters of a formula.
GRADIENT: Final = "grad"
# The ending of a parameter that takes the shape and dtype of an input without its elements.
SPEC: Final = "_spec"
# The parameters of a formula for uniform gradients: the number of the gradient, and its shape and
# dtype.
NUMBER: Final = "number"
GRADIENT_SPEC: Final = f"{GRADIENT}{SPEC}"


class Formula(NamedTuple):
    """The gradient of one input: a function, and the names of its parameters."""

    function: Callable[..., Any]
    needs: tuple[str, ...]


@final
class Rule:
    """One formula for each differentiable input of a row."""

    def __init__(self, formulas: Mapping[str, Formula]) -> None:
        self.formulas: Final = formulas


@final
class JointRule:
    """A function that computes the gradients of all inputs; ``uses`` names the tensors it takes."""

    def __init__(
        self, function: Callable[[PastCall], Mapping[str, Any]], uses: Iterable[str]
    ) -> None:
        self.function: Final = function
        self.uses: Final = frozenset(uses)


@final
class Never:
    """A row through which no gradient passes, and the reason."""

    def __init__(self, reason: str) -> None:
        self.reason: Final = reason


@final
class Variants:
    """Rules of a row for each value of one parameter, such as the kind of an update."""

    def __init__(self, parameter: str) -> None:
        self.parameter: Final = parameter
        self.rules: Final[dict[Any, JointRule]] = {}


AnyRule = Rule | JointRule | Variants | Never

_MISSING: Final = Never("it has no gradient rule")


class PastCall:
    """One recorded operation, as a joint rule sees it.

    ``call["x"]`` is the tensor of an input or output that the rule ``uses``; ``None`` if an
    optional input was absent, and a tuple for a list of tensors. ``grads`` has one gradient for
    each output, ``None`` where no gradient arrived. ``parameters`` has the row's parameters by
    name.
    """

    __slots__ = ("_needed", "_specs", "_values", "grads", "parameters")

    def __init__(
        self,
        values: Mapping[str, Any],
        grads: Sequence[Any],
        parameters: Mapping[str, Any],
        specs: Mapping[str, Any],
        needed: Mapping[str, Any],
    ) -> None:
        self._values = values
        self._specs = specs
        self._needed = needed
        self.grads = grads
        self.parameters = parameters

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def converted(self, convert: Callable[[Any], Any]) -> PastCall:
        """Return the same call with ``convert`` applied to its tensors and gradients."""

        def each(value: Any) -> Any:
            if value is None:
                return None
            return tuple(map(each, value)) if isinstance(value, tuple) else convert(value)

        return PastCall(
            {name: each(value) for name, value in self._values.items()},
            [*map(each, self.grads)],
            self.parameters,
            self._specs,
            self._needed,
        )

    def spec(self, name: str) -> Any:
        """Return the shape and dtype of an input; a tuple for a list, ``None`` if absent."""
        return self._specs[name]

    def needs(self, name: str) -> Any:
        """Return whether the gradient of an input is wanted; a tuple for a list of tensors."""
        return self._needed[name]


@final
class RuleTable:
    """One entry for each row of the table of operations."""

    def __init__(self) -> None:
        self._entries: dict[Row, AnyRule] = {}
        self._uniform: dict[Row, Mapping[str, Formula]] = {}

    def __getitem__(self, row: Row) -> AnyRule:
        """Return the entry of a row; a refusal if there is none."""
        return self._entries.get(row, _MISSING)

    def __contains__(self, row: Row) -> bool:
        return row in self._entries

    def __iter__(self) -> Iterator[Row]:
        return iter(self._entries)

    def of_call(self, row: Row, parameters: Mapping[str, Any]) -> Rule | JointRule | Never:
        """Return the rule of a row for these parameters."""
        entry = self[row]
        if not isinstance(entry, Variants):
            return entry
        value = parameters[entry.parameter]
        found = entry.rules.get(value)
        if found is None:
            return Never(f"it has no gradient rule for {entry.parameter}={value}")
        return found

    def uniform_formulas(self, row: Row) -> Mapping[str, Formula]:
        """Return the formulas for gradients whose elements are one number; empty if none."""
        return self._uniform.get(row, {})

    def add_uniform(self, row: Row, formulas: Mapping[str, Formula]) -> None:
        """Add formulas for uniform gradients.

        Raises ``ValueError`` if the row has no ``Rule``, or already has uniform formulas.
        """
        entry = self[row]
        if not isinstance(entry, Rule) or row in self._uniform:
            raise ValueError(f"{row} must have a rule, and no formulas for uniform gradients yet")
        _check(row, formulas, {*entry.formulas})
        for name, formula in formulas.items():
            known = {NUMBER, GRADIENT_SPEC, f"{name}{SPEC}"} | _names(row, Role.PARAMETER)
            _check(row, formula.needs, known)
        self._uniform[row] = formulas

    def add_variant(self, row: Row, parameter: str, value: Any, entry: JointRule) -> None:
        """Add a rule for one value of a parameter. Raises ``ValueError`` as ``add`` does."""
        if row not in self:
            _check(row, [parameter], _names(row, Role.PARAMETER))
            self._entries[row] = Variants(parameter)
        variants = self[row]
        if not isinstance(variants, Variants) or value in variants.rules:
            raise ValueError(f"{row} has two gradient rules for {parameter}={value}")
        _check(row, entry.uses, _names(row, Role.INPUT) | _names(row, Role.OUTPUT))
        variants.rules[value] = entry

    def add(self, row: Row, entry: AnyRule) -> None:
        """Add the entry of a row. Raises ``ValueError`` if it has one, or names no such field."""
        if row in self:
            raise ValueError(f"{row} has two gradient rules")
        if isinstance(entry, Rule):
            for name, formula in entry.formulas.items():
                _check(row, [name], _names(row, Role.INPUT))
                _check(row, formula.needs, {GRADIENT, *_known(row)})
        elif isinstance(entry, JointRule):
            _check(row, entry.uses, _names(row, Role.INPUT) | _names(row, Role.OUTPUT))
        self._entries[row] = entry


RULES: Final = RuleTable()


def rule(row: Row, **formulas: Callable[..., Any]) -> None:
    """Add the rule of a row: a formula for each differentiable input, under the field's name.

    The names of a formula's parameters determine its arguments:

    - ``grad`` is the gradient of the (first) output;
    - the field name of an input or output stands for that tensor, which is saved for the formula;
    - the name of a parameter of the row stands for its value;
    - ``x_spec`` is the shape and dtype of the input ``x``, whose elements are not saved.

    Parameters with a default value are not passed. A formula may return a gradient of the shape
    that the input was broadcast to, and ``None`` for no gradient.
    """
    RULES.add(row, Rule({name: _formula(function) for name, function in formulas.items()}))


def uniform(row: Row, **formulas: Callable[..., float | None]) -> None:
    """Add formulas of a row for gradients whose elements are all one number.

    Each formula is passed under the field name of an input. It returns the number that fills the
    input's gradient, as a ``float``, already summed over the axes along which the input was
    broadcast; ``None`` means that tensors are needed. Its first parameter is ``number``, the number
    that fills the output's gradient. Others are parameters of the row, ``grad_spec``, the shape and
    dtype of the output, and ``x_spec`` for the input ``x``.
    """
    RULES.add_uniform(row, {name: _formula(function) for name, function in formulas.items()})


def joint(
    row: Row, uses: Iterable[str] = (), *, when: tuple[str, Any] | None = None
) -> Callable[[Callable[[PastCall], Mapping[str, Any]]], Callable[[PastCall], Mapping[str, Any]]]:
    """Decorate a function of a ``PastCall`` that returns the gradients of inputs by field name.

    ``uses`` names the inputs and outputs that are saved for the function. For a list field, the
    function returns a list of gradients. Inputs that are missing in the result, or ``None``, get no
    gradient. ``when`` restricts the rule to one value of a parameter: a pair of its name and the
    value.
    """

    def add(
        function: Callable[[PastCall], Mapping[str, Any]],
    ) -> Callable[[PastCall], Mapping[str, Any]]:
        entry = JointRule(function, uses)
        if when is None:
            RULES.add(row, entry)
        else:
            RULES.add_variant(row, *when, entry)
        return function

    return add


def never(reason: str, *rows: Row) -> None:
    """Add a refusal: gradients through these rows raise ``UsageError``."""
    for row in rows:
        RULES.add(row, Never(reason))


def _formula(function: Callable[..., Any]) -> Formula:
    parameters = inspect.signature(function).parameters.values()
    return Formula(function, tuple([one.name for one in parameters if one.default is one.empty]))


def _names(row: Row, role: Role) -> set[str]:
    names: set[str] = set()
    for field in row.fields:
        if field.role is role:
            codec = field.codec
            if isinstance(codec, StructCodec):
                names.update(name for name, _ in codec.members)
            else:
                names.add(field.name)
    return names


def _known(row: Row) -> set[str]:
    inputs = {field.name for field in row.fields if field.role is Role.INPUT}
    singles = {
        field.name
        for field in row.fields
        if field.role is Role.INPUT and not isinstance(field.codec, ListCodec)
    }
    parameters = _names(row, Role.PARAMETER)
    return inputs | _names(row, Role.OUTPUT) | parameters | {f"{one}{SPEC}" for one in singles}


def _check(row: Row, names: Iterable[str], known: set[str]) -> None:
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(
            f"the gradient rule of {row} names {', '.join(unknown)}; it may name {sorted(known)}"
        )
