"""Gradients are clipped by their common norm and by value, without waiting."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import optim
from burn_remote.functions import tracked_tensors
from burn_remote.optimizers import clipping
from support.runners import RecordingDevice

GRADS: dict[str, Any] = {
    "w": np.arange(6.0).reshape(2, 3) - 2,
    "rest": [np.array([4.0, -3.0]), np.array(2.0), None],
}


def sent(device: br.Device, dtype: br.DType = br.float64) -> Any:
    return br.tree.map(lambda one: br.tensor(one, dtype=dtype, device=device), GRADS)


def flat(tree: Any) -> Any:
    return np.concatenate([np.asarray(one).reshape(-1) for one in br.tree.leaves(tree)])


@pytest.mark.parametrize("norm_type", [1, 2, 2.0, 3.0, math.inf])
def test_the_norm_is_that_of_one_vector_of_all_gradients(
    norm_type: float, local: br.Device
) -> None:
    expected = np.linalg.norm(flat(GRADS), norm_type)
    assert optim.global_norm(sent(local), norm_type).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_gradients_are_scaled_to_the_bound_and_no_further(
    bound: float, norm_type: float, local: br.Device
) -> None:
    clipped, norm = optim.clip_by_norm(sent(local), bound, norm_type)
    exact = np.linalg.norm(flat(GRADS), norm_type)
    assert norm.item() == pytest.approx(exact)
    expected = flat(GRADS) * min(1, bound / (exact + 1e-6))
    np.testing.assert_allclose(flat(clipped), expected, rtol=1e-12)
    assert clipped["rest"][2] is None


def test_clipping_is_one_graph_for_all_bounds(local: br.Device) -> None:
    before = optim.clip_by_norm(sent(local), 0.5)
    assert before[1].shape == ()
    sizes = []
    for bound in (0.5, 0.25, 0.125):
        clipped, _ = optim.clip_by_norm(sent(local), bound)
        sizes.append(np.linalg.norm(flat(clipped)))
    assert sizes == pytest.approx([0.5, 0.25, 0.125], rel=1e-5)


def test_low_precision_gradients_do_not_overflow_in_the_norm(local: br.Device) -> None:
    grads = [br.tensor([30000.0, 40000.0], dtype=br.float16, device=local)]
    clipped, norm = optim.clip_by_norm(grads, 5.0)
    assert (norm.dtype, clipped[0].dtype) == (br.float32, br.float16)
    assert norm.item() == pytest.approx(50000, rel=1e-3)
    assert clipped[0].numpy().tolist() == pytest.approx([3.0, 4.0], rel=1e-2)


def test_values_are_clipped_on_both_sides(local: br.Device) -> None:
    np.testing.assert_array_equal(
        flat(optim.clip_by_value(sent(local), 1.5)), np.clip(flat(GRADS), -1.5, 1.5)
    )


def test_clipping_inside_a_compiled_function_takes_traced_bounds(local: br.Device) -> None:
    clip = br.compile(lambda grads, bound: optim.clip_by_norm(grads, bound))
    for bound in (0.5, 0.25):
        clipped, _ = clip(sent(local), bound)
        assert np.linalg.norm(flat(clipped)) == pytest.approx(bound, rel=1e-5)


def test_invalid_clipping_is_refused() -> None:
    device = RecordingDevice()
    x = br.ones(2, device=device)
    with pytest.raises(br.UsageError, match="max_norm must be a number of at least 0, not -1"):
        optim.clip_by_norm([x], -1)
    with pytest.raises(br.UsageError, match="max_norm must be a number of at least 0, not nan"):
        optim.clip_by_norm([x], math.nan)
    with pytest.raises(br.UsageError, match="norm_type must be above 0, not 0"):
        optim.global_norm([x], 0)
    with pytest.raises(br.UsageError, match="there are no gradients"):
        optim.clip_by_norm({"w": None}, 1.0)
    with pytest.raises(br.ArgumentMismatch, match="a gradient is a floating-point tensor, not 3"):
        optim.clip_by_norm([3], 1.0)
    with pytest.raises(br.ArgumentMismatch, match="max_norm must be a number, not 'large'"):
        optim.clip_by_norm([x], "large")  # type: ignore[arg-type]


def test_clipping_by_value_refuses_gradients_of_integers() -> None:
    x = br.ones(2, dtype=br.int64, device=RecordingDevice())
    with pytest.raises(br.ArgumentMismatch, match="a gradient is a floating-point tensor"):
        optim.clip_by_value({"w": x}, 1.0)


@pytest.mark.parametrize("clip", [optim.clip_grad_norm_, optim.clip_grad_value_])
def test_an_interrupt_changes_all_gradients_or_none(clip: Any, local: br.Device) -> None:
    leaves = [br.tensor([1.0], device=local).requires_grad_() for _ in range(3)]
    for one in leaves:
        one.grad = br.tensor([3.0], device=local)
    clip(leaves, 1.0)  # records the graph
    files = {clipping.__file__, tracked_tensors.__file__}
    seen = set()
    # Interrupts come between instructions of Python: raise before each line once.
    for line in itertools.count():
        for one in leaves:
            one.grad = br.tensor([3.0], device=local)
        before = [one.grad for one in leaves]
        steps = itertools.count()

        def trace(frame: Any, event: str, _: Any, line: int = line, steps: Any = steps) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event == "line" and next(steps) == line:
                raise KeyboardInterrupt
            return trace

        known = sys.gettrace()
        sys.settrace(trace)
        try:
            clip(leaves, 1.0)
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(known)
        replaced = {one.grad is not old for one, old in zip(leaves, before, strict=True)}
        assert len(replaced) == 1
        seen |= replaced
    assert seen == {False, True}


def test_retained_gradients_of_results_are_clipped_too(local: br.Device) -> None:
    w = br.tensor([3.0, 4.0], device=local).requires_grad_()
    hidden = w * 1.0
    hidden.retain_grad()
    (hidden * hidden).sum().backward()
    optim.clip_grad_value_([w, hidden], 7.0)
    assert hidden.grad is not None
    assert w.grad is not None
    assert hidden.grad.numpy().tolist() == w.grad.numpy().tolist() == [6.0, 7.0]


@pytest.mark.parametrize("norm_type", [2.0, 3.0, math.inf])
def test_gradients_of_several_devices_are_clipped_by_their_common_norm(
    local: br.Device, norm_type: float
) -> None:
    arrays = [np.array([[3.0, -4.0]]), np.array([12.0]), np.array([1.0, 2.0])]
    with br.LocalDevice() as other:
        devices = (local, other, local)
        grads = [br.tensor(one, device=at) for one, at in zip(arrays, devices, strict=True)]
        alone = [br.tensor(one, device=local) for one in arrays]
        clipped, norm = optim.clip_by_norm([grads, None], 2.0, norm_type)
        expected, wanted = optim.clip_by_norm(alone, 2.0, norm_type)
        assert norm.device == local
        np.testing.assert_allclose(norm.item(), wanted.item(), rtol=1e-12)
        assert optim.global_norm(grads, norm_type).item() == norm.item()
        assert [one.device for one in clipped[0]] == [*devices]
        for one, found in zip(expected, clipped[0], strict=True):
            np.testing.assert_allclose(found.numpy(), one.numpy(), rtol=1e-12)
