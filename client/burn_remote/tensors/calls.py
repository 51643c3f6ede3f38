"""What is said of a call that a function cannot take, for what it was given?

NumPy, PyTorch and JAX name arguments otherwise, and take arrays where a tensor on a device is
needed. Who comes from there learns it from the error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from burn_remote.runner import TensorHandle
from burn_remote.tensors.other_names import KEYWORDS, KEYWORDS_THERE, PLACES
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch

__all__ = ["explained", "no_tensor"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Parameters with these annotations take tensors; the second kind several of them.
_TENSOR: Final = frozenset({"Tensor", "Tensor | None"})
_TENSORS: Final = frozenset({"Iterable[Tensor]"})


class _Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


def explained(function: Function) -> Function:
    """Have a function say what to write instead where Python would only say what failed.

    Calls that it cannot take raise ``ArgumentMismatch``.
    """

    # A call that it takes costs 0.09 µs more, with keywords 0.14 to 0.22 (2026-11-21, 2 cores,
    # Python 3.11.7; on a busier machine 0.23 and 0.49), and those that it makes cost it again.
    # Measured by this with "g(1)" and "g(1, axis=1)", less the same with f:
    # python -m timeit -s "from burn_remote.tensors.calls import explained" \
    #     -s "f = lambda x, axis=0: x; g = explained(f)" "g(1)"
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except DTypeMismatch:  # a ``TypeError`` that says what is wrong
            raise
        except (AttributeError, TypeError):
            text = _explanation(_Call(function, arguments, options))
            if text is None:
                raise
            raise ArgumentMismatch(f"{function.__qualname__}: {text}") from None

    return cast("Function", called)


def no_tensor(name: str, value: object) -> str:
    """Return what is said of a value that is given where a tensor belongs."""
    seen = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return (
        f"{name} is of type {seen}, not a tensor; "
        "burn_remote.tensor(data, device=…) makes one of numbers"
    )


def _explanation(call: _Call) -> str | None:
    signature = inspect.signature(call.function)
    for keyword in call.options:
        if keyword not in signature.parameters:
            return _keyword(keyword, signature)
    try:
        bound = signature.bind(*call.arguments, **call.options)
    except TypeError:
        return _positions(call, signature)
    for parameter in signature.parameters.values():
        value = bound.arguments.get(parameter.name)
        for name, one in _listed(parameter, value):
            if not isinstance(getattr(one, "handle", None), TensorHandle):
                return no_tensor(name, one)
    return None


def _keyword(keyword: str, signature: inspect.Signature) -> str | None:
    for typed, here, remark in KEYWORDS_THERE:
        parameter = signature.parameters.get(here)
        if typed == keyword and parameter is not None:
            named = parameter.kind is not parameter.POSITIONAL_ONLY
            written = f"{here}=" if named else f"{here}, without a keyword"
            return f"it has no argument {keyword}=; here: {written}{remark}"
    sentence = KEYWORDS.get(keyword)
    return None if sentence is None else f"it has no argument {keyword}=; here: {sentence}"


def _positions(call: _Call, signature: inspect.Signature) -> str | None:
    """Explain that there are more arguments than places, unless something else is wrong."""
    parameters = signature.parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if takes_any_number or len(call.arguments) <= len(places):
        return None
    taken = (
        f"it takes {', '.join(p.name for p in places)} by place, {len(call.arguments)} are given"
    )
    written = PLACES.get(call.function.__name__)
    if written is not None:
        return f"{taken}; write {written}"
    named = [f"{p.name}=" for p in parameters if p.kind is p.KEYWORD_ONLY]
    return f"{taken}; by name: {', '.join(named)}" if named else None


def _listed(parameter: inspect.Parameter, value: Any) -> list[tuple[str, Any]]:
    """Return each value that a parameter's annotation calls a tensor, with its name."""
    name, annotation = parameter.name, parameter.annotation
    several = annotation in _TENSORS or parameter.kind is parameter.VAR_POSITIONAL
    if annotation not in _TENSORS | _TENSOR or (value is None and annotation == "Tensor | None"):
        return []
    if several and isinstance(value, list | tuple):
        return [(f"{name}[{place}]", one) for place, one in enumerate(value)]
    # Others may bring tensors, and what an iterator brought is gone. An array brings none.
    if several and isinstance(value, Iterable) and not isinstance(value, np.ndarray):
        return []
    return [(name, value)]
