"""Functions whose gradients the program defines, instead of the rules of their operations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, final

from burn_remote.arguments.containers import is_container, mapped, rebuilt
from burn_remote.autodiff.grad_mode import (
    check_function,
    enable_grad,
    is_recording,
    refusing_random_numbers,
)
from burn_remote.autodiff.nodes import Node, TrackedHandle, Visit, plain, saved_handle
from burn_remote.autodiff.saved_containers import Saved, restored, saved_tree, tensors_in
from burn_remote.autodiff.tracking import record
from burn_remote.dispatch.operators import filled
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol.errors import ArgumentMismatch, UsageError, shown
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["custom_vjp", "is_recorded"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Arguments of these types hold no tensors.
_ATOMS: Final = frozenset({bool, int, float, str, type(None)})


def custom_vjp(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[..., Any]
) -> Callable[[Function], Function]:
    """Decorate a function of tensors: define its gradient, as JAX's ``custom_vjp`` does.

    ``forward`` takes the arguments of the function and returns its result, a tensor or a tuple of
    tensors, and residuals: what ``backward`` needs, in any containers. ``backward`` takes the
    residuals and the gradient of the result, which is a tuple if the result is one. It returns a
    tuple with the gradient of each argument by position, or the gradient itself if there is one
    argument. A gradient is a tensor or ``None``; that of an argument which contains tensors has the
    same containers. Tensors that are passed by keyword count as positional arguments::

        def forward(x):
            y = br.exp(x)
            return br.log(1.0 + y), y

        def backward(y, grad):
            return grad * (y / (1.0 + y))

        @br.custom_vjp(forward, backward)
        def softplus(x):
            return br.log(1.0 + br.exp(x))

    ``backward`` consists of operations on tensors, so gradients of gradients follow from it. If no
    argument is tracked, only the function itself is called. If ``forward`` uses a tracked tensor
    that is not an argument, the call raises ``UsageError``. Raises ``ArgumentMismatch`` for
    anything but functions.
    """
    check_function("custom_vjp", forward)
    check_function("custom_vjp", backward)

    def decorate(function: Function) -> Function:
        check_function("custom_vjp", function)
        name = getattr(function, "__qualname__", repr(function))

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            if not is_recorded(arguments, options):
                return function(*arguments, **options)
            if tensors_in(options):
                bound = inspect.signature(function).bind(*arguments, **options)
                bound.apply_defaults()
                arguments, options = bound.args, bound.kwargs
            call = _Call(name, forward, backward, arguments, options)
            return call.issue()

        return cast("Function", called)

    return decorate


def is_recorded(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether this thread records, and an argument is or contains a tracked tensor."""
    for one in (*arguments, *options.values()) if options else arguments:
        handle = getattr(one, "handle", None)
        if type(handle) is TrackedHandle:
            return is_recording()
        if (
            handle is None
            and type(one) not in _ATOMS
            and is_container(one)
            and any(type(held.handle) is TrackedHandle for held in tensors_in(one))
        ):
            return is_recording()
    return False


@final
class _Call:
    """One call of a function with a custom gradient, and the backward function of its node."""

    __slots__ = (
        "_arguments", "_backward", "_forward", "_name", "_options", "_outputs", "_places",
        "_residuals", "_saves_inputs", "output_count", "specs",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        forward: Callable[..., tuple[Any, Any]],
        backward: Callable[..., Any],
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._name = name
        self._forward = forward
        self._backward = backward
        self._arguments: Any = tuple(arguments)
        self._options: Final = options

    def issue(self) -> Any:
        """Call ``forward`` on plain tensors, record the call, and return its result."""
        inputs: list[TensorHandle] = []
        tensors = tensors_in(self._arguments)
        kind = type(tensors[0])
        given = rebuilt(
            self._arguments,
            lambda leaf: leaf if _handle(leaf) is None else kind(plain(leaf.handle)),
        )
        answer = self._forward(*given, **self._options)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ArgumentMismatch(
                f"the forward function of {self._name} must return its result and the residuals, "
                f"not {shown(answer)}"
            )
        result, residuals = answer
        results = result if isinstance(result, tuple) else (result,)
        self._arguments = saved_tree(self._arguments, inputs)
        self.specs: tuple[TensorSpec, ...] = tuple([handle.spec for handle in inputs])
        outputs = [self._checked(one) for one in results]
        self.output_count: int = len(outputs)
        self._outputs = tuple([handle.spec for handle in outputs])
        saved: list[TensorHandle] = []
        for one in tensors_in(residuals):
            self._checked(one)
        self._residuals = saved_tree(residuals, saved)
        # The position of each residual among the inputs and outputs; -1 if it is neither.
        known = {id(handle): place for place, handle in reversed([*enumerate([*inputs, *outputs])])}
        self._places = tuple([known.get(id(handle), -1) for handle in saved])
        # Gradients of gradients need tracked residuals. Those that are neither inputs nor outputs
        # are computed again from the inputs.
        self._saves_inputs = -1 in self._places
        if self._saves_inputs:
            saved += inputs
        handles = record(self, [one.handle for one in tensors], tuple(saved), outputs)
        made = tuple([kind(handle) for handle in handles])
        return made if isinstance(result, tuple) else made[0]

    def describe(self) -> str:
        """Return the name of the function, with the shapes of its tensors."""
        inputs = ", ".join(map(str, self.specs))
        return f"{self._name}({inputs} -> {', '.join(map(str, self._outputs))})"

    def apply(self, node: Node, visit: Visit) -> Sequence[Any]:
        """Return the gradient of each input; see ``BackwardFunction.apply``."""
        grads, kind, _, is_recorded = visit
        residuals = self._restored(node.saved or (), node, kind, is_recorded)
        like = next(one for one in grads if one is not None)
        arrived = [
            kind(filled(like.handle.client, spec, 0.0)) if one is None else one
            for one, spec in zip(grads, self._outputs, strict=True)
        ]
        answer = self._backward(residuals, tuple(arrived) if len(arrived) > 1 else arrived[0])
        count = len(self._arguments)
        if count == 1 and not isinstance(answer, tuple | list):
            answer = (answer,)
        if not isinstance(answer, tuple | list) or len(answer) != count:
            raise ArgumentMismatch(
                f"the backward function of {self._name} must return a gradient or None for each of "
                f"{count} arguments, not {shown(answer)}"
            )
        found: list[Any] = []

        def take(argument: Any, gradient: Any) -> None:
            if type(argument) is not Saved:
                return
            if gradient is not None and _handle(gradient) is None:
                raise ArgumentMismatch(
                    f"a gradient that the backward function of {self._name} returns must be a "
                    f"tensor or None, not {shown(gradient)}"
                )
            found.append(gradient)

        for argument, gradient in zip(self._arguments, answer, strict=True):
            if gradient is None:
                found += [None] * _count(argument)
            else:
                mapped(take, argument, gradient)
        return found

    def _restored(
        self, saved: tuple[TensorHandle, ...], node: Node, kind: type[Any], is_recorded: bool
    ) -> Any:
        """Return the residuals; tracked, if the backward pass is recorded."""
        count = len(self._places)
        if is_recorded and self._saves_inputs:
            inputs = [
                kind(saved_handle(handle, place, node, True))
                for place, handle in enumerate(saved[count:])
            ]
            given = restored(self._arguments, inputs)
            name = f"the forward function of {self._name}, which gradients of gradients call again,"
            with enable_grad(), refusing_random_numbers(name):
                return self._forward(*given, **self._options)[1]
        tensors = [
            kind(saved_handle(handle, place, node, is_recorded))
            for handle, place in zip(saved[:count], self._places, strict=True)
        ]
        return restored(self._residuals, tensors)

    def _checked(self, tensor: Any) -> TensorHandle:
        handle = _handle(tensor)
        if handle is None:
            raise ArgumentMismatch(
                f"the result of {self._name} must be a tensor or a tuple of tensors, not "
                f"{shown(tensor)}"
            )
        if type(handle) is TrackedHandle:
            raise UsageError(
                f"{self._name} has a custom gradient and uses a tracked tensor that is not one of "
                "its arguments; pass it as an argument, or use x.detach()"
            )
        return handle


def _count(argument: Any) -> int:
    """Return the number of ``Saved`` placeholders in an argument."""
    found: list[Any] = []
    rebuilt(argument, found.append)
    return sum(type(one) is Saved for one in found)


def _handle(value: Any) -> TensorHandle | None:
    handle = getattr(value, "handle", None)
    return handle if isinstance(handle, TensorHandle) else None
