"""Names of tensors in the surroundings of a function, for error messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from burn_remote.functions.tensor import Tensor
from burn_remote.runner.interface import TensorHandle

__all__ = ["name_in"]


def name_in(function: Callable[..., Any], handle: TensorHandle) -> str:
    """Return the name under which a function sees a tensor, or its shape and dtype."""
    for name, value in _surroundings(function):
        if isinstance(value, Tensor) and value.handle.id == handle.id:
            return f"{name} ({handle.spec})"
    return f"a {handle.spec}"


def _surroundings(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the variables of a function that are not its own, and their attributes."""
    try:
        known = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):  # not a Python function
        return
    variables = {**known.globals, **known.nonlocals}
    yield from variables.items()
    for name, value in variables.items():
        for attribute, member in getattr(value, "__dict__", {}).items():
            yield f"{name}.{attribute}", member
