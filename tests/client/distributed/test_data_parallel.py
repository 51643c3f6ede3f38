"""Training on several devices gives the parameters of one device, and equal bits on each member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import burn_remote as br
from burn_remote import functional as F
from burn_remote.distributed import Group
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote_protocol.operations.row import Signature

Devices = list[br.Device]
Arrays = list[np.ndarray[Any, Any]]

random = np.random.default_rng(0)
X = random.normal(size=(48, 12)).astype(np.float32)
Y = random.integers(0, 5, 48)
PARAMS = {
    "hidden": [random.normal(size=(12, 9)).astype(np.float32) / 3, np.zeros(9, np.float32)],
    "none": None,
    "out": (random.normal(size=(9, 5)).astype(np.float32) / 3, np.zeros((5,), np.float32)),
}
OPTIMIZERS: dict[str, Callable[[], br.optim.Optimizer]] = {
    "SGD": lambda: br.optim.SGD(lr=0.1),
    "momentum": lambda: br.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda: br.optim.Adam(lr=br.optim.schedules.warm_up(1e-2, 4)),
    "AdamW": lambda: br.optim.AdamW(lr=1e-2),
}


def loss_of(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
    hidden = (x @ params["hidden"][0] + params["hidden"][1]).relu()
    return F.cross_entropy(hidden @ params["out"][0] + params["out"][1], y)


def total_of(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
    return loss_of(params, x, y) * x.shape[0]


def on(device: br.Device, tree: Any) -> Any:
    return br.tree.map(lambda one: br.tensor(one, device=device), tree)


def arrays_of(tree: Any) -> Arrays:
    return br.read(br.tree.leaves(tree))


def on_one_device(
    device: br.Device, optimizer: br.optim.Optimizer, batches: Sequence[slice]
) -> tuple[Arrays, list[float], Any]:
    """Train on one device with whole batches."""
    params = on(device, PARAMS)
    state, losses = optimizer.init(params), []
    for rows in batches:
        batch = on(device, [X[rows], Y[rows]])
        loss, grads = br.value_and_grad(loss_of)(params, *batch)
        params, state = optimizer.update(params, grads, state)
        losses.append(loss.item())
    return arrays_of(params), losses, state


def assert_replicas_are_equal(trainer: br.DataParallel) -> Arrays:
    first, *others = [arrays_of(replica) for replica in trainer.replicas]
    for other in others:
        assert [one.tobytes() for one in other] == [one.tobytes() for one in first]
    return first


def assert_close(seen: Arrays, wanted: Arrays) -> None:
    for one, other in zip(seen, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


# The last batch has 3 rows, so that some of five members get none.
BATCHES = [slice(0, 20), slice(20, 33), slice(33, 45), slice(45, 48)]


@pytest.mark.parametrize("shards_state", [False, True])
def test_training_continues_from_a_state_of_arrays(devices: Devices, shards_state: bool) -> None:
    def trainer(members: Devices, params: Any, state: Any = None) -> br.DataParallel:
        return br.DataParallel(
            loss_of,
            params,
            members,
            optimizer=br.optim.Adam(),
            state=state,
            shards_state=shards_state,
        )

    first = trainer(devices[:2], PARAMS)
    first.step(X, Y)
    arrays = {
        name: slot if isinstance(slot, int | float) else br.tree.map(lambda one: one.numpy(), slot)
        for name, slot in first.state.items()
    }
    second = trainer(devices[2:5], first.params, arrays)
    for one in (first, second):
        one.step(X, Y)
    assert_close(assert_replicas_are_equal(second), assert_replicas_are_equal(first))
    assert second.state["step"] == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shards_state", [False, True])
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_training_on_several_devices_equals_one_device_with_whole_batches(
    devices: Devices, name: str, shards_state: bool, compiles: bool, count: int
) -> None:
    trainer = br.DataParallel(
        loss_of,
        PARAMS,
        devices[:count],
        optimizer=OPTIMIZERS[name](),
        shards_state=shards_state,
        compiles=compiles,
        bucket_bytes=300,
    )
    losses = [trainer.step(X[rows], Y[rows]) for rows in BATCHES]
    wanted, wanted_losses, state = on_one_device(devices[4], OPTIMIZERS[name](), BATCHES)
    assert_close(assert_replicas_are_equal(trainer), wanted)
    assert losses[0].device == devices[0]
    np.testing.assert_allclose([loss.item() for loss in losses], wanted_losses, atol=1e-6)
    assert trainer.state["step"] == state["step"]
    for slot in state:
        if not isinstance(state[slot], int | float):
            assert_close(arrays_of(trainer.state[slot]), arrays_of(state[slot]))


@given(
    count=st.integers(1, 5),
    rows=st.integers(1, 17),
    bucket_bytes=st.sampled_from([1, 200, 10**6]),
    reduction=st.sampled_from(["mean", "sum"]),
)
@settings(max_examples=30)
def test_gradients_equal_those_of_the_whole_batch(
    devices: Devices, count: int, rows: int, bucket_bytes: int, reduction: str
) -> None:
    function = loss_of if reduction == "mean" else total_of
    trainer = br.DataParallel(
        function, PARAMS, devices[:count], reduction=reduction, bucket_bytes=bucket_bytes
    )
    loss = trainer.backward(X[:rows], Y[:rows])
    batch = on(devices[4], [X[:rows], Y[:rows]])
    wanted_loss, wanted = br.value_and_grad(function)(on(devices[4], PARAMS), *batch)
    assert loss.item() == pytest.approx(wanted_loss.item(), abs=1e-5)
    for value in trainer.gradients:
        for one, other in zip(arrays_of(value), arrays_of(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * rows)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("shards_state", [False, True])
def test_gradients_accumulated_without_sync_are_added_to_those_of_the_next_backward(
    devices: Devices, compiles: bool, shards_state: bool
) -> None:
    options: dict[str, Any] = {"compiles": compiles, "shards_state": shards_state}
    made = []
    for is_synced in (True, False):
        trainer = br.DataParallel(
            loss_of, PARAMS, devices[:3], optimizer=OPTIMIZERS["momentum"](), **options
        )
        for rows in BATCHES[:2]:
            if is_synced:
                trainer.backward(X[rows], Y[rows])
            else:
                with trainer.no_sync():
                    trainer.backward(X[rows], Y[rows])
        trainer.step(X[33:45], Y[33:45])
        made.append(assert_replicas_are_equal(trainer))
    assert_close(*made)


def test_no_sync_moves_no_gradient(devices: Devices) -> None:
    group = Group(devices[:2], engine="moves")  # whose moves a recorder sees
    trainer = br.DataParallel(loss_of, PARAMS, group)
    batch = trainer.split(X, Y)
    with Recording(devices[1]) as recorder, trainer.no_sync():
        trainer.backward(batch)
    assert [spec.shape for spec in recorder.moved] == [()]  # the loss
    with Recording(devices[1]) as recorder:
        trainer.backward(batch)
    assert sum(spec.size for spec in recorder.moved) == 1 + sum(
        one.size for one in br.tree.leaves(PARAMS)
    )


class Recorder(ForwardingRunner):
    """Records the operations and moves of a device, in order."""

    def __init__(self, inner: RunnerClient) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.moved: list[br.TensorSpec] = []

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        self.calls.append(str(signature.row))
        return super().register_op(signature, inputs)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        self.calls.append("move")
        self.moved.append(handle.spec)
        return super().move(handle, target)


class Recording:
    """Puts a recorder around a device."""

    def __init__(self, device: br.Device) -> None:
        self._device = device

    def __enter__(self) -> Recorder:
        self._recorder = Recorder(self._device.client)
        self._device.client = self._recorder
        return self._recorder

    def __exit__(self, *error: object) -> None:
        self._device.client = self._recorder.inner


def test_a_bucket_leaves_while_the_backward_pass_goes_on(devices: Devices) -> None:
    group = Group(devices[:2], engine="moves")
    trainer = br.DataParallel(loss_of, PARAMS, group, bucket_bytes=1)
    batch = trainer.split(X, Y)
    with Recording(devices[0]) as recorder:
        trainer.backward(batch)
    calls = recorder.calls
    first = calls.index("move")
    # The gradient of the first layer's weights is a matrix product, after the last layer's move.
    products = [place for place, call in enumerate(calls) if "Matmul" in call]
    assert products[-1] > first
    assert len(recorder.moved) == 4


def test_parameters_that_the_loss_does_not_reach_have_zeros(devices: Devices) -> None:
    params = {**PARAMS, "unused": np.ones((2, 2), np.float32)}
    trainer = br.DataParallel(loss_of, params, devices[:2], optimizer=OPTIMIZERS["SGD"]())
    trainer.backward(X, Y)
    assert all(not value["unused"].numpy().any() for value in trainer.gradients)
    trainer.update()
    np.testing.assert_array_equal(trainer.params["unused"].numpy(), np.ones((2, 2)))


def test_a_parameter_that_only_one_member_reaches_gets_its_gradient(devices: Devices) -> None:
    def chosen(params: Any, x: br.Tensor) -> br.Tensor:
        name = "first" if x.device == devices[0] else "second"
        weight: br.Tensor = params[name]
        return (weight * x).sum()

    params = {"first": np.float32(2), "second": np.float32(3), "third": np.float32(4)}
    trainer = br.DataParallel(chosen, params, devices[:2], reduction="sum")
    trainer.backward(np.array([1, 2, 5, 7], np.float32))
    for value in trainer.gradients:
        assert {name: one.item() for name, one in value.items()} == {
            "first": 3,
            "second": 12,
            "third": 0,
        }


def test_a_loss_that_depends_on_no_parameter_has_zeros(devices: Devices) -> None:
    trainer = br.DataParallel(lambda params, x: x.mean(), PARAMS, devices[:2])
    assert trainer.backward(np.ones(4, np.float32)).item() == 1
    assert not any(one.any() for one in arrays_of(trainer.gradients))


def test_a_failing_loss_changes_nothing(devices: Devices) -> None:
    calls = [0]

    def failing(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        calls[0] += 1
        if calls[0] == 5:
            raise ZeroDivisionError
        return loss_of(params, x, y)

    def train(function: Callable[..., br.Tensor]) -> Arrays:
        trainer = br.DataParallel(function, PARAMS, devices[:3], optimizer=OPTIMIZERS["Adam"]())
        trainer.step(X[:7], Y[:7])
        with trainer.no_sync():
            if function is failing:
                with pytest.raises(ZeroDivisionError):
                    trainer.backward(X[:9], Y[:9])
            trainer.backward(X[:9], Y[:9])
        trainer.step(X, Y)
        return assert_replicas_are_equal(trainer)

    for one, other in zip(train(failing), train(loss_of), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failure_while_gradients_leave_changes_nothing(devices: Devices) -> None:
    fails = [False]

    def failing(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        if fails[0] and x.device == devices[1]:
            raise ZeroDivisionError
        return loss_of(params, x, y)

    trainer = br.DataParallel(failing, PARAMS, devices[:3], optimizer=OPTIMIZERS["SGD"]())
    before = arrays_of(trainer.params)
    fails[0] = True
    with pytest.raises(ZeroDivisionError):
        trainer.step(X, Y)
    with pytest.raises(br.UsageError, match="no gradients were reduced since the last update"):
        trainer.update()
    assert_close(arrays_of(trainer.params), before)
    fails[0] = False
    trainer.step(X, Y)
    wanted, *_ = on_one_device(devices[4], OPTIMIZERS["SGD"](), [slice(0, 48)])
    assert_close(assert_replicas_are_equal(trainer), wanted)


@pytest.mark.parametrize("shards_state", [False, True])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failure_within_a_backward_pass_leaves_the_group_usable(
    devices: Devices, failing: int, shards_state: bool
) -> None:
    """One member's pass fails when some of its buckets have left, and some have not."""
    passes = [0]

    def forward(x: br.Tensor) -> tuple[br.Tensor, None]:
        return x * 1.0, None

    def backward(_: None, gradient: br.Tensor) -> br.Tensor:
        passes[0] += 1
        if passes[0] == failing:
            raise ZeroDivisionError
        return gradient

    @br.custom_vjp(forward, backward)
    def fragile(x: br.Tensor) -> br.Tensor:
        return x * 1.0

    def fragile_loss(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        hidden = fragile((x @ params["hidden"][0] + params["hidden"][1]).relu())
        return F.cross_entropy(hidden @ params["out"][0] + params["out"][1], y)

    with Group(devices[:3]) as group:
        trainer = br.DataParallel(
            fragile_loss,
            PARAMS,
            group,
            optimizer=OPTIMIZERS["SGD"](),
            shards_state=shards_state,
            bucket_bytes=1,
        )
        with pytest.raises(ZeroDivisionError):
            trainer.step(X, Y)
        trainer.step(X, Y)
        wanted, *_ = on_one_device(devices[4], OPTIMIZERS["SGD"](), [slice(0, 48)])
        assert_close(assert_replicas_are_equal(trainer), wanted)


def _nested(group: Group) -> None:
    br.DataParallel(loss_of, PARAMS, group).backward(X, Y)


def _all_reduced(group: Group) -> None:
    group.all_reduce([br.ones((2,), device=device) for device in group.devices])


@pytest.mark.parametrize("within", [_nested, _all_reduced, Group.barrier, Group.failure])
@pytest.mark.parametrize("member", range(3))
def test_a_loss_that_uses_the_group_is_refused_and_leaves_it_usable(
    devices: Devices, within: Callable[[Group], object], member: int
) -> None:
    calls = [0]

    def greedy(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        calls[0] += 1
        if calls[0] == member + 1:
            within(group)
        return loss_of(params, x, y)

    with Group(devices[:3]) as group:
        trainer = br.DataParallel(
            greedy, PARAMS, group, optimizer=OPTIMIZERS["SGD"](), bucket_bytes=1
        )
        with pytest.raises(br.UsageError, match="giving their gradients to a backward pass"):
            trainer.step(X, Y)
        within(group)
        trainer.step(X, Y)
        wanted, *_ = on_one_device(devices[4], OPTIMIZERS["SGD"](), [slice(0, 48)])
        assert_close(assert_replicas_are_equal(trainer), wanted)


def test_a_loss_may_use_another_group_of_the_same_devices(devices: Devices) -> None:
    def synchronized(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        _nested(other)
        return loss_of(params, x, y)

    with Group(devices[:3]) as group, Group(devices[2::-1]) as other:
        trainer = br.DataParallel(synchronized, PARAMS, group, optimizer=OPTIMIZERS["SGD"]())
        trainer.step(X, Y)
        wanted, *_ = on_one_device(devices[4], OPTIMIZERS["SGD"](), [slice(0, 48)])
        assert_close(assert_replicas_are_equal(trainer), wanted)


@pytest.mark.parametrize("member", range(1, 3))
def test_closing_while_gradients_leave_says_so(devices: Devices, member: int) -> None:
    calls = [0]

    def closing(params: Any, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        calls[0] += 1
        if calls[0] == member + 1:
            trainer.close()
        return loss_of(params, x, y)

    trainer = br.DataParallel(closing, PARAMS, devices[:3], bucket_bytes=1)
    with pytest.raises(br.UsageError, match="the group was closed before all members had given"):
        trainer.backward(X, Y)
    with pytest.raises(br.UsageError, match="was closed; make another group"):
        trainer.backward(X, Y)
    assert_replicas_are_equal(trainer)


def test_thousands_of_parameters_share_a_bucket(devices: Devices) -> None:
    def scaled(params: Any, x: br.Tensor) -> br.Tensor:
        value: br.Tensor = params[0] * x.sum() + params[4999] * x.mean()
        return value

    params = [np.float32(number) for number in range(5000)]
    trainer = br.DataParallel(scaled, params, devices[:2], reduction="sum")
    trainer.backward(np.array([1, 2, 5, 8], np.float32))
    for value in trainer.gradients:
        found = br.read([value[place] for place in (0, 1, 4998, 4999)])
        assert [one.item() for one in found] == [16, 0, 0, 8]


@pytest.mark.parametrize("shards_state", [False, True])
def test_training_continues_from_parameters_and_state(devices: Devices, shards_state: bool) -> None:
    def trainer(count: int, params: Any, state: Any, shards: bool) -> br.DataParallel:
        return br.DataParallel(
            loss_of,
            params,
            devices[:count],
            optimizer=OPTIMIZERS["Adam"](),
            state=state,
            shards_state=shards,
            bucket_bytes=300,
        )

    first = trainer(2, PARAMS, None, shards_state)
    first.step(X[:20], Y[:20])
    first.step(X[20:33], Y[20:33])
    # Other devices, another form of the state, and another number of members.
    second = trainer(3, first.params, first.state, not shards_state)
    second.step(X[33:45], Y[33:45])
    second.step(X[45:], Y[45:])
    wanted, *_ = on_one_device(devices[4], OPTIMIZERS["Adam"](), BATCHES)
    assert_close(assert_replicas_are_equal(second), wanted)


def test_gradients_can_be_clipped_before_the_update(devices: Devices) -> None:
    trainer = br.DataParallel(loss_of, PARAMS, devices[:2], optimizer=OPTIMIZERS["SGD"]())
    trainer.backward(X, Y)
    trainer.gradients = [br.optim.clip_by_norm(one, 0.01)[0] for one in trainer.gradients]
    assert br.optim.global_norm(trainer.gradients[1]).item() == pytest.approx(0.01, rel=1e-3)
    trainer.update()
    change = [
        (one - other) / 0.1
        for one, other in zip(
            assert_replicas_are_equal(trainer), br.tree.leaves(PARAMS), strict=True
        )
    ]
    assert sum((one**2).sum() for one in change) ** 0.5 == pytest.approx(0.01, rel=1e-3)


def test_replicas_can_be_updated_by_the_program(devices: Devices) -> None:
    trainer = br.DataParallel(loss_of, PARAMS, devices[:2])
    trainer.backward(X, Y)
    trainer.replicas = [
        br.tree.map(lambda w, g: w - g * 0.1, params, grads)
        for params, grads in zip(trainer.replicas, trainer.gradients, strict=True)
    ]
    wanted, *_ = on_one_device(devices[4], OPTIMIZERS["SGD"](), [slice(0, 48)])
    assert_close(assert_replicas_are_equal(trainer), wanted)


def test_batches_may_be_tensors_containers_and_numbers(devices: Devices) -> None:
    def scaled(params: Any, batch: Any, scale: float, offset: br.Tensor) -> br.Tensor:
        x: br.Tensor = batch["x"]
        error: br.Tensor = (x @ params - batch["y"]) * scale + offset
        return error.square().mean()

    w = np.ones((12,), np.float32)
    trainer = br.DataParallel(scaled, w, devices[:3])
    batch = {"x": br.tensor(X, device=devices[2]), "y": X[:, 0]}
    trainer.backward(batch, 0.5, np.float32(1))
    (gradient,) = arrays_of(trainer.gradients[0])
    wanted = 2 * 0.5 * ((X @ w - X[:, 0]) * 0.5 + 1) @ X / len(X)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-4)


def test_tracked_tensors_of_any_device_may_be_the_parameters(devices: Devices) -> None:
    given_params = br.tree.map(lambda x: x.requires_grad_(), on(devices[3], PARAMS))
    trainer = br.DataParallel(loss_of, given_params, devices[:2], optimizer=OPTIMIZERS["SGD"]())
    trainer.step(X, Y)
    wanted, *_ = on_one_device(devices[4], OPTIMIZERS["SGD"](), [slice(0, 48)])
    assert_close(assert_replicas_are_equal(trainer), wanted)
    assert all(x.grad is None for x in br.tree.leaves(given_params))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda t: t.step(X, Y[:3]), br.ShapeMismatch, "argument 0 has 48 and argument 1 has 3"),
        (lambda t: t.step(X[:0], Y[:0]), br.ShapeMismatch, "the batch has no rows"),
        (lambda t: t.step(7), br.ArgumentMismatch, "rows along axis 0, but int was given"),
        (lambda t: t.step(), br.ArgumentMismatch, "but nothing was given"),
        (lambda t: t.update(), br.UsageError, r"call backward\(\*batch\) first"),
        (lambda t: t.gradients, br.UsageError, "no gradients were reduced since the last update"),
        (
            lambda t: setattr(t, "replicas", [t.params, t.params]),
            br.ArgumentMismatch,
            "each value must be like the one that it replaces",
        ),
        (lambda t: setattr(t, "replicas", 3), br.ArgumentMismatch, "each of the 2 members, not 3"),
    ],
)
def test_invalid_calls_are_refused(
    devices: Devices,
    call: Callable[[br.DataParallel], Any],
    error: type[Exception],
    text: str,
) -> None:
    pair = [br.LocalDevice(), devices[0]]
    trainer = br.DataParallel(loss_of, PARAMS, pair, optimizer=OPTIMIZERS["SGD"]())
    with pytest.raises(error, match=text):
        call(trainer)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"loss_of": 3}, br.ArgumentMismatch, "takes a loss function"),
        ({"params": {}}, br.UsageError, "there are no parameters"),
        ({"params": [3.0]}, br.ArgumentMismatch, "the parameter 0 is of type float"),
        ({"params": {"w": np.ones(3, int)}}, br.DTypeMismatch, "the parameter w is an array of in"),
        ({"reduction": "none"}, br.ArgumentMismatch, "'mean' or 'sum', not 'none'"),
        ({"optimizer": "adam"}, br.ArgumentMismatch, r"such as Adam\(lr=1e-3\), not 'adam'"),
        ({"shards_state": True}, br.UsageError, "a state needs an optimizer"),
        ({"bucket_bytes": 0}, br.UsageError, "bucket_bytes must be from 1"),
    ],
)
def test_invalid_options_are_refused(
    devices: Devices, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    given_options = {"loss_of": loss_of, "params": PARAMS, "devices": devices[:2], **options}
    with pytest.raises(error, match=text):
        br.DataParallel(**given_options)


def test_a_loss_of_several_elements_is_refused(devices: Devices) -> None:
    trainer = br.DataParallel(lambda w, x: x * w, np.float32(2), devices[:2])
    with pytest.raises(br.UsageError, match=r"not float32\[2\]; return a mean or a sum"):
        trainer.backward(np.ones(4, np.float32))


def test_a_step_inside_no_sync_is_refused(devices: Devices) -> None:
    trainer = br.DataParallel(loss_of, PARAMS, devices[:2], optimizer=OPTIMIZERS["SGD"]())
    with (
        trainer.no_sync(),
        pytest.raises(br.UsageError, match=r"call backward\(…\) inside, and step"),
    ):
        trainer.step(X, Y)
    with trainer.no_sync():
        trainer.backward(X, Y)
    with pytest.raises(br.UsageError, match=r"sends those that no_sync\(\) accumulated"):
        trainer.update()


def test_sharded_gradients_are_not_read(devices: Devices) -> None:
    trainer = br.DataParallel(
        loss_of, PARAMS, devices[:2], optimizer=OPTIMIZERS["SGD"](), shards_state=True
    )
    trainer.backward(X, Y)
    with pytest.raises(br.UsageError, match="each member has one part of them only"):
        _ = trainer.gradients
    with pytest.raises(br.UsageError, match="make another DataParallel with params and state"):
        trainer.replicas = trainer.replicas


def test_a_batch_that_was_split_over_other_members_is_refused(devices: Devices) -> None:
    pair, three = [br.DataParallel(loss_of, PARAMS, devices[:count]) for count in (2, 3)]
    with pytest.raises(br.ArgumentMismatch, match=r"split over 2 devices, but .* has 3"):
        three.backward(pair.split(X, Y))


def test_an_optimizer_with_parameters_of_its_own_is_refused(devices: Devices) -> None:
    w = br.ones((2,), device=devices[0]).requires_grad_()
    with pytest.raises(br.UsageError, match="pass one without parameters, such as Adam"):
        br.DataParallel(loss_of, PARAMS, devices[:2], optimizer=br.optim.SGD([w], lr=0.1))


def test_the_representation_counts_the_parameters(devices: Devices) -> None:
    one = br.DataParallel(lambda p, x: (x * p).mean(), np.zeros(1, np.float32), devices[:2])
    assert repr(one).startswith("<DataParallel of 1 parameter on <Group ")
    assert repr(br.DataParallel(loss_of, PARAMS, devices[:2])).startswith(
        "<DataParallel of 4 parameters on <Group "
    )
