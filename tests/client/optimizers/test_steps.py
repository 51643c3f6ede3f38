"""PyTorch's form: ``step`` replaces the elements of tracked parameters."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import optim
from burn_remote.optim import lr_scheduler
from burn_remote.optimizers import optimizer_class as optimizer_module
from support.runners import RecordingDevice

KINDS: list[Callable[..., optim.Optimizer]] = [
    functools.partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    functools.partial(optim.Adam, lr=0.1, amsgrad=True),
    functools.partial(optim.AdamW, lr=0.1),
    functools.partial(optim.RMSprop, lr=0.1, centered=True, momentum=0.5),
    functools.partial(optim.Adagrad, lr=0.1, initial_accumulator_value=0.5),
]


def parameters(device: br.Device) -> dict[str, Any]:
    return {
        "w": br.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=br.float64, device=device),
        "b": [br.tensor([0.25, -1.5], dtype=br.float64, device=device)],
    }


def tracked(device: br.Device) -> dict[str, Any]:
    return br.tree.map(lambda one: one.requires_grad_(), parameters(device))  # type: ignore[no-any-return]


def loss_of(params: Any, x: br.Tensor) -> br.Tensor:
    """Return a loss whose gradients have all signs and sizes."""
    y = x @ params["w"] + params["b"][0]
    total: br.Tensor = (y * y * y).sum()
    return total


def inputs(device: br.Device, step: int) -> br.Tensor:
    array = np.random.default_rng(step).normal(size=(3, 2))
    return br.tensor(array, device=device)


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_give_the_same_parameters(
    kind: Callable[..., optim.Optimizer], local: br.Device
) -> None:
    params = tracked(local)
    optimizer = kind(params)
    other = kind()
    functional = parameters(local)
    state = other.init(functional)
    for step in range(4):
        x = inputs(local, step)
        optimizer.zero_grad()
        loss_of(params, x).backward()
        optimizer.step()
        grads = br.grad(loss_of)(functional, x)
        functional, state = other.update(functional, grads, state)
    for one, same in zip(br.tree.leaves(params), br.tree.leaves(functional), strict=True):
        assert one.requires_grad
        assert one.is_leaf
        np.testing.assert_array_equal(one.numpy(), same.numpy())


def test_a_step_keeps_the_gradient_the_hooks_and_what_was_computed_before(
    local: br.Device,
) -> None:
    w = br.tensor([2.0], device=local).requires_grad_()
    calls: list[br.Tensor] = []
    w.register_hook(calls.append)
    optimizer = optim.SGD([w], lr=0.5)
    before = w * w
    before.sum().backward(retain_graph=True)
    optimizer.step()
    assert w.item() == 0.0
    assert w.grad is not None
    assert w.grad.item() == 4.0
    # The earlier result keeps the elements that it was computed from.
    before.sum().backward()
    assert w.grad.item() == 8.0
    (w * 3).sum().backward()
    assert w.grad.item() == 11.0
    assert len(calls) == 3
    optimizer.zero_grad(set_to_none=False)
    assert w.grad.item() == 0.0
    optimizer.zero_grad()
    assert w.grad is None


def test_parameters_without_a_gradient_are_skipped_and_count_their_own_steps(
    local: br.Device,
) -> None:
    a, b = (br.tensor([1.0], device=local).requires_grad_() for _ in range(2))
    optimizer = optim.Adam([a, b], lr=0.125)
    for loss in (a, a, a + b):
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    assert a.item() == pytest.approx(1 - 3 * 0.125)
    assert b.item() == pytest.approx(1 - 0.125)
    assert [optimizer.state[one]["step"] for one in (a, b)] == [3, 1]


def test_groups_have_options_of_their_own(local: br.Device) -> None:
    a, b = (br.tensor([1.0], device=local).requires_grad_() for _ in range(2))
    optimizer = optim.SGD([{"params": [a]}, {"params": {"b": b}, "lr": 0.25}], lr=0.5)
    (a + b).sum().backward()
    optimizer.step()
    assert (a.item(), b.item()) == (0.5, 0.75)
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    assert (a.item(), b.item()) == (0.375, 0.5)


def test_parameters_may_come_from_a_generator(local: br.Device) -> None:
    params = tracked(local)
    optimizer = optim.SGD(one for one in br.tree.leaves(params))
    assert len(optimizer.param_groups[0]["params"]) == 2


@pytest.mark.parametrize("given", [dict.values, dict.items, br.tree.named_leaves])
def test_parameters_may_be_views_and_pairs_with_names(
    local: br.Device, given: Callable[[Any], Any]
) -> None:
    params = {name: br.tensor([1.0], device=local).requires_grad_() for name in ("a", "b")}
    optimizer = optim.SGD(given(params), lr=0.5)
    (params["a"] + params["b"]).backward()
    optimizer.step()
    assert [one.item() for one in params.values()] == [0.5, 0.5]
    if given is not dict.values:
        with pytest.raises(br.UsageError, match="the parameter b is the same tensor as b"):
            optimizer.add_param_group({"params": {"b": params["b"]}})


def test_a_closure_computes_the_loss_that_step_returns(local: br.Device) -> None:
    w = br.tensor([2.0], device=local).requires_grad_()
    optimizer = optim.SGD([w], lr=0.25)

    def closure() -> br.Tensor:
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    with br.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == 4.0
    assert w.item() == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_from_a_state_dict(
    kind: Callable[..., optim.Optimizer], local: br.Device
) -> None:
    def trained(params: Any, optimizer: optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            loss_of(params, inputs(local, step)).backward()
            optimizer.step()

    params = tracked(local)
    optimizer = kind(params)
    trained(params, optimizer, range(3))
    state = optimizer.state_dict()
    assert {type(one) for one in br.tree.leaves(state)} <= {np.ndarray, int, float, bool}
    copied = br.tree.map(lambda one: one.detach().requires_grad_(), params)
    other = kind(copied)
    other.load_state_dict(state)
    trained(params, optimizer, range(3, 6))
    trained(copied, other, range(3, 6))
    for one, same in zip(br.tree.leaves(params), br.tree.leaves(copied), strict=True):
        np.testing.assert_allclose(one.numpy(), same.numpy(), rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_state_dict_is_the_same_after_it_was_saved_and_loaded(
    kind: Callable[..., optim.Optimizer], nested: bool, local: br.Device, tmp_path: Path
) -> None:
    params = tracked(local)
    optimizer = kind(params)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(params, inputs(local, step)).backward()
        optimizer.step()
    path = tmp_path / "optimizer.safetensors"
    br.save_safetensors(path, optimizer.state_dict())
    with br.LocalDevice() as device:
        copied = br.tree.map(lambda one: br.tensor(one.numpy(), device=device), params)
        other = kind(br.tree.map(lambda one: one.requires_grad_(), copied))
        other.load_state_dict(br.load_safetensors(path, device=local, nested=nested))
        found, expected = other.state_dict(), optimizer.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert [*found["state"]] == [*expected["state"]]
    for place, state in expected["state"].items():
        for name, content in state.items():
            np.testing.assert_allclose(found["state"][place][name], content, rtol=1e-14)


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_copy_of_an_optimizer_or_scheduler_is_refused_with_what_to_pass_on(
    copying: Callable[[Any], Any],
) -> None:
    optimizer = optim.SGD([br.tensor([1.0], device="local").requires_grad_()], lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(br.ArgumentMismatch, match=r"another SGD.*optimizer\.state_dict\(\)"):
        copying(optimizer)
    with pytest.raises(br.ArgumentMismatch, match=r"another StepLR.*scheduler\.state_dict\(\)"):
        copying(scheduler)


def test_a_saved_state_with_a_gap_in_its_groups_is_refused() -> None:
    optimizer = optim.SGD([br.tensor([1.0], device="local").requires_grad_()])
    with pytest.raises(br.ArgumentMismatch, match="entries '0', '2', but the entries of a list"):
        optimizer.load_state_dict({"param_groups": {"0": {}, "2": {}}, "state": {}})


def test_a_state_dict_has_the_moments_of_pytorch(local: br.Device) -> None:
    w = br.tensor([1.0, 2.0], dtype=br.float64, device=local).requires_grad_()
    optimizer = optim.Adam([w], betas=(0.9, 0.99))
    (w * w).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert state["param_groups"][0]["params"] == [0]
    assert state["state"][0]["step"] == 1
    np.testing.assert_allclose(state["state"][0]["exp_avg"], [0.2, 0.4], rtol=1e-14)
    np.testing.assert_allclose(state["state"][0]["exp_avg_sq"], [0.04, 0.16], rtol=1e-14)


def test_betas_may_change_between_steps(local: br.Device) -> None:
    w = br.tensor([1.0], dtype=br.float64, device=local).requires_grad_()
    optimizer = optim.Adam([w], lr=0.1, betas=(0.9, 0.99))
    m = v = 0.0
    expected = 1.0
    for step, (beta1, beta2) in enumerate([(0.9, 0.99), (0.5, 0.9), (0.8, 0.99)], 1):
        optimizer.param_groups[0]["betas"] = (beta1, beta2)
        optimizer.zero_grad()
        (w * w * step).sum().backward()
        optimizer.step()
        g = 2 * step * expected
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        root = np.sqrt(v / (1 - beta2**step))
        expected -= 0.1 * m / (1 - beta1**step) / (root + 1e-8)
        assert w.item() == pytest.approx(expected, rel=1e-12)


def test_schedules_and_schedulers_set_the_rate_of_steps(local: br.Device) -> None:
    by_schedule = br.tensor([1.0], device=local).requires_grad_()
    by_scheduler = br.tensor([1.0], device=local).requires_grad_()
    first = optim.SGD([by_schedule], lr=optim.schedules.step(0.5, 1, 0.5))
    second = optim.SGD([by_scheduler], lr=0.5)
    scheduler = lr_scheduler.StepLR(second, 1, gamma=0.5)
    (by_schedule + by_scheduler).sum().backward()
    for expected in (0.5, 0.25, 0.125):
        first.step()
        second.step()
        scheduler.step()
        assert by_schedule.item() == by_scheduler.item() == expected
    assert "1 graph" in repr(second._update)


@pytest.mark.parametrize("kind", [functools.partial(optim.SGD, momentum=0.9), optim.Adam])
def test_options_that_change_with_each_step_make_few_graphs(kind: Any, local: br.Device) -> None:
    w = br.tensor([1.0], device=local).requires_grad_()
    optimizer = kind([w], lr=0.5)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)
    w.sum().backward()
    for _ in range(9):
        optimizer.step()
        scheduler.step()
    (count,) = re.findall(r"(\d+) graph", repr(optimizer._update))
    assert int(count) <= 3


def test_betas_may_be_a_list(local: br.Device) -> None:
    w = br.tensor([1.0], device=local).requires_grad_()
    w.sum().backward()
    optim.Adam([w], lr=0.5, betas=[0.9, 0.99]).step()  # type: ignore[arg-type]
    assert w.item() == pytest.approx(0.5)


def test_gradients_are_clipped_in_place_before_a_step(local: br.Device) -> None:
    w = br.tensor([3.0, 4.0], device=local).requires_grad_()
    (w * w).sum().backward()
    norm = optim.clip_grad_norm_([w], 1.0)
    assert norm.item() == 10.0
    assert w.grad is not None
    assert w.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    optim.clip_grad_value_({"w": w}, 0.7)
    assert w.grad.tolist() == pytest.approx([0.6, 0.7], rel=1e-5)
    w.grad = w.grad / 0.0
    with pytest.raises(br.UsageError, match="norm of the gradients is not finite"):
        optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)


def test_tensors_of_former_steps_are_freed(device: RecordingDevice) -> None:
    w = br.ones(2, device=device).requires_grad_()
    optimizer = optim.Adam([w])
    alive = []
    for _ in range(4):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        made = len(device.runner.specs)
        alive.append(made - len({*device.runner.dropped}))
    assert alive[1] == alive[3]


DEVICE, OTHER = RecordingDevice(), RecordingDevice("other")


def f(*shape: int, device: br.Device = DEVICE) -> br.Tensor:
    return br.ones(shape, device=device).requires_grad_()


W = f(2)


def stepped(params: Any) -> None:
    optim.SGD(params).step()


def compiled_step() -> None:
    w = f(2)
    optimizer = optim.SGD([w])
    br.compile(lambda x: (optimizer.step(), x * 2))(br.ones(2, device=DEVICE))


REFUSED: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "there are no parameters; pass containers": (br.UsageError, lambda: optim.SGD([])),
    "an iterator that was used before has none left": (
        br.UsageError, lambda: optim.SGD(itertools.islice(iter([W]), 1, None))),
    "the parameter 1 is the same tensor as 0": (br.UsageError, lambda: optim.SGD([W, W])),
    "the parameter 0 is the same tensor as w": (
        br.UsageError, lambda: optim.SGD([{"params": {"w": W}}, {"params": [W]}])),
    "the parameter n is int64": (
        br.DTypeMismatch, lambda: optim.SGD({"n": br.zeros(2, dtype=br.int64, device=DEVICE)})),
    "the parameter 0 is of type int, not a tensor": (br.ArgumentMismatch, lambda: optim.SGD([3])),
    "the parameter 0 is the result of an operation": (
        br.UsageError, lambda: optim.SGD([W * 2])),
    "no parameter of the optimizer is tracked": (
        br.UsageError, lambda: optim.Adam([br.ones(2, device=DEVICE)])),
    "was made without parameters; pass them, as in": (
        br.UsageError, lambda: optim.SGD(lr=0.1).step()),
    "cannot have the entry 'lrr'; beside 'params', it may have lr, momentum": (
        br.UsageError, lambda: optim.SGD([{"params": [W], "lrr": 1}])),
    "a group of parameters needs the entry 'params'": (
        br.UsageError, lambda: optim.SGD([W]).add_param_group({"lr": 1})),
    "some parameters are groups with 'params' and some are not": (
        br.ArgumentMismatch, lambda: optim.SGD([{"params": [W]}, f(3)])),
    "cannot change parameters in place with optimizer.step": (br.UsageError, compiled_step),
    "groups of .1. parameters, but the optimizer has groups of .2.": (
        br.ArgumentMismatch, lambda: optim.SGD([f(1), f(2)]).load_state_dict(
            optim.SGD([f(1)]).state_dict())),
    "the state has no entry 'param_groups' .it is empty.; pass what optimizer.state_dict": (
        br.ArgumentMismatch, lambda: optim.SGD([W]).load_state_dict({})),
    "state of the parameter 0 has no 'exp_avg'; it has 'step'": (
        br.ArgumentMismatch, lambda: optim.Adam([W]).load_state_dict(
            {"state": {0: {"step": 1}}, "param_groups": [{"params": [0]}]})),
    r"'momentum_buffer' of the parameter 0 has shape \[3\], but": (
        br.ShapeMismatch, lambda: optim.SGD([W], momentum=0.9).load_state_dict(
            {"state": {0: {"momentum_buffer": np.ones(3)}}, "param_groups": [{"params": [0]}]})),
    "no parameter has a gradient; call loss.backward": (
        br.UsageError, lambda: optim.clip_grad_norm_([f(2)], 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_steps_are_refused_with_the_name(text: str) -> None:
    kind, call = REFUSED[text]
    with pytest.raises(kind, match=text):
        call()


def test_a_rate_that_became_invalid_is_refused_before_anything_is_sent() -> None:
    w = f(2)
    optimizer = optim.SGD([w])
    w.sum().backward()
    optimizer.param_groups[0]["lr"] = float("nan")
    before = len(DEVICE.runner.operations)
    with pytest.raises(br.UsageError, match="lr must be at least 0 and below inf, not nan"):
        optimizer.step()
    assert len(DEVICE.runner.operations) == before


def test_a_step_that_fails_in_a_later_group_changes_nothing(local: br.Device) -> None:
    first, second = (br.tensor([1.0], device=local).requires_grad_() for _ in range(2))
    optimizer = optim.Adam([{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.5)
    (first + second).sum().backward()
    optimizer.param_groups[1]["lr"] = float("nan")
    with pytest.raises(br.UsageError):
        optimizer.step()
    assert (first.item(), second.item()) == (1.0, 1.0)
    assert optimizer.state_dict()["state"] == {}
    optimizer.param_groups[1]["lr"] = 0.5
    optimizer.step()
    assert first.item() == second.item() == pytest.approx(0.5)


def test_an_interrupt_changes_all_parameters_and_states_or_none(
    local: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = [br.tensor([1.0], device=local).requires_grad_() for _ in range(3)]
    optimizer = optim.SGD(leaves, lr=0.5, momentum=0.5)
    seen = set()
    # Interrupts come between instructions of Python: raise before each line of the module once.
    for line in itertools.count():
        optimizer.zero_grad()
        sum(leaves).sum().backward()  # type: ignore[union-attr]
        before = [one.handle for one in leaves], {**optimizer.state}
        steps = itertools.count()

        def trace(frame: Any, event: str, _: Any, line: int = line, steps: Any = steps) -> Any:
            if frame.f_code.co_filename != optimizer_module.__file__:
                return None
            if event == "line" and next(steps) == line:
                raise KeyboardInterrupt
            return trace

        known = sys.gettrace()
        sys.settrace(trace)
        try:
            optimizer.step()
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(known)
        replaced = {one.handle is not old for one, old in zip(leaves, before[0], strict=True)}
        replaced |= {optimizer.state.get(one) is not before[1].get(one) for one in leaves}
        assert len(replaced) == 1
        seen |= replaced
    assert seen == {False, True}


def test_the_options_of_an_optimizer_cannot_be_assigned() -> None:
    optimizer = optim.SGD(lr=0.5)
    with pytest.raises(AttributeError):
        optimizer.defaults = {"lr": 1.0}  # type: ignore[misc]


@pytest.mark.parametrize("count", [-1, 2.5, math.nan, math.inf, "x", 2**70, [1, 2]])
def test_a_state_with_an_impossible_count_of_steps_is_refused(count: Any) -> None:
    optimizer = optim.Adam([f(2)])
    state = {"step": count, "exp_avg": np.zeros(2), "exp_avg_sq": np.zeros(2)}
    with pytest.raises(br.ArgumentMismatch, match="a count of steps is a whole number"):
        optimizer.load_state_dict({"state": {0: state}, "param_groups": [{"params": [0]}]})
    assert optimizer.state == {}


def test_a_state_that_belongs_to_no_parameter_is_refused() -> None:
    optimizer = optim.SGD([f(2)], momentum=0.5)
    state = {"momentum_buffer": np.zeros(2)}
    with pytest.raises(br.ArgumentMismatch, match="the parameter 0 belongs to no group"):
        optimizer.load_state_dict({"state": {0: state}, "param_groups": [{"params": [5]}]})


@pytest.mark.parametrize("make", [functools.partial(optim.Adam, lr=0.1), optim.SGD])
def test_parameters_of_several_devices_are_updated_each_where_it_is(
    local: br.Device, make: Any
) -> None:
    with br.LocalDevice() as other:
        start = ([1.0, 2.0], [3.0], [4.0])
        devices = (local, other, local)
        mixed, alone = (
            [
                br.tensor(one, device=at).requires_grad_()
                for one, at in zip(start, where, strict=True)
            ]
            for where in (devices, (local,) * 3)
        )
        for leaves in (mixed, alone):
            optimizer = make(leaves)
            for _ in range(3):
                optimizer.zero_grad()
                for one in leaves:
                    (one * one).sum().backward()
                optimizer.step()
        assert [one.device for one in mixed] == [*devices]
        for one, expected in zip(mixed, alone, strict=True):
            assert one.numpy().tolist() == expected.numpy().tolist()
        optimizer = make()
        state = optimizer.init(mixed)
        plain = [one.detach() for one in mixed]
        for _ in range(2):
            plain, state = optimizer.update(plain, plain, state)
        assert state["step"] == 2
        assert [one.device for one in plain] == [*devices]


def test_the_representation_shows_the_options_that_the_next_step_uses() -> None:
    with br.LocalDevice() as device:
        w, v = (br.ones((2,), device=device).requires_grad_() for _ in range(2))
        optimizer = br.optim.SGD([w], lr=0.5)
        optimizer.param_groups[0]["lr"] = 0.25
        assert repr(optimizer).startswith("<SGD(lr=0.25, momentum=0.0,")
        optimizer.add_param_group({"params": [v], "lr": 0.125})
        assert repr(optimizer).startswith("<SGD(lr=[0.25, 0.125], momentum=0.0,")
        assert repr(br.optim.SGD(lr=0.5)).startswith("<SGD(lr=0.5, ")
