"""Functions whose intermediate tensors are computed again in the backward pass."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast, final

from burn_remote.arguments.containers import rebuilt
from burn_remote.autodiff.backward_pass import BackwardPass
from burn_remote.autodiff.grad_mode import (
    check_function,
    enable_grad,
    is_recording,
    refusing_random_numbers,
)
from burn_remote.autodiff.nodes import Node, Source, TrackedHandle, Visit, plain, saved_handle
from burn_remote.autodiff.saved_containers import restored, saved_tree, tensors_in
from burn_remote.autodiff.tracking import record, relabeled, track
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["Recomputation", "captured_variables", "checkpoint"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Types that are compared by value: two objects may be the same number.
_NUMBERS: Final = frozenset({int, float})


@explained
def checkpoint(function: Function, /) -> Function:
    """Return the same function, whose intermediate tensors are not kept for the backward pass.

    Only its arguments are kept, and the backward pass calls it again. Use it as a decorator, or as
    ``checkpoint(block)(x)``. Arguments and results are tensors and containers of them. Raises
    ``UsageError`` if the function draws random numbers (which would differ in the second call), if
    it uses a tracked tensor that is not an argument, or if a variable that it takes from a closure
    or the module has another value in the second call. Attributes are not compared. Raises
    ``ArgumentMismatch`` for anything but a function.
    """
    check_function("checkpoint", function)
    name = getattr(function, "__qualname__", repr(function))

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        inputs = tensors_in((arguments, options))
        is_tracked = any(type(one.handle) is TrackedHandle for one in inputs)
        if not is_tracked or not is_recording():
            return function(*arguments, **options)
        kind = type(inputs[0])
        captured = captured_variables(function)
        saved: list[TensorHandle] = []
        call = saved_tree((arguments, options), saved)
        given, keywords = restored(call, [kind(handle) for handle in saved])
        with refusing_random_numbers(f"{name}, which checkpoint calls again,"):
            result = function(*given, **keywords)
        outputs = [one.handle for one in tensors_in(result)]
        for handle in outputs:
            if type(handle) is TrackedHandle:
                raise UsageError(
                    f"{name}, which checkpoint calls again, uses a tracked tensor that is not one "
                    "of its arguments; pass it as an argument"
                )
        backward = Recomputation(name, function, captured, call, saved, outputs)
        made = iter(record(backward, [one.handle for one in inputs], tuple(saved), outputs))
        return rebuilt(
            result,
            lambda leaf: kind(next(made)) if hasattr(leaf, "handle") else leaf,
        )

    return cast("Function", called)


@final
class Recomputation:
    """The backward function of one call of a function that the backward pass calls again.

    The saved tensors of its node begin with the arguments of the call.
    """

    __slots__ = ("_call", "_captured", "_function", "_name", "_outputs", "output_count", "specs")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        captured: dict[str, Any],
        call: Any,
        inputs: Sequence[TensorHandle],
        outputs: Sequence[TensorHandle],
    ) -> None:
        self._name = name
        self._function = function
        self._captured = captured
        self._call = call
        self.specs: Final[tuple[TensorSpec, ...]] = tuple([one.spec for one in inputs])
        self._outputs = tuple([one.spec for one in outputs])
        self.output_count: Final = len(outputs)

    def describe(self) -> str:
        """Return the name of the function, with the shapes of its tensors."""
        inputs = ", ".join(map(str, self.specs))
        return f"{self._name}({inputs} -> {', '.join(map(str, self._outputs))})"

    def _check_captured(self) -> None:
        """Raise ``UsageError`` if a captured variable is not what it was in the first call."""
        now = captured_variables(self._function)
        for name, before in self._captured.items():
            if not _is_same(now.get(name), before):
                raise UsageError(
                    f"{self._name}, which checkpoint calls again, uses the variable {name!r}, "
                    "which was assigned since the first call; pass its value as an argument"
                )

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Return the gradient of each input; see ``BackwardFunction.apply``."""
        grads, kind, is_wanted, is_recorded = visit
        self._check_captured()
        sources: list[Source | None] = []
        inputs: list[Any] = []
        for place, handle in enumerate((node.saved or ())[: len(self.specs)]):
            if not is_wanted[place]:
                inputs.append(kind(saved_handle(handle, place, node, is_recorded)))
                sources.append(None)
                continue
            outer = saved_handle(handle, place, node, is_recorded)
            inner = relabeled(outer) if type(outer) is TrackedHandle else track(plain(outer))
            inputs.append(kind(inner))
            sources.append(inner.source)
        given, keywords = restored(self._call, inputs)
        with enable_grad():
            result = self._function(*given, **keywords)
        roots, seeds = [], []
        for one, gradient in zip(tensors_in(result), grads, strict=True):
            if gradient is not None and type(one.handle) is TrackedHandle:
                roots.append(one.handle)
                seeds.append(gradient)
        if not roots:
            return [None] * len(inputs)
        wanted = [source for source in sources if source is not None]
        backward_pass = BackwardPass(roots, wanted=wanted)
        backward_pass.run(seeds, retains=is_recorded, is_recorded=is_recorded)
        return [None if source is None else backward_pass.gradient_of(source) for source in sources]


def captured_variables(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables that a function takes from its closure and its module, by name.

    Attributes, and the variables of functions that it calls, are not included. The guards of
    compiled functions include both, but would refuse functions that count or log something. Their
    search takes 30 times as long: 34 µs, of the 600 µs that a transformer block takes.
    """
    found: Any = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(found):
        return {}
    code, known = found.__code__, found.__globals__
    captured = {name: known[name] for name in code.co_names if name in known}
    for name, cell in zip(code.co_freevars, found.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            captured[name] = cell.cell_contents
    return captured


def _is_same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    return type(now) in _NUMBERS and type(now) is type(before) and bool(now == before)
