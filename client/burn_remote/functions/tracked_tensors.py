"""Tracked tensors and their gradients: the methods of ``Tensor``, named as in PyTorch."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from burn_remote.autodiff.backward_functions import RetainingBackward
from burn_remote.autodiff.backward_pass import BackwardPass
from burn_remote.autodiff.grad_mode import is_recording
from burn_remote.autodiff.nodes import Branch, Leaf, Node, TrackedHandle, node_of, plain, tracked
from burn_remote.autodiff.tracking import relabeled, track
from burn_remote.autodiff.uniform_gradients import one_for
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.arithmetic import (
    add,
    divide,
    floor_divide,
    multiply,
    pow,
    remainder,
    subtract,
)
from burn_remote.functions.attribute_errors import NoGradient
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.runner.interface import distinction
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DeviceMismatch,
    DTypeMismatch,
    ShapeMismatch,
    UsageError,
    shown,
)

if TYPE_CHECKING:
    from burn_remote.arguments.numbers import Number
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "Gradients",
    "Hook",
    "add_in_place",
    "assign_gradients",
    "backward",
    "checked_seed",
    "clone",
    "copied",
    "detach",
    "detached_elements",
    "divide_in_place",
    "floor_divide_in_place",
    "gradient",
    "is_leaf",
    "is_parameter",
    "is_tracked_leaf",
    "multiply_in_place",
    "power_in_place",
    "register_hook",
    "remainder_in_place",
    "requires_grad",
    "requires_grad_",
    "retain_grad",
    "set_elements",
    "set_gradient",
    "set_requires_grad",
    "subtract_in_place",
    "tracked_handle",
    "update_all",
    "updated",
]

UNTRACKED: Final = (
    "the tensor is not tracked; call w.requires_grad_() on the parameters before computing "
    "anything from them, outside no_grad"
)


# No number is used twice, so that a hook that was removed cannot remove another one.
_hook_numbers: Final = itertools.count(1)

# Held while the gradients of leaves, which may be on several devices, are compared and assigned:
# never during I/O, so no session waits for another one.
_assignment: Final = threading.Lock()


@final
class Gradients:
    """The gradients of one backward pass: ``grads[w]`` is the gradient of the leaf ``w``."""

    def __init__(self, found: dict[Leaf, Tensor]) -> None:
        self._found = found

    def __getitem__(self, leaf: Tensor) -> Tensor:
        """Return the gradient of a leaf. Raises ``KeyError`` if the pass reached no such leaf."""
        found = self.get(leaf)
        if found is None:
            raise KeyError(f"the backward pass did not reach {leaf!r}")
        return found

    def __contains__(self, leaf: Tensor) -> bool:
        return self.get(leaf) is not None

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        """Return the number of leaves and the way to a gradient."""
        count = len(self._found)
        return f"<gradients of {count} {'leaf' if count == 1 else 'leaves'}: grads[w] or w.grad>"

    def get(self, leaf: Tensor) -> Tensor | None:
        """Return the gradient of a leaf, ``None`` if the pass did not reach it."""
        source = getattr(leaf.handle, "source", None)
        return self._found.get(source) if type(source) is Leaf else None


@final
class Hook:
    """A registered hook; ``remove()`` ends it."""

    def __init__(self, leaf: Leaf, number: int) -> None:
        self._leaf = leaf
        self._number = number

    def remove(self) -> None:
        """Stop calling the function. A second call does nothing."""
        if self._leaf.hooks is not None:
            self._leaf.hooks.pop(self._number, None)


def requires_grad_(x: Tensor, requires_grad: bool = True, /) -> Tensor:
    """Track this tensor, in place: backward passes store its gradient in ``grad``.

    With ``False``, stop tracking it. Returns the tensor. Raises ``DTypeMismatch`` unless it is
    floating-point or complex, and ``UsageError`` for ``False`` on the result of an operation on
    tracked tensors.
    """
    handle = x.handle
    if not requires_grad:
        if isinstance(handle, TrackedHandle):
            if not is_leaf(x):
                raise UsageError(
                    f"{handle.spec} is the result of an operation on tracked tensors and cannot "
                    "stop being tracked; x.detach() returns the same tensor untracked"
                )
            x.handle = handle.plain
        return x
    if not isinstance(handle, TrackedHandle):
        dtype = handle.spec.dtype
        if not (dtype.is_floating or dtype.is_complex):
            raise DTypeMismatch(
                f"{handle.spec} cannot be tracked: only floating-point and complex tensors have "
                "gradients; convert it with x.astype(burn_remote.float32)"
            )
        x.handle = track(handle)
    return x


def requires_grad(x: Tensor) -> bool:
    """Return whether operations on this tensor are recorded."""
    return isinstance(x.handle, TrackedHandle)


def set_requires_grad(x: Tensor, value: bool) -> None:
    """Call ``requires_grad_``."""
    requires_grad_(x, value)


def is_leaf(x: Tensor) -> bool:
    """Return whether this tensor is not the result of an operation on tracked tensors."""
    handle = x.handle
    return not isinstance(handle, TrackedHandle) or type(handle.source) is Leaf


def gradient(x: Tensor) -> Tensor | None:
    """Return the accumulated gradient; ``None`` before the first backward pass.

    Raises ``UsageError`` for the result of an operation on tracked tensors, unless its gradient is
    retained.
    """
    handle = x.handle
    if not isinstance(handle, TrackedHandle):
        return None
    source = handle.source
    found: Tensor | None
    if type(source) is Leaf:
        found = source.grad
        return found
    grads, place = _retained(source)
    if place in grads:
        found = grads[place]
        return found
    line = handle.client.session.line_of(handle.id)
    raise NoGradient(
        f"{handle.spec}{f', made at {line},' if line else ''} is the result of an operation on "
        "tracked tensors, and only leaves have .grad; call x.retain_grad() before the backward "
        "pass, or use burn_remote.autograd.grad(loss, x). If it is a parameter that was updated, "
        "update it inside burn_remote.no_grad()"
    )


def set_gradient(x: Tensor, value: Tensor | None) -> None:
    """Set or clear the gradient of a leaf, or of a tensor whose gradient is retained.

    ``None`` does nothing for an untracked tensor. Raises ``UsageError`` for any other tensor, and
    ``ShapeMismatch``, ``DTypeMismatch`` or ``DeviceMismatch`` if the gradient is unlike the tensor.
    """
    handle = x.handle
    source = handle.source if isinstance(handle, TrackedHandle) else None
    if source is None and value is None:
        return
    checked = None if value is None else checked_seed(x, value, "a gradient")
    grads, place = ({}, 0) if source is None or type(source) is Leaf else _retained(source)
    if type(source) is Leaf:
        source.grad = checked
    elif place in grads:
        grads[place] = checked
    else:
        if source is None:
            raise UsageError(f"{handle.spec} is not tracked; call x.requires_grad_() first")
        raise UsageError(
            f"{handle.spec} is the result of an operation on tracked tensors and has no .grad; "
            "call x.retain_grad() first"
        )


def retain_grad(x: Tensor, /) -> None:
    """Have backward passes store the gradient of a result in ``grad``, as they do for a leaf.

    Later backward passes add to it. Does nothing for a leaf. Raises ``UsageError`` for an untracked
    tensor.
    """
    source = tracked_handle(x, "retain_grad() of").source
    if type(source) is Leaf:
        return
    node, place = _node_and_place(source)
    if type(node.backward) is not RetainingBackward:
        node.backward = RetainingBackward(node.backward, add)
    node.backward.grads.setdefault(place, None)


def detach(x: Tensor, /) -> Tensor:
    """Return the same tensor untracked: gradients do not pass through it. Nothing is copied.

    Later updates of ``x`` do not change the result.
    """
    return x.__class__(plain(x.handle))


def clone(x: Tensor, /) -> Tensor:
    """Return a tensor of the same elements, through which gradients pass to ``x``.

    Later updates of ``x`` do not change the result. No elements are copied.
    """
    handle = x.handle
    if isinstance(handle, TrackedHandle) and is_recording():
        return x.__class__(relabeled(handle))
    return detach(x)


def copied(x: Tensor) -> Tensor:
    """Return a tensor for ``copy.copy`` and ``copy.deepcopy``: the copy of a leaf is a leaf.

    Later updates of either do not change the other. The elements are not copied.
    """
    handle = x.handle
    if not isinstance(handle, TrackedHandle) or type(handle.source) is not Leaf:
        return x.__class__(handle)
    made = x.__class__(track(handle))
    set_gradient(made, handle.source.grad)
    return made


def detached_elements(x: Tensor) -> Tensor:
    """Return ``x.detach()``. Assigning a tensor gives a tracked leaf other elements, in place.

    The assigned tensor must have the same shape, dtype and device. See ``set_elements``.
    """
    return detach(x)


def set_elements(x: Tensor, value: Tensor) -> None:
    """Give a tracked leaf other elements, in place; see ``updated``."""
    updated(x, value)


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None], /) -> Hook:
    """Call ``hook`` with each complete gradient of a leaf, before it is added to ``grad``.

    A tensor that the hook returns replaces the gradient; the backward pass raises an error if its
    shape, dtype or device is another. Returns an object whose ``remove()`` ends this. Raises
    ``UsageError`` unless the tensor is a tracked leaf.
    """
    handle = x.handle
    source = handle.source if isinstance(handle, TrackedHandle) else None
    if type(source) is not Leaf:
        way = "call x.requires_grad_() first"
        if source is not None:
            way = "burn_remote.autograd.grad(loss, x) returns the gradient of any tensor"
        raise UsageError(f"{handle.spec} is not a tracked leaf, and only leaves have hooks; {way}")
    if source.hooks is None:
        source.hooks = {}
    number = next(_hook_numbers)
    source.hooks[number] = hook
    return Hook(source, number)


@explained
def backward(
    x: Tensor,
    /,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Iterable[Tensor] | None = None,
) -> Gradients:
    """Add the gradients of ``x`` with respect to its leaves to their ``grad``.

    ``gradient`` is the gradient of ``x`` itself, with the shape of ``x``; it may be omitted if
    ``x`` has one element. The pass frees what was recorded, unless ``retain_graph`` is true. With
    ``create_graph``, the gradients are tracked themselves, and ``retain_graph`` is true by default.
    ``inputs`` limits the pass to some leaves. Returns the gradients of this pass, without those of
    earlier ones. Does not wait.

    Raises ``UsageError`` if ``x`` is not tracked, if an earlier pass freed what was recorded, or if
    an operation has no gradient; ``ShapeMismatch`` if ``gradient`` is missing or has another shape;
    and ``DTypeMismatch`` or ``DeviceMismatch`` if its dtype or device is another.
    """
    handle = tracked_handle(x, "backward() of")
    seed = one_for(type(x), handle) if gradient is None else checked_seed(x, gradient, "gradient=")
    if gradient is None and handle.spec.size != 1:
        raise ShapeMismatch(
            f"backward() of {handle.spec} needs gradient=, a tensor of the same shape, because it "
            "has several elements; call backward() on a loss of one element, such as x.sum()"
        )
    wanted = None
    if inputs is not None:
        wanted = [_leaf_of(one) for one in ([inputs] if is_tensor(inputs) else inputs)]
    backward_pass = BackwardPass([handle], wanted=wanted, finish_leaf=_call_hooks)
    retains = create_graph if retain_graph is None else retain_graph
    held = backward_pass.run([seed], retains=retains, is_recorded=create_graph)
    found = {leaf: one[0] for leaf, one in held.items() if type(leaf) is Leaf}
    _accumulate(found)
    return Gradients(found)


def updated(leaf: Tensor, value: Tensor) -> Tensor:
    """Give a tracked leaf other elements, in place; return it.

    It stays the same leaf, with its gradient and hooks. Operations that were recorded before keep
    the old elements. Raises ``UsageError`` if ``leaf`` is no tracked leaf, and ``ShapeMismatch``,
    ``DTypeMismatch`` or ``DeviceMismatch`` if ``value`` is unlike it.
    """
    handle = leaf.handle
    if not isinstance(handle, TrackedHandle) or type(handle.source) is not Leaf:
        raise UsageError(
            f"{handle.spec} is not a tracked leaf, and only leaves can be updated in place; write "
            "x = y"
        )
    checked_seed(leaf, value, "the new value of a leaf")
    leaf.handle = tracked(handle.client, plain(value.handle), handle.source)
    return leaf


def is_tracked_leaf(x: Tensor) -> bool:
    """Return whether backward passes store a gradient of this tensor."""
    return isinstance(x.handle, TrackedHandle) and type(x.handle.source) is Leaf


def update_all(leaves: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
    """Give tracked leaves other elements, all or none of them; ``None`` keeps a leaf's elements."""
    pairs = [(leaf, new) for leaf, new in zip(leaves, values, strict=True) if new is not None]
    before = [leaf.handle for leaf, _ in pairs]  # freed at the end, because that runs Python code
    handles = [
        tracked(old.client, new.handle, old.source)
        for old, (_, new) in zip(before, pairs, strict=True)
        if isinstance(old, TrackedHandle)
    ]
    # One call that runs no Python code: an interrupt comes before it or after it.
    deque(map(setattr, [leaf for leaf, _ in pairs], itertools.repeat("handle"), handles), maxlen=0)
    del before


def is_parameter(x: Tensor, operator: str, instead: str) -> bool:
    """Return whether a tensor is a tracked leaf, which may be updated in place.

    Raises ``UsageError`` for a leaf while operations are recorded. Its text suggests ``instead``,
    an expression that makes a new tensor.
    """
    handle = x.handle
    if not isinstance(handle, TrackedHandle) or type(handle.source) is not Leaf:
        return False
    if is_recording():
        raise UsageError(
            f"{operator} on {handle.spec}, a tracked leaf, would make it the result of an "
            "operation, which has no .grad; write it inside burn_remote.no_grad(), which updates "
            f"the leaf, or {instead} for a new tensor"
        )
    return True


def _in_place(
    operator: str, function: Callable[[Tensor, Tensor | Number], Tensor]
) -> Callable[[Tensor, Tensor | Number], Tensor]:
    instead = f"x = x {operator[:-1]} y"

    def in_place(x: Tensor, other: Tensor | Number) -> Tensor:
        """Update a tracked leaf inside ``no_grad``; any other tensor is replaced."""
        if not is_parameter(x, operator, instead):
            return NotImplemented  # type: ignore[no-any-return]
        return updated(x, function(x, other))

    return in_place


add_in_place: Final = _in_place("+=", add)
subtract_in_place: Final = _in_place("-=", subtract)
multiply_in_place: Final = _in_place("*=", multiply)
divide_in_place: Final = _in_place("/=", divide)
floor_divide_in_place: Final = _in_place("//=", floor_divide)
remainder_in_place: Final = _in_place("%=", remainder)
power_in_place: Final = _in_place("**=", pow)


def tracked_handle(x: Tensor, purpose: str) -> TrackedHandle:
    """Return the handle of a tracked tensor. Raises ``UsageError`` for any other tensor."""
    handle = x.handle
    if not isinstance(handle, TrackedHandle):
        raise UsageError(f"{purpose} {handle.spec} is impossible: {UNTRACKED}")
    return handle


def checked_seed(x: Tensor, value: Tensor, name: str) -> Tensor:
    """Return ``value``, which the program gave as a gradient of ``x``.

    Raises ``ArgumentMismatch``, ``ShapeMismatch``, ``DTypeMismatch`` or ``DeviceMismatch`` if it is
    not a tensor like ``x``.
    """
    if not is_tensor(value):
        raise ArgumentMismatch(f"{name} must be a tensor like {x.handle.spec}, not {shown(value)}")
    wanted, spec = x.handle.spec, value.handle.spec
    if spec.shape != wanted.shape:
        raise ShapeMismatch(f"{name} is {spec}, but the tensor is {wanted}")
    if spec.dtype != wanted.dtype:
        raise DTypeMismatch(f"{name} is {spec}, but the tensor is {wanted}; use x.astype(dtype)")
    if value.handle.client.session is not x.handle.client.session:
        raise DeviceMismatch(
            f"{name} is on {value.device}, but the tensor is on {x.device}"
            f"{distinction(value.device, x.device)}; use x.to(device)"
        )
    return value


def _node_and_place(source: Node | Branch) -> tuple[Node, int]:
    return (source.node, source.position) if isinstance(source, Branch) else (source, 0)


def _retained(source: Node | Branch) -> tuple[dict[int, Any], int]:
    """Return the gradients that a result's node retains, and the result's place among them."""
    node, place = _node_and_place(source)
    return (node.backward.grads if type(node.backward) is RetainingBackward else {}), place


def _accumulate(found: Mapping[Leaf, Tensor]) -> None:
    """Add gradients to those of leaves. Other threads may do so at the same time."""
    while True:
        before = [leaf.grad for leaf in found]  # freed at the end, because that runs Python code
        pairs = zip(before, found.values(), strict=True)
        # Without the lock, because issuing an operation may wait for the connection. If another
        # thread was faster, the sums are computed again.
        sums = [value if held is None else add(held, value) for held, value in pairs]
        with _assignment:
            if all(leaf.grad is held for leaf, held in zip(found, before, strict=True)):
                assign_gradients([*found], sums)
                return


def assign_gradients(leaves: Sequence[Leaf], grads: Sequence[Tensor]) -> None:
    """Set the gradients of leaves. If an interrupt comes, all of them are set or none.

    The caller keeps references to the old gradients, because freeing them runs Python code.
    """
    # One call that runs no Python code.
    deque(map(setattr, leaves, itertools.repeat("grad"), grads), maxlen=0)


def _leaf_of(x: Tensor) -> Leaf:
    source = node_of(tracked_handle(x, "the gradient with respect to").source)
    if type(source) is not Leaf:
        raise UsageError(
            f"{x.handle.spec} in inputs= is not a leaf; burn_remote.autograd.grad(loss, x) returns "
            "the gradient of any tensor"
        )
    return source


def _call_hooks(leaf: Leaf, value: Any) -> Any:
    if leaf.hooks:
        for hook in [*leaf.hooks.values()]:
            changed = hook(value)
            if changed is not None:
                value = checked_seed(value, changed, "the gradient that a hook returned")
    return value
