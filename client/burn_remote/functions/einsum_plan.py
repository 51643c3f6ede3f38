"""Equations of ``einsum``: their parser, and the order in which their operands are contracted.

Pure: works on shapes only. Axes are named by letters, called *labels*. An ellipsis is replaced by
labels that the equation does not use, so later steps know no ellipses.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.tensors import Shape

__all__ = ["Plan", "planned"]

_LETTERS: Final = string.ascii_lowercase + string.ascii_uppercase
_ELLIPSIS: Final = "..."
# Plans of this many equations with their shapes are kept.
_CACHED_PLANS: Final = 512


class Plan(NamedTuple):
    """A parsed equation: labels of each operand and of the result, sizes, and the order.

    ``sizes`` maps a label to its size; an operand's axis of size 1 broadcasts to it. Each of the
    ``steps`` has positions in the list of operands that remain: these are contracted, removed, and
    their product is appended to the list.
    """

    inputs: tuple[str, ...]
    output: str
    sizes: dict[str, int]
    steps: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=_CACHED_PLANS)
def planned(equation: str, shapes: tuple[Shape, ...]) -> Plan:
    """Parse an equation for operands of these shapes, and choose the order of contractions.

    The order of more than two operands is NumPy's greedy one (``numpy.einsum_path``).

    Raises ``UsageError`` for a malformed equation, ``ShapeMismatch`` for shapes that do not fit.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        _check_term(equation, term)
    if len(terms) != len(shapes):
        raise UsageError(
            f"einsum equation {equation!r} has {len(terms)} operands, but {len(shapes)} were given"
        )
    broadcast = _ellipsis_labels(equation, terms, shapes)
    inputs = tuple(
        term.replace(_ELLIPSIS, broadcast[len(broadcast) - _hidden(term, shape) :])
        for term, shape in zip(terms, shapes, strict=True)
    )
    sizes = _sizes(equation, inputs, shapes)
    if not arrow:
        output = broadcast + "".join(
            sorted(label for label in set(left) - {",", "."} if left.count(label) == 1)
        )
    else:
        output = _explicit_output(equation, right, broadcast, sizes)
    return Plan(inputs, output, sizes, _steps(inputs, output, shapes, sizes))


def _check_term(equation: str, term: str) -> None:
    labels = term.replace(_ELLIPSIS, "", 1)
    if any(label not in _LETTERS for label in labels):
        raise UsageError(
            f"einsum equation {equation!r}: expected letters and at most one ellipsis '...' for "
            f"each operand, not {term!r}; write, for example, 'bij,bjk->bik'"
        )


def _hidden(term: str, shape: Shape) -> int:
    """Count the axes of an operand that an ellipsis stands for."""
    return len(shape) - len(term.replace(_ELLIPSIS, "")) if _ELLIPSIS in term else 0


def _ellipsis_labels(equation: str, terms: Sequence[str], shapes: Sequence[Shape]) -> str:
    for place, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        count = len(term.replace(_ELLIPSIS, ""))
        if len(shape) < count or (len(shape) > count and _ELLIPSIS not in term):
            raise ShapeMismatch(
                f"einsum equation {equation!r}: operand {place} has shape {list(shape)}, but "
                f"{term!r} names {count} axes"
            )
    most = max(_hidden(term, shape) for term, shape in zip(terms, shapes, strict=True))
    free = [letter for letter in _LETTERS if letter not in equation]
    if most > len(free):
        raise UsageError(f"einsum equation {equation!r} has more than {len(_LETTERS)} axes")
    return "".join(free[:most])


def _sizes(equation: str, inputs: Sequence[str], shapes: Sequence[Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for place, (labels, shape) in enumerate(zip(inputs, shapes, strict=True)):
        own: dict[str, int] = {}
        for label, size in zip(labels, shape, strict=True):
            if own.setdefault(label, size) != size:
                raise ShapeMismatch(
                    f"einsum equation {equation!r}: operand {place} of shape {list(shape)} has the "
                    f"sizes {own[label]} and {size} along axes {label!r}"
                )
            known = sizes.setdefault(label, size)
            if known != size and 1 not in (known, size):
                raise ShapeMismatch(
                    f"einsum equation {equation!r}: axis {label!r} has the sizes {known} and "
                    f"{size} in shapes {', '.join(str(list(shape)) for shape in shapes)}"
                )
            if known == 1:
                sizes[label] = size
    return sizes


def _explicit_output(equation: str, right: str, broadcast: str, sizes: dict[str, int]) -> str:
    if broadcast and _ELLIPSIS not in right:
        raise UsageError(
            f"einsum equation {equation!r}: the ellipsis stands for {len(broadcast)} axes, so the "
            "result must have an ellipsis too"
        )
    output = right.replace(_ELLIPSIS, broadcast)
    for label in output:
        if label not in sizes:
            raise UsageError(f"einsum equation {equation!r}: no operand has the axis {label!r}")
        if output.count(label) > 1:
            raise UsageError(
                f"einsum equation {equation!r}: the result has the axis {label!r} twice"
            )
    return output


def _steps(
    inputs: tuple[str, ...], output: str, shapes: Sequence[Shape], sizes: dict[str, int]
) -> tuple[tuple[int, ...], ...]:
    count = len(inputs)
    if count <= 2 or not math.prod(sizes.values()):
        # NumPy's cost model divides by sizes; without elements, any order is as good.
        return (tuple(range(count)),)
    # Views of one element: only their shapes are used.
    arrays = [np.broadcast_to(np.empty(()), shape) for shape in shapes]
    path, _ = np.einsum_path(f"{','.join(inputs)}->{output}", *arrays, optimize="greedy")
    return tuple([tuple(places) for places in path[1:]])
