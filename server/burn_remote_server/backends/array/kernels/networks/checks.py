"""Checks of the inputs of module operations.

Each error names the operation and the argument, what was seen and what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch

__all__ = [
    "check_axis",
    "check_groups",
    "check_integers",
    "check_positive",
    "check_range",
    "check_rank",
    "check_shape",
    "refuse",
]


def refuse(operation: str, argument: str, seen: object, expected: str) -> ShapeMismatch:
    """Return a ``ShapeMismatch`` for an argument."""
    shown = list(seen) if isinstance(seen, tuple) else seen
    return ShapeMismatch(f"{operation}: {argument} is {shown}, expected {expected}")


def check_rank(operation: str, argument: str, array: Any, rank: int, axes: str) -> None:
    """Raise ``ShapeMismatch`` unless ``array`` has ``rank`` axes; ``axes`` describes them."""
    if array.ndim != rank:
        raise refuse(operation, f"shape of {argument}", array.shape, f"{rank} axes {axes}")


def check_shape(
    operation: str, argument: str, array: Any, expected: Sequence[int], why: str = ""
) -> None:
    """Raise ``ShapeMismatch`` unless ``array`` has exactly the shape ``expected``."""
    if array.shape != tuple(expected):
        reason = f" ({why})" if why else ""
        raise refuse(operation, f"shape of {argument}", array.shape, f"{list(expected)}{reason}")


def check_positive(operation: str, argument: str, values: Sequence[int]) -> None:
    """Raise ``ShapeMismatch`` unless every one of ``values`` is at least 1."""
    if min(values, default=1) < 1:
        raise refuse(operation, argument, tuple(values), "values of at least 1")


def check_groups(operation: str, argument: str, groups: int, **channels: int) -> None:
    """Raise ``ShapeMismatch`` unless ``groups`` divides each of ``channels``."""
    for name, count in channels.items():
        if groups < 1 or count % groups:
            raise refuse(operation, argument, groups, f"a divisor of {name}={count}")


def check_axis(operation: str, axis: int, array: Any) -> None:
    """Raise ``ShapeMismatch`` unless ``axis`` is a valid axis of ``array``."""
    if not 0 <= axis < array.ndim:
        raise refuse(operation, "dim", axis, f"one of the {array.ndim} axes of {list(array.shape)}")


def check_integers(operation: str, argument: str, array: Any) -> None:
    """Raise ``DTypeMismatch`` unless the elements of ``array`` are integers."""
    if array.dtype.kind not in "iu":
        raise DTypeMismatch(f"{operation}: {argument} has dtype {array.dtype}, expected integers")


def check_range(operation: str, argument: str, array: Any, low: int, high: int) -> None:
    """Raise unless the elements of ``array`` are integers in ``low..high`` (``high`` excluded)."""
    check_integers(operation, argument, array)
    if array.size:
        seen_low, seen_high = int(array.min()), int(array.max())
        if seen_low < low or seen_high >= high:
            worst = seen_low if seen_low < low else seen_high
            raise refuse(operation, f"a value of {argument}", worst, f"in {low}..{high - 1}")
