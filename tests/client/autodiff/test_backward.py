"""Tracked tensors as in PyTorch: leaves, ``backward``, accumulation, hooks, and refusals."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.functions import tracked_tensors
from support.runners import RecordingDevice
from support.waiting import PATIENCE_SECONDS

POINTS = np.array([1.0, 2.0, 3.0])


def leaf(device: br.Device) -> br.Tensor:
    return device.tensor(POINTS).requires_grad_()


def gradient_of(x: br.Tensor) -> Any:
    assert x.grad is not None
    return x.grad.numpy()


def test_tensors_are_not_tracked_unless_the_program_says_so(device: br.Device) -> None:
    x = device.tensor(POINTS)
    assert not x.requires_grad
    assert x.is_leaf
    assert x.grad is None
    assert not (x * 2.0).requires_grad


def test_results_of_tracked_tensors_are_tracked_and_no_leaves(device: br.Device) -> None:
    x = leaf(device)
    assert x.requires_grad
    assert x.is_leaf
    y = x * 2.0
    assert y.requires_grad
    assert not y.is_leaf
    assert not (x > 1.5).requires_grad


def test_tracking_can_be_switched_off_and_on(device: br.Device) -> None:
    x = leaf(device)
    assert x.requires_grad_(False) is x
    assert not x.requires_grad
    x.requires_grad = True
    assert x.requires_grad
    with pytest.raises(br.UsageError, match=r"x\.detach\(\)"):
        (x * 2.0).requires_grad_(False)


def test_gradients_accumulate_until_they_are_cleared(device: br.Device) -> None:
    x = leaf(device)
    (x * x).sum().backward()
    (x * 3.0).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), 2 * POINTS + 3)
    x.grad = None
    (x * 3.0).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), [3, 3, 3])
    x.grad = device.tensor(POINTS)
    (x * 3.0).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), POINTS + 3)


def test_backward_returns_the_gradients_of_this_pass(device: br.Device) -> None:
    x, y = leaf(device), leaf(device)
    (x * 3.0).sum().backward()
    grads = (x * 4.0).sum().backward()
    np.testing.assert_array_equal(grads[x].numpy(), [4, 4, 4])
    np.testing.assert_array_equal(gradient_of(x), [7, 7, 7])
    assert x in grads
    assert y not in grads
    assert len(grads) == 1
    assert repr(grads) == "<gradients of 1 leaf: grads[w] or w.grad>"
    with pytest.raises(KeyError):
        grads[y]


def test_backward_takes_the_gradient_of_the_result(device: br.Device) -> None:
    x = leaf(device)
    (x * x).backward(device.tensor(np.array([1.0, 10.0, 100.0])))
    np.testing.assert_array_equal(gradient_of(x), [2, 40, 600])


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (np.ones(2), br.ShapeMismatch),
        (np.ones(3, np.float32), br.DTypeMismatch),
    ],
)
def test_a_gradient_unlike_the_result_is_refused(
    seed: np.ndarray[Any, Any],
    error: type[Exception],
    device: br.Device,
) -> None:
    y = leaf(device) * 2.0
    with pytest.raises(error, match="gradient= is"):
        y.backward(device.tensor(seed))


def test_a_gradient_of_another_device_is_refused(device: br.Device) -> None:
    with br.LocalDevice() as other, pytest.raises(br.DeviceMismatch):
        leaf(device).backward(other.tensor(POINTS))


def test_a_parameter_of_another_device_is_refused(device: br.Device) -> None:
    with br.LocalDevice() as other, pytest.raises(br.DeviceMismatch, match=r"x\.to\(device\)"):
        leaf(device) * leaf(other)


def test_detached_tensors_pass_no_gradient(device: br.Device) -> None:
    x = leaf(device)
    y = x * 2.0
    assert not y.detach().requires_grad
    (x * y.detach()).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), 2 * POINTS)


def test_nothing_is_recorded_inside_no_grad(device: br.Device) -> None:
    x = leaf(device)
    with br.no_grad():
        assert not (x * 2.0).requires_grad
        with br.enable_grad():
            assert (x * 2.0).requires_grad
        assert not (x * 2.0).requires_grad
    assert (x * 2.0).requires_grad

    @br.no_grad()
    def evaluate() -> br.Tensor:
        return x * 2.0

    assert not evaluate().requires_grad


@pytest.mark.parametrize("decorate", [br.no_grad(), br.no_grad])
def test_no_grad_decorates_functions_and_coroutines(device: br.Device, decorate: Any) -> None:
    def double(x: br.Tensor) -> br.Tensor:
        return x * 2.0

    async def double_later(x: br.Tensor) -> br.Tensor:
        await asyncio.sleep(0)
        return x * 2.0

    x = leaf(device)
    assert not decorate(double)(x).requires_grad
    assert not asyncio.run(decorate(double_later)(x)).requires_grad
    assert (x * 2.0).requires_grad


CREATING: dict[str, Callable[..., br.Tensor]] = {
    "tensor": lambda **options: br.tensor([1.0, 2.0], **options),
    "zeros": lambda **options: br.zeros(2, **options),
    "ones": lambda **options: br.ones(2, **options),
    "empty": lambda **options: br.empty(2, **options),
    "full": lambda **options: br.full(2, 3.0, **options),
    "normal": lambda **options: br.random.normal(2, **options),
    "uniform": lambda **options: br.random.uniform(2, **options),
    "zeros_like": lambda device, **options: br.zeros_like(br.ones(2, device=device), **options),
    "ones_like": lambda device, **options: br.ones_like(br.ones(2, device=device), **options),
    "empty_like": lambda device, **options: br.empty_like(br.ones(2, device=device), **options),
    "full_like": lambda device, **options: br.full_like(br.ones(2, device=device), 1.0, **options),
}


@pytest.mark.parametrize("name", CREATING)
def test_functions_that_create_tensors_track_them_on_request(device: br.Device, name: str) -> None:
    x = CREATING[name](device=device, requires_grad=True)
    assert x.is_leaf
    (x * 3.0).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), [3, 3])
    assert not CREATING[name](device=device, requires_grad=False).requires_grad


def test_a_tracked_tensor_made_of_another_one_is_a_leaf_of_its_own(device: br.Device) -> None:
    x = leaf(device)
    y = br.tensor(x * 2.0, requires_grad=True)
    assert y.is_leaf
    (y * 3.0).sum().backward()
    np.testing.assert_array_equal(gradient_of(y), [3, 3, 3])
    assert x.grad is None
    with pytest.raises(br.DTypeMismatch, match="only floating-point"):
        br.zeros(2, dtype=br.int32, device=device, requires_grad=True)


def test_the_repr_of_a_tracked_tensor_says_so(device: br.Device) -> None:
    x = leaf(device)
    for tracked in (x, x * 2.0):
        assert repr(tracked).endswith("requires_grad=True)")
    assert "requires_grad" not in repr(x.detach())


def test_recording_is_paused_for_one_thread_only(device: br.Device) -> None:
    x = leaf(device)
    tracked = []
    with br.no_grad():
        thread = threading.Thread(target=lambda: tracked.append((x * 2.0).requires_grad))
        thread.start()
        thread.join()
    assert tracked == [True]


def test_recording_is_paused_for_one_coroutine_only(device: br.Device) -> None:
    x = leaf(device)
    paused, seen = asyncio.Event(), asyncio.Event()

    async def evaluate() -> bool:
        with br.no_grad():
            paused.set()
            await asyncio.wait_for(seen.wait(), PATIENCE_SECONDS)
            return not (x * 2.0).is_leaf

    async def train() -> bool:
        await asyncio.wait_for(paused.wait(), PATIENCE_SECONDS)
        is_tracked = not (x * 2.0).is_leaf
        seen.set()
        return is_tracked

    async def both() -> list[bool]:
        return [*await asyncio.gather(evaluate(), train())]

    assert asyncio.run(both()) == [False, True]
    assert (x * 2.0).requires_grad


def test_recording_resumes_after_an_error_in_no_grad(device: br.Device) -> None:
    x = leaf(device)
    with pytest.raises(ZeroDivisionError), br.no_grad():
        raise ZeroDivisionError
    assert (x * 2.0).requires_grad


def test_hooks_see_and_may_replace_the_complete_gradient(device: br.Device) -> None:
    x = leaf(device)
    seen: list[np.ndarray[Any, Any]] = []
    watch = x.register_hook(lambda grad: seen.append(grad.numpy()))
    double = x.register_hook(lambda grad: grad * 2.0)
    (x * 3.0 + x * 4.0).sum().backward()
    np.testing.assert_array_equal(seen, [[7, 7, 7]])
    np.testing.assert_array_equal(gradient_of(x), [14, 14, 14])
    watch.remove()
    double.remove()
    double.remove()
    (x * 3.0).sum().backward()
    assert len(seen) == 1
    np.testing.assert_array_equal(gradient_of(x), [17, 17, 17])


def test_inputs_limit_the_pass_to_some_leaves(device: br.Device) -> None:
    x, y = leaf(device), leaf(device)
    (x * y).sum().backward(inputs=[x])
    np.testing.assert_array_equal(gradient_of(x), POINTS)
    assert y.grad is None
    with pytest.raises(br.UsageError, match=r"autograd\.grad"):
        (x * y).sum().backward(inputs=x * 2.0)


def test_a_second_pass_needs_retain_graph(device: br.Device) -> None:
    x = leaf(device)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_array_equal(gradient_of(x), 4 * POINTS)
    with pytest.raises(br.UsageError, match=r"test_backward\.py:\d+.*retain_graph=True"):
        loss.backward()


def test_create_graph_makes_gradients_that_can_be_differentiated(device: br.Device) -> None:
    x = leaf(device)
    grads = (x * x * x).sum().backward(create_graph=True)
    first = grads[x]
    assert first.requires_grad
    x.grad = None
    first.sum().backward()
    np.testing.assert_array_equal(gradient_of(x), 6 * POINTS)


def test_autograd_grad_returns_gradients_of_any_tensors(device: br.Device) -> None:
    x = leaf(device)
    y = x * 2.0
    loss = (y * y).sum()
    of_y, of_x = br.autograd.grad(loss, [y, x])
    assert of_y is not None
    assert of_x is not None
    np.testing.assert_array_equal(of_y.numpy(), 4 * POINTS)
    np.testing.assert_array_equal(of_x.numpy(), 8 * POINTS)
    assert x.grad is None


def test_autograd_grad_adds_the_gradients_of_several_outputs(device: br.Device) -> None:
    x = leaf(device)
    (found,) = br.autograd.grad(
        [(x * 2.0).sum(), x * x], x, [None, device.tensor(np.array([1.0, 1.0, 10.0]))]
    )
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), [4, 6, 62])
    with pytest.raises(br.ShapeMismatch, match=r"outputs\[0\]"):
        br.autograd.grad(x * x, x)
    with pytest.raises(br.ShapeMismatch, match="2 grad_outputs do not match 1 outputs"):
        br.autograd.grad(x * x, x, [x, x])


def test_an_unused_input_is_refused_or_has_no_gradient(device: br.Device) -> None:
    x, y = leaf(device), leaf(device)
    with pytest.raises(br.UsageError, match=r"inputs\[1\]"):
        br.autograd.grad((x * x).sum(), [x, y], retain_graph=True)
    found = br.autograd.grad((x * x).sum(), [x, y], allow_unused=True)
    assert found[1] is None


def test_backward_of_an_untracked_tensor_is_refused(device: br.Device) -> None:
    with pytest.raises(br.UsageError, match=r"not tracked; .*requires_grad_\(\)"):
        device.tensor(1.0).backward()


def test_backward_of_several_elements_needs_a_gradient(device: br.Device) -> None:
    with pytest.raises(br.ShapeMismatch, match=r"float64\[3\] needs gradient="):
        (leaf(device) * 2.0).backward()


def test_integers_cannot_be_tracked(device: br.Device) -> None:
    with pytest.raises(br.DTypeMismatch, match=r"int64\[2\].*astype"):
        device.tensor([1, 2]).requires_grad_()


def test_backward_on_a_closed_device_says_so() -> None:
    with br.LocalDevice() as device:
        loss = leaf(device).sum()
    with pytest.raises(br.BurnRemoteError, match="closed"):
        loss.backward()


def test_a_row_without_a_gradient_is_refused_with_its_line() -> None:
    x = leaf(RecordingDevice())
    loss = br.custom("double", x, outputs=br.TensorSpec((3,), br.float64)).sum()
    with pytest.raises(br.UsageError, match="no gradient passes through Custom") as caught:
        loss.backward()
    assert caught.value.__notes__[0].startswith("in the gradient of Custom")


def test_a_second_walk_names_the_operation_and_its_line(device: br.Device) -> None:
    x = leaf(device)
    loss = br.exp(x).sum()
    loss.backward()
    with pytest.raises(br.UsageError, match=r"the recorded \S+\(.*\), issued at .*, was used by"):
        loss.backward()


def test_an_update_inside_no_grad_keeps_the_leaf(device: br.Device) -> None:
    x = leaf(device)
    same = x
    for _ in range(2):
        loss = (x * x).sum()
        loss.backward()
        with br.no_grad():
            x -= x.grad * 0.25
            x += 1.0
            x *= 2.0
            x /= 2.0
        assert x is same
        assert x.requires_grad
        assert x.is_leaf
        x.grad = None
    np.testing.assert_array_equal(x.numpy(), (POINTS / 2 + 1) / 2 + 1)


def test_an_update_does_not_change_what_was_recorded(device: br.Device) -> None:
    x = leaf(device)
    loss = (x * x).sum()
    with br.no_grad():
        x -= 1.0
    loss.backward()
    np.testing.assert_array_equal(gradient_of(x), 2 * POINTS)


KEEPING: dict[str, Callable[[br.Tensor], br.Tensor]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "clone": br.Tensor.clone,
    "detach": br.Tensor.detach,
    "data": lambda x: x.data,
    "tensor": br.tensor,
}


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("is_tracked_first", [True, False])
def test_copies_of_a_leaf_keep_their_elements_when_it_is_updated(
    device: br.Device, name: str, is_tracked_first: bool
) -> None:
    x = device.tensor(POINTS).requires_grad_(is_tracked_first)
    before = KEEPING[name](x)
    x.requires_grad_()
    assert before.requires_grad == (is_tracked_first and name not in ("detach", "data"))
    with br.no_grad():
        x -= 1.0
    np.testing.assert_array_equal(before.numpy(), POINTS)
    np.testing.assert_array_equal(x.numpy(), POINTS - 1)


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy])
def test_the_copy_of_a_leaf_is_another_leaf_with_its_gradient(
    device: br.Device, function: Callable[[br.Tensor], br.Tensor]
) -> None:
    x = leaf(device)
    (x * x).sum().backward()
    y = function(x)
    assert y.is_leaf
    np.testing.assert_array_equal(gradient_of(y), 2 * POINTS)
    (y * 3.0).sum().backward()
    np.testing.assert_array_equal(gradient_of(y), 2 * POINTS + 3)
    np.testing.assert_array_equal(gradient_of(x), 2 * POINTS)


@pytest.mark.parametrize("function", [br.Tensor.clone, br.tensor])
def test_gradients_pass_clones_unless_recording_is_paused(
    device: br.Device, function: Callable[[br.Tensor], br.Tensor]
) -> None:
    x = leaf(device)
    y = function(x)
    assert not y.is_leaf
    (y * y).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), 2 * POINTS)
    with br.no_grad():
        assert not function(x).requires_grad


def test_data_gives_a_leaf_other_elements(device: br.Device) -> None:
    x = leaf(device)
    (x * x).sum().backward()
    assert x.grad is not None
    x.data -= 0.5 * x.grad
    assert x.is_leaf
    np.testing.assert_array_equal(x.numpy(), 0 * POINTS)
    x.data = device.tensor(POINTS)
    np.testing.assert_array_equal(x.numpy(), POINTS)
    np.testing.assert_array_equal(gradient_of(x), 2 * POINTS)
    with pytest.raises(br.ShapeMismatch, match="new value of a leaf"):
        x.data = device.tensor(1.0)
    for other in (device.tensor(POINTS), x * 2.0):
        with pytest.raises(br.UsageError, match=r"is not a tracked leaf.*write x = y"):
            other.data = x


def test_data_takes_the_elements_of_a_tracked_tensor_without_its_history(
    device: br.Device,
) -> None:
    x, y = leaf(device), leaf(device)
    x.data = y * 3.0
    assert x.is_leaf
    assert not x.detach().requires_grad
    (x * x).sum().backward()
    np.testing.assert_array_equal(gradient_of(x), 6 * POINTS)
    assert y.grad is None


def test_each_augmented_assignment_inside_no_grad_updates_the_leaf(device: br.Device) -> None:
    x = leaf(device)
    same = x
    with br.no_grad():
        x **= 2
        x //= 2
        x %= 3
    assert x is same
    assert x.is_leaf
    np.testing.assert_array_equal(x.numpy(), POINTS**2 // 2 % 3)


def test_an_update_outside_no_grad_is_refused(device: br.Device) -> None:
    x = leaf(device)
    with pytest.raises(br.UsageError, match=r"-= on float64\[3\].*no_grad\(\)"):
        x -= 1.0


def test_an_update_of_another_shape_is_refused(device: br.Device) -> None:
    x = leaf(device)
    with br.no_grad(), pytest.raises(br.ShapeMismatch, match="new value of a leaf"):
        x += device.tensor(np.ones((2, 3)))


def test_other_tensors_are_replaced_by_augmented_assignments(device: br.Device) -> None:
    x = device.tensor(POINTS)
    before = x
    x -= 1.0
    assert x is not before
    np.testing.assert_array_equal(before.numpy(), POINTS)
    y = leaf(device)
    z = y * 1.0
    z *= 3.0
    z.sum().backward()
    np.testing.assert_array_equal(gradient_of(y), [3, 3, 3])


def test_the_gradient_of_a_result_is_refused_with_the_line_that_made_it(
    device: br.Device,
) -> None:
    y = leaf(device) * 2.0
    with pytest.raises(br.UsageError, match=r"test_backward\.py:\d+.*only leaves have \.grad"):
        _ = y.grad
    with pytest.raises(br.UsageError, match=r"call x\.retain_grad\(\) first"):
        y.grad = y
    with pytest.raises(br.UsageError, match=r"only leaves have hooks; burn_remote\.autograd\.grad"):
        y.register_hook(print)


def test_a_device_is_its_own_autodiff_device(device: br.Device) -> None:
    assert device.autodiff() is device


@pytest.mark.parametrize(
    ("backward", "error"),
    [
        (lambda x, grad: grad.astype(br.float32), br.DTypeMismatch),
        (lambda x, grad: grad.reshape(3, 1), br.ShapeMismatch),
        (lambda x, grad: grad.sum(), br.ShapeMismatch),
        (lambda x, grad: grad @ grad.reshape(1, 3), br.ShapeMismatch),
    ],
)
def test_a_wrong_gradient_is_refused_with_the_line_of_the_operation(
    backward: Any, error: type[Exception], device: br.Device
) -> None:
    @br.custom_vjp(lambda x: (x * 2.0, x), backward)
    def function(x: br.Tensor) -> br.Tensor:
        return x * 2.0

    with pytest.raises(error) as caught:
        function(leaf(device)).sum().backward()
    assert "test_backward.py:" in str([caught.value, getattr(caught.value, "__notes__", ())])


def test_a_hook_that_was_removed_twice_removes_no_other_one(device: br.Device) -> None:
    w = device.tensor([1.0]).requires_grad_()
    calls: list[Any] = []
    first = w.register_hook(lambda grad: None)
    first.remove()
    w.register_hook(calls.append)
    first.remove()
    w.sum().backward()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (lambda grad: grad.sum(), br.ShapeMismatch),
        (lambda grad: grad.astype(br.float16), br.DTypeMismatch),
        (lambda grad: 2.0, br.ArgumentMismatch),
    ],
)
def test_a_hook_that_returns_another_kind_of_gradient_raises(
    device: br.Device, hook: Any, error: Any
) -> None:
    w = device.tensor([1.0, 2.0]).requires_grad_()
    w.register_hook(hook)
    with pytest.raises(error, match="that a hook returned"):
        w.sum().backward()
    assert w.grad is None


def test_a_backward_pass_that_fails_at_its_end_changes_no_gradient(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = [device.tensor([1.0]).requires_grad_() for _ in range(3)]

    def loss() -> Any:
        total = leaves[0] * leaves[0]
        for w in leaves[1:]:
            total = total + w * w
        return total.sum()

    loss().backward()
    known: Any = vars(tracked_tensors)["add"]
    places = iter(range(3))

    def interrupted(left: Any, right: Any) -> Any:
        if next(places) == 1:
            raise KeyboardInterrupt
        return known(left, right)

    monkeypatch.setattr(tracked_tensors, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loss().backward()
    assert [w.grad.item() for w in leaves] == [2.0, 2.0, 2.0]


def test_a_retained_gradient_is_that_of_autograd_and_adds_up(device: br.Device) -> None:
    w = device.tensor([1.0, 2.0], dtype=br.float64).requires_grad_()
    hidden = w * 3.0
    loss = (hidden.exp() + hidden).sum()
    hidden.retain_grad()  # also for uses that were recorded before
    (expected,) = br.autograd.grad(loss, [hidden], retain_graph=True)
    hidden.grad = None
    assert hidden.grad is None
    loss.backward(retain_graph=True)
    assert hidden.grad is not None
    np.testing.assert_allclose(hidden.grad.numpy(), expected.numpy())
    loss.backward()
    np.testing.assert_allclose(hidden.grad.numpy(), 2 * expected.numpy())
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 6 * expected.numpy())


def test_each_output_of_an_operation_retains_its_own_gradient(device: br.Device) -> None:
    w = device.tensor([[3.0, 1.0, 2.0]]).requires_grad_()
    values, _ = br.topk(w, 2)
    values.retain_grad()
    w.retain_grad()
    loss = (values * values).sum()
    loss.retain_grad()
    loss.backward()
    assert values.grad is not None
    assert values.grad.numpy().tolist() == [[6.0, 4.0]]
    assert loss.grad is not None
    assert loss.grad.item() == 1.0
    assert w.grad is not None
    assert w.grad.numpy().tolist() == [[6.0, 0.0, 4.0]]


def test_the_gradient_of_an_untracked_tensor_cannot_be_retained(device: br.Device) -> None:
    with pytest.raises(br.UsageError, match=r"retain_grad\(\) of .* is not tracked"):
        device.tensor([1.0]).retain_grad()
    with pytest.raises(br.UsageError, match=r"call x.retain_grad\(\) before the backward"):
        _ = (device.tensor([1.0]).requires_grad_() * 2.0).grad
