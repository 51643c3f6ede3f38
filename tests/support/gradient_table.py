"""The tables of gradient rules in docs/gradients.md, written from the rules themselves."""

from __future__ import annotations

from burn_remote.autodiff.rule_table import RULES, JointRule, Never, Rule, Variants
from burn_remote_protocol.operations.families import layers
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.table import TABLE
from support.gradient_cases import CASES

__all__ = ["refused_rows", "ruled_rows"]


def ruled_rows() -> str:
    """Return the table of rows with a rule: their differentiable inputs, and second derivatives."""
    lines = ["| row | gradients of | second derivatives |", "| --- | --- | --- |"]
    ruled = [row for row in TABLE.values() if not isinstance(RULES[row], Never)]
    lines += [f"| `{row}` | {_inputs(row)} | {_second_derivatives(row)} |" for row in ruled]
    return "\n".join(lines)


def refused_rows() -> str:
    """Return the table of reasons, with the rows that each concerns."""
    reasons: dict[str, list[str]] = {}
    for row in TABLE.values():
        entry = RULES[row]
        if isinstance(entry, Never):
            reasons.setdefault(entry.reason, []).append(f"`{row}`")
    lines = ["| reason | rows |", "| --- | --- |"]
    lines += [f"| {reason} | {', '.join(rows)} |" for reason, rows in reasons.items()]
    return "\n".join(lines)


def _inputs(row: Row) -> str:
    entry = RULES[row]
    if isinstance(entry, Rule):
        return _listed([*entry.formulas])
    names = [field.name for field in row.fields if field.role is Role.INPUT]
    listed = _listed([name for name in names if name not in _constant_inputs(row)])
    if isinstance(entry, Variants):
        return f"{listed}; a rule for each `{entry.parameter}`"
    assert isinstance(entry, JointRule)
    return listed


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _constant_inputs(row: Row) -> set[str]:
    """Return the inputs without a gradient: integers, bools, and those that give only a shape."""
    if row is layers.ATTENTION:
        return {"mask"}
    if row.name.startswith("Conv"):
        if row.name.endswith("XBackward"):
            return {"x"}
        return {"weight"} if row.name.endswith("WeightBackward") else set()
    return {"indices", "x"} if row.name.endswith("Backward") else {"indices"}


def _second_derivatives(row: Row) -> str:
    refusals = {case.second_order_refusal for case in CASES if case.row is row}
    if refusals == {None}:
        return "yes"
    return "refused" if None not in refusals else "yes, but refused for `Mul`"
