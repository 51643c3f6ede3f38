"""Gradients of functions, as in JAX: ``grad``, ``value_and_grad``, ``vjp`` and ``jvp``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from burn_remote.arguments.containers import leaves, mapped, rebuilt
from burn_remote.autodiff.backward_pass import BackwardPass, sources_of
from burn_remote.autodiff.grad_mode import enable_grad, is_recording
from burn_remote.autodiff.nodes import TrackedHandle
from burn_remote.autodiff.saved_containers import tensors_in
from burn_remote.autodiff.tracking import relabeled, track
from burn_remote.autodiff.uniform_gradients import Uniform, one_for
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import filled
from burn_remote.functions.default_device import default_device
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.functions.tracked_tensors import checked_seed
from burn_remote.runner.interface import RunnerClient
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ArgumentMismatch, UsageError, shown
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["grad", "jvp", "value_and_grad", "vjp"]


@explained
def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the gradient of ``function``; see ``value_and_grad``.

    With ``has_aux``, it returns a pair: the gradient, and the second value that ``function``
    returned.
    """
    differentiated = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def gradient(*arguments: Any, **options: Any) -> Any:
        value, found = differentiated(*arguments, **options)
        return (found, value[1]) if has_aux else found

    return gradient


@explained
def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the result of ``function`` and its gradient.

    ``function`` must return a floating-point tensor of one element. With ``has_aux``, it must
    return a pair of this tensor and any other value. ``argnums`` is the position of an argument, or
    a sequence of positions; the gradients with respect to these arguments are returned. Such an
    argument is a tensor, or nested tuples, lists, dictionaries and data classes of tensors, which
    need not be tracked. Its gradient has the same structure, with ``None`` in place of anything but
    floating-point and complex tensors, and zeros for tensors that the result does not depend on. If
    it contains floats and no tensor, the floats become 0-d tensors, with the dtype and device of
    the call's first floating-point tensor. The returned function does not wait for the server. It
    can be called inside ``compile``, and inside other differentiated functions.

    Raises ``ArgumentMismatch`` and ``UsageError`` for other results and arguments, and
    ``UsageError`` if an operation has no gradient.
    """
    if not callable(function):
        raise ArgumentMismatch(
            f"grad and value_and_grad take a function, not {shown(function)}; "
            "burn_remote.autograd.grad(loss, x) takes a result"
        )
    places = _places(argnums)

    @functools.wraps(function)
    def differentiated(*arguments: Any, **options: Any) -> Any:
        count = len(arguments)
        for place in places:
            if not -count <= place < count:
                raise ArgumentMismatch(
                    f"argnums names position {place}, counted from 0, but the call has {count} "
                    "positional arguments"
                )
        given = _with_tensors(arguments, places)
        tracked: list[Tensor] = []
        for place in places:
            given[place] = _tracked(given[place], tracked, f"argument {place}")
        with enable_grad():
            result = function(*given, **options)
        value, aux = _split(result, has_aux)
        _check_scalar(value)
        pullback = _Pullback([value], tracked)
        found = pullback.run([one_for(Tensor, value.handle)], retains=False)
        images = iter(found)
        answers = [_images(given[place], images) for place in places]
        value, aux = pullback.lifted((value, aux))
        answer = answers[0] if isinstance(argnums, int) else tuple(answers)
        return ((value, aux), answer) if has_aux else (value, answer)

    return differentiated


@explained
def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return ``function(*primals)`` and a function that multiplies by its Jacobian from the left.

    The second function takes the gradient of the result, in the same containers, and returns a
    tuple with the gradient of each primal, as ``value_and_grad`` does; it may be called several
    times. With ``has_aux``, ``function`` returns a pair, whose second member is returned as a third
    value.
    """
    tracked: list[Tensor] = []
    made = _with_tensors(primals, range(len(primals)))
    given = [_tracked(one, tracked, f"primal {place}") for place, one in enumerate(made)]
    with enable_grad():
        result = function(*given)
    value, aux = _split(result, has_aux)
    outputs = _outputs(value)
    pullback = _Pullback(outputs, tracked)

    def multiply(cotangent: Any) -> tuple[Any, ...]:
        """Return the gradients of the primals for a gradient of the result."""
        seeds = _matching(value, cotangent, "the cotangent")
        images = iter(pullback.run(seeds, retains=True))
        return tuple([_images(one, images) for one in given])

    shown, more = pullback.lifted((value, aux))
    return (shown, multiply, more) if has_aux else (shown, multiply)


@explained
def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return ``function(*primals)`` and its Jacobian multiplied from the right with ``tangents``.

    ``tangents`` has a tensor for each tensor of ``primals``, in the same containers. The product
    has the containers of the result. It is computed by two backward passes (the second one through
    the first, which is linear in its gradient), so operations without second gradients raise
    ``UsageError``. Raises ``ArgumentMismatch`` for primals or tangents that are not sequences.
    """
    _check_tuples(primals, tangents)
    tracked: list[Tensor] = []
    primals = _with_tensors(primals, range(len(primals)))
    tangents = _with_tensors(tangents, range(len(tangents)), like=tensors_in(primals))
    given = [_tracked(one, tracked, f"primal {place}") for place, one in enumerate(primals)]
    directions = _matching([*primals], [*tangents], "the tangent")
    with enable_grad():
        value = function(*given)
    outputs = _outputs(value)
    pullback = _Pullback(outputs, tracked)
    # The first pass is linear in these, so their values do not matter.
    dummies = [Tensor(track(_zeros(one).handle)) for one in outputs]
    first = pullback.run(dummies, retains=True, is_recorded=True)
    pairs = [
        (found.handle, direction)
        for found, direction in zip(first, directions, strict=True)
        if isinstance(found.handle, TrackedHandle)
    ]
    sources = sources_of([one.handle for one in dummies])
    is_recorded = pullback.is_recorded_with(directions)
    found: list[Tensor | None] = [None] * len(dummies)
    if pairs:
        backward_pass = BackwardPass([one for one, _ in pairs], wanted=sources)
        seeds = [direction for _, direction in pairs]
        backward_pass.run(seeds, retains=is_recorded, is_recorded=is_recorded)
        found = [backward_pass.gradient_of(source) for source in sources]
    answers = iter(
        [_zeros(x) if one is None else one for one, x in zip(found, outputs, strict=True)]
    )
    return pullback.lifted(value), rebuilt(
        value, lambda leaf: next(answers) if is_tensor(leaf) else leaf
    )


class _Pullback:
    """The backward pass from the results of a function to its tracked arguments.

    ``is_outer``: the results depend on other tracked tensors too, so their gradients are tracked.
    """

    def __init__(self, outputs: Sequence[Tensor], tracked: Sequence[Tensor]) -> None:
        self._outputs = outputs
        self._tracked = tracked
        self._roots = [handle for one in outputs if isinstance(handle := one.handle, TrackedHandle)]
        self._sources = sources_of([one.handle for one in tracked])
        self._backward_pass: BackwardPass | None = BackwardPass(self._roots, wanted=self._sources)
        self._own = {*self._sources}
        self._records = is_recording()
        self.is_outer = self._records and self._has_other_leaves(self._backward_pass)

    def run(
        self, seeds: Sequence[Tensor | Uniform], *, retains: bool, is_recorded: bool = False
    ) -> list[Tensor]:
        """Return the gradient of each argument for the gradients of the results."""
        is_recorded = is_recorded or self.is_recorded_with(seeds)
        backward_pass = self._backward_pass or BackwardPass(self._roots, wanted=self._sources)
        self._backward_pass = None
        pairs = zip(self._outputs, seeds, strict=True)
        used = [seed for one, seed in pairs if isinstance(one.handle, TrackedHandle)]
        if used:
            backward_pass.run(used, retains=retains or is_recorded, is_recorded=is_recorded)
        found = [backward_pass.gradient_of(source) for source in self._sources]
        arguments = zip(found, self._tracked, strict=True)
        return [_zeros(x) if one is None else one for one, x in arguments]

    def is_recorded_with(self, seeds: Sequence[Tensor | Uniform]) -> bool:
        """Return whether the gradients for these seeds depend on tracked tensors of the caller."""
        if self.is_outer:
            return True
        # A uniform gradient is a constant, without a handle.
        return is_recording() and any(
            isinstance(getattr(seed, "handle", None), TrackedHandle) for seed in seeds
        )

    def lifted(self, result: Any) -> Any:
        """Return the function's result with its tensors detached from the function's arguments.

        Tensors that depend on other tracked tensors stay tracked.
        """

        def lift(leaf: Any) -> Any:
            if not is_tensor(leaf) or not isinstance(leaf.handle, TrackedHandle):
                return leaf
            is_outer = self.is_outer
            if not any(leaf is one for one in self._outputs):  # an auxiliary result
                backward_pass = BackwardPass([leaf.handle], wanted=self._sources)
                is_outer = self._records and self._has_other_leaves(backward_pass)
            return leaf if is_outer else leaf.detach()

        return rebuilt(result, lift)

    def _has_other_leaves(self, backward_pass: BackwardPass) -> bool:
        return any(leaf not in self._own for leaf in backward_pass.leaves)


def _places(argnums: object) -> tuple[int, ...]:
    """Return the positions that ``argnums`` names; raise ``ArgumentMismatch`` for anything else."""
    places = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(places, Sequence) or not all(isinstance(one, int) for one in places):
        raise ArgumentMismatch(
            f"argnums is the position of an argument or a tuple of positions, not {shown(argnums)}"
        )
    return tuple(places)


def _check_tuples(primals: object, tangents: object) -> None:
    """Raise ``ArgumentMismatch`` unless ``jvp`` got its arguments as sequences."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, Sequence):
            seen = given.handle.spec if is_tensor(given) else shown(given)
            raise ArgumentMismatch(
                f"{name} must be a tuple with one value for each argument of the function, not "
                f"{seen}; write jvp(f, (x,), (v,))"
            )


def _with_tensors(
    arguments: Sequence[Any], places: Sequence[int], like: Sequence[Tensor] = ()
) -> list[Any]:
    """Return the arguments, with 0-d tensors for the floats of those at ``places``.

    An argument that contains a tensor stays as it is. The dtype and device are those of the first
    floating-point tensor of ``like`` and all arguments, else float32 and the default device.
    """
    made = [*arguments]
    for place in places:
        if any(_is_float(one) for one in leaves(made[place])) and not tensors_in(made[place]):
            known = [one for one in (*like, *tensors_in(arguments)) if one.dtype.is_floating]
            client = known[0].handle.client if known else default_device().runners
            spec = TensorSpec((), known[0].dtype if known else F32)
            made[place] = rebuilt(made[place], functools.partial(_converted, client, spec))
    return made


def _converted(client: RunnerClient, spec: TensorSpec, leaf: Any) -> Any:
    return Tensor(filled(client, spec, leaf)) if _is_float(leaf) else leaf


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, float | np.floating)


def _has_gradient(x: Tensor) -> bool:
    return x.dtype.is_floating or x.dtype.is_complex


def _tracked(tree: Any, tracked: list[Tensor], name: str) -> Any:
    """Return containers with tracked floating-point and complex tensors; append these to the list.

    Raises ``ArgumentMismatch`` if there are none.
    """
    count = len(tracked)

    def replaced(leaf: Any) -> Any:
        if not is_tensor(leaf) or not _has_gradient(leaf):
            return leaf
        handle = leaf.handle
        x = Tensor(relabeled(handle) if isinstance(handle, TrackedHandle) else track(handle))
        tracked.append(x)
        return x

    made = rebuilt(tree, replaced)
    if len(tracked) == count:
        seen = ", ".join(str(one.handle.spec) for one in tensors_in(tree)) or shown(tree)
        raise ArgumentMismatch(
            f"{name} has no gradient, because it has no floating-point tensor or number: it is "
            f"{seen}; {_conversion(tree)}"
        )
    return made


def _conversion(tree: Any) -> str:
    """Return the advice for an argument without floating-point tensors."""
    if tensors_in(tree):
        return "convert it with x.astype(burn_remote.float32)"
    if any(isinstance(leaf, np.ndarray) for leaf in leaves(tree)):
        return "burn_remote.tensor(array, device=…) makes a tensor of an array"
    return "containers are tuples, lists, dictionaries and instances of data classes"


def _images(tree: Any, gradients: Any) -> Any:
    """Return containers with gradients instead of tensors, and ``None`` for anything else."""
    return rebuilt(
        tree,
        lambda leaf: next(gradients) if is_tensor(leaf) and _has_gradient(leaf) else None,
    )


def _split(result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentMismatch(
            f"with has_aux=True, a function must return a pair of its result and anything else, "
            f"not {shown(result)}"
        )
    return result


def _outputs(value: Any) -> list[Tensor]:
    """Return the tensors of a result, which must be floating-point or complex.

    Raises ``ArgumentMismatch`` for anything else.
    """
    found = leaves(value)
    for one in found:
        if not is_tensor(one) or not _has_gradient(one):
            seen = one.handle.spec if is_tensor(one) else shown(one)
            raise ArgumentMismatch(
                f"a function that is differentiated must return floating-point tensors, not {seen}"
            )
    return found


def _matching(like: Any, given: Any, name: str) -> list[Tensor]:
    """Return the tensors of ``given``, one for each differentiable tensor of ``like``.

    Raises if the containers differ, or if a tensor of ``given`` does not match its counterpart.
    """
    found: list[Tensor] = []

    def check(leaf: Any, other: Any) -> None:
        if is_tensor(leaf) and _has_gradient(leaf):
            found.append(checked_seed(leaf, other, name))

    mapped(check, like, given)
    return found


def _zeros(x: Tensor) -> Tensor:
    return Tensor(filled(x.handle.client, x.handle.spec, 0.0))


def _check_scalar(value: Any) -> None:
    if not is_tensor(value):
        advice = "; with has_aux=True, it may return (result, anything)"
        raise ArgumentMismatch(
            f"a function that is differentiated must return a tensor, not {shown(value)}"
            f"{advice if isinstance(value, tuple) else ''}"
        )
    if value.size != 1 or not value.dtype.is_floating:
        raise UsageError(
            f"a function that is differentiated must return one floating-point number, not "
            f"{value.handle.spec}; return a sum or a mean"
        )
