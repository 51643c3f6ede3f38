"""Error messages for invalid calls.

They name the equivalent of another library's keyword or of a misspelled one, the correct form of a
call with too many positional arguments, and the argument that is not a tensor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from burn_remote.diagnostics.advice import similar_name
from burn_remote.diagnostics.foreign_names import (
    AMBIGUOUS,
    AMBIGUOUS_KEYWORDS,
    CLARIFYING_KEYWORDS,
    GATHERED,
    KEYWORDS,
    POSITIONAL,
    RENAMED_KEYWORDS,
)
from burn_remote.diagnostics.tracebacks import shorten
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    ConnectionFailed,
    DTypeMismatch,
    HandshakeRefused,
    ShapeMismatch,
    UsageError,
    VersionMismatch,
    type_name,
)

__all__ = ["explained", "no_tensor"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Annotations of parameters that take one tensor, and of those that take several.
_TENSOR: Final = frozenset({"Tensor", "Tensor | None"})
_TENSORS: Final = frozenset({"Iterable[Tensor]"})

_CALLED: Final = "raised by the call of "


class _Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


def explained(function: Function) -> Function:
    """Decorate a public function: an invalid call raises ``ArgumentMismatch`` with advice.

    The call is examined only after it has raised ``TypeError`` or ``AttributeError``. A
    ``DTypeMismatch`` or ``ShapeMismatch`` gets a note that names the function.
    """

    # Overhead of a valid call: 0.09 µs, with keywords 0.14 to 0.22 µs (2026-11-21, 2 cores,
    # Python 3.11.7; on a busier machine 0.23 and 0.49). Nested decorated calls pay it again.
    # Measured with "g(1)" and "g(1, axis=1)", minus the same call of f:
    # python -m timeit -s "from burn_remote.diagnostics.invalid_calls import explained" \
    #     -s "f = lambda x, axis=0: x; g = explained(f)" "g(1)"
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (DTypeMismatch, ShapeMismatch) as error:
            _name_function(error, function)
            shorten(error)
            raise
        except (ConnectionFailed, HandshakeRefused, VersionMismatch) as error:
            # The error's text says what to check. The frames of opening a device would bury it.
            raise error.with_traceback(None) from None
        except (AttributeError, TypeError) as error:
            # Only a call that Python could not bind is made again, so nothing is issued twice.
            accepted = _accepted(_Call(function, arguments, options))
            if accepted is not None:
                return called(*accepted.arguments, **accepted.options)
            text = _explanation(_Call(function, arguments, options))
            if text is None:
                shorten(error)
                raise
            raise ArgumentMismatch(f"{function.__qualname__}: {text}") from None
        except UsageError as error:
            shorten(error)
            raise

    return cast("Function", called)


# Foreign keywords that mean the same as ours: those of the table without a remark.
_SAME: Final = [(foreign, ours) for foreign, ours, remark in RENAMED_KEYWORDS if not remark]

_BY_PLACE: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def _accepted(call: _Call) -> _Call | None:
    """Return a call with other libraries' keywords, or sizes without a tuple, in our form.

    Returns ``None`` if Python could bind the call, or if its meaning is not certain.
    """
    signature = _signature(call.function)
    parameters = signature.parameters
    options: dict[str, Any] = {}
    for keyword, value in call.options.items():
        ours = keyword
        if keyword not in parameters:
            if _is_ambiguous(keyword, call):
                return None
            ours = next((o for f, o in _SAME if f == keyword and o in parameters), keyword)
        if ours not in parameters or ours in options:
            return None
        options[ours] = value
    arguments = list(call.arguments)
    by_place = [p for p in parameters.values() if p.kind in _BY_PLACE]
    if len(arguments) > len(by_place):
        gathered = _gathered(call.function.__name__, arguments)
        if gathered is None:
            return None
        arguments = gathered
    elif options == dict(call.options):
        return None  # nothing to change, so this is another error
    for parameter in by_place[len(arguments) :]:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in options:
            arguments.append(options.pop(parameter.name))
    return _Call(call.function, tuple(arguments), options)


def _is_ambiguous(keyword: str, call: _Call) -> bool:
    """Return whether a keyword suggests that the program expects what PyTorch would return."""
    return (
        keyword in AMBIGUOUS_KEYWORDS
        and call.function.__name__ in AMBIGUOUS
        and CLARIFYING_KEYWORDS.isdisjoint(call.options)
    )


def _gathered(name: str, arguments: list[Any]) -> list[Any] | None:
    """Put surplus integers into one tuple: ``zeros(2, 3)``, ``x.flip(0, 1)``."""
    first = GATHERED.get(name)
    if first is None or not all(map(_is_size, arguments[first:])):
        return None
    return [*arguments[:first], tuple(arguments[first:])]


def _is_size(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def no_tensor(name: str, value: object) -> str:
    """Return the error message for a value passed where a tensor is required."""
    way = "; burn_remote.tensor(data, device=…) makes a tensor of it" if _is_data(value) else ""
    return f"{name} is of type {type_name(value)}, not a tensor{way}"


def _is_data(value: object) -> bool:
    """Return whether ``burn_remote.tensor`` may make a tensor of a value."""
    if isinstance(value, list | tuple | int | float | complex | np.generic):
        return True
    return any(hasattr(type(value), name) for name in ("__array__", "__dlpack__"))


def _name_function(error: BaseException, function: Callable[..., Any]) -> None:
    """Add a note with the function that the program called: the error names only an operation.

    Of nested functions, the outermost adds its note last and replaces the notes of the others.
    """
    parameters = ", ".join(inspect.signature(function).parameters)
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_CALLED)]
    error.__notes__ = [*notes, f"{_CALLED}{function.__qualname__}({parameters})"]


def _explanation(call: _Call) -> str | None:
    signature = _signature(call.function)
    for keyword in call.options:
        if keyword not in signature.parameters:
            if _is_ambiguous(keyword, call):
                return f"with {keyword}=, it {AMBIGUOUS[call.function.__name__]}"
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
    for foreign, ours, remark in RENAMED_KEYWORDS:
        parameter = signature.parameters.get(ours)
        if foreign == keyword and parameter is not None:
            named = parameter.kind is not parameter.POSITIONAL_ONLY
            written = f"{ours}=" if named else f"{ours}, without a keyword"
            return f"it has no argument {keyword}=; in burn_remote: {written}{remark}"
    if keyword in KEYWORDS:
        return f"it has no argument {keyword}=; in burn_remote: {KEYWORDS[keyword]}"
    keywords = [p.name for p in signature.parameters.values() if p.kind is not p.POSITIONAL_ONLY]
    similar = similar_name(keyword, keywords)
    return None if similar is None else f"it has no argument {keyword}=; did you mean {similar}=?"


def _positions(call: _Call, signature: inspect.Signature) -> str | None:
    """Explain too many positional arguments; return ``None`` for any other ``TypeError``."""
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    bound = len(signature.parameters) - len(parameters)
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    given = len(call.arguments) - bound
    if takes_any_number or given <= len(places):
        return None
    taken = (
        f"it takes {', '.join(p.name for p in places) or 'nothing'} by position, "
        f"but {given} arguments are given"
    )
    function = call.function
    written = POSITIONAL.get(function.__qualname__) or POSITIONAL.get(function.__name__)
    if written is not None:
        return f"{taken}; write {written}"
    named = [f"{p.name}=" for p in parameters if p.kind is p.KEYWORD_ONLY]
    return f"{taken}; by keyword: {', '.join(named)}" if named else None


def _listed(parameter: inspect.Parameter, value: Any) -> list[tuple[str, Any]]:
    """Return name and value of each argument that, by its annotation, must be a tensor."""
    name, annotation = parameter.name, parameter.annotation
    several = annotation in _TENSORS or parameter.kind is parameter.VAR_POSITIONAL
    if annotation not in _TENSORS | _TENSOR or (value is None and annotation == "Tensor | None"):
        return []
    if several and isinstance(value, list | tuple):
        return [(f"{name}[{place}]", one) for place, one in enumerate(value)]
    # Other iterables may yield tensors; an exhausted iterator cannot be inspected. Iterating over
    # an array never yields tensors.
    if several and isinstance(value, Iterable) and not isinstance(value, np.ndarray):
        return []
    return [(name, value)]
