"""What the tape keeps, what it issues, and how it works with compiled functions and moves."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.operation_graph import Graph
from burn_remote_protocol.operations.row import Signature
from support.runners import RecordingDevice
from support.waiting import PATIENCE_SECONDS

WEIGHT = np.array([[0.5, -1.0], [2.0, 0.25], [1.0, 1.0]])
INPUT = np.array([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch the collector of reference cycles off: tensors are freed without it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(device: RecordingDevice) -> int:
    """Return how many tensors the server holds."""
    assert len(set(device.runner.dropped)) == len(device.runner.dropped)
    return len(device.runner.specs) - len(device.runner.dropped)


def recorded_leaf(device: br.Device) -> br.Tensor:
    return device.tensor(np.ones(3)).requires_grad_()


@pytest.mark.usefixtures("uncollected")
def test_forwards_without_backward_leave_nothing() -> None:
    device = RecordingDevice()
    x = recorded_leaf(device)
    for _ in range(1000):
        br.log(br.exp(x * 2.0) * x).sum()
    assert alive(device) == 1


@pytest.mark.usefixtures("uncollected")
def test_a_long_chain_is_walked_and_freed() -> None:
    device = RecordingDevice()
    x = recorded_leaf(device)
    y = x
    for _ in range(20_000):
        y = br.exp(y)
    y.sum().backward()
    del y
    assert alive(device) == 2  # x and its gradient
    for _ in range(20_000):
        x = br.exp(x)
    del x
    assert alive(device) == 0


@pytest.mark.usefixtures("uncollected")
def test_the_walk_frees_what_was_saved_before_it_ends() -> None:
    device = RecordingDevice()
    x = recorded_leaf(device)
    y = x * 2.0
    watched = y.requires_grad
    for _ in range(100):
        y = br.exp(y)
    before = alive(device)
    counts: list[int] = []
    x.register_hook(lambda grad: counts.append(alive(device)))
    (y * 1.0).sum().backward()
    assert watched
    assert before > 100
    assert counts[0] < 10


def test_an_operation_on_one_tracked_tensor_is_recorded_without_tuples() -> None:
    # Each would be another object for the garbage collector.
    with br.LocalDevice() as device:
        x = recorded_leaf(device)
        for result in (br.exp(x), br.log(x), x * device.tensor(np.ones(3)), x + 1.0):
            node = result.handle.source  # type: ignore[attr-defined]
            assert not [one for one in gc.get_referents(node) if type(one) is tuple and one]
            assert node.parents[0] is x.handle.source  # type: ignore[attr-defined]
            assert len(node.parents) == len(node.backward.specs)


@pytest.mark.usefixtures("uncollected")
def test_an_error_in_a_hook_leaves_nothing() -> None:
    device = RecordingDevice()
    x = recorded_leaf(device)

    def fail(gradient: br.Tensor) -> None:
        raise ZeroDivisionError

    x.register_hook(fail)
    try:
        br.exp(x * x).sum().backward()
    except ZeroDivisionError:
        pass
    else:
        pytest.fail("the hook was not called")
    assert x.grad is None
    assert alive(device) == 1
    with pytest.raises(ZeroDivisionError):
        br.grad(lambda y: 1 // 0)(x)
    assert (x * 2.0).requires_grad


@pytest.mark.usefixtures("uncollected")
def test_functions_that_differentiate_leave_nothing() -> None:
    device = RecordingDevice()
    x = device.tensor(np.ones(3))
    for _ in range(10):
        br.grad(lambda x: br.grad(lambda x: br.exp(x * x).sum())(x).sum())(x)
        br.vjp(br.exp, x)
        br.jvp(br.exp, (x,), (x,))
        br.grad(lambda x: br.checkpoint(lambda x: br.exp(x) * x)(x).sum())(x)
    assert alive(device) == 1


def test_only_what_the_formulas_need_is_kept() -> None:
    device = RecordingDevice()
    x, c = recorded_leaf(device), device.tensor(np.ones(3))
    y = (x + c) * 2.0
    del c
    assert alive(device) == 2  # x and y: the sum and the constant are not needed
    z = y * y
    assert z.requires_grad
    del y
    assert alive(device) == 3


def test_operations_on_untracked_tensors_do_not_reach_the_tape() -> None:
    device = RecordingDevice()
    x = recorded_leaf(device)
    tape = x.handle.client
    plain = device.tensor(np.ones(3)) * 2.0
    assert plain.handle.client is device.runners
    assert (x * plain).handle.client is tape
    assert x.detach().handle.client is device.runners


def test_a_pair_of_a_tracked_and_an_untracked_tensor_is_recorded_each_time() -> None:
    device = RecordingDevice()
    x, plain = recorded_leaf(device), device.tensor(np.ones(3))
    for _ in range(3):  # later times take a shorter path
        for result in (x + plain, plain + x, x - plain, plain - x):
            assert result.requires_grad
    other = RecordingDevice("other").tensor(np.ones(3))
    for _ in range(3):
        for first, second in ((x, other), (other, x), (x, other.requires_grad_())):
            with pytest.raises(br.DeviceMismatch):
                first + second


def test_pauses_of_several_threads_end_separately(device: br.Device) -> None:
    x = device.tensor(np.ones(3)).requires_grad_()
    is_inside, may_end = threading.Event(), threading.Event()
    seen: list[bool] = []

    def pause() -> None:
        with br.no_grad(), br.no_grad():
            with br.enable_grad():
                seen.append((x * 2.0).requires_grad)
            is_inside.set()
            assert may_end.wait(PATIENCE_SECONDS)
            seen.append((x * 2.0).requires_grad)
        seen.append((x * 2.0).requires_grad)

    thread = threading.Thread(target=pause)
    thread.start()
    assert is_inside.wait(PATIENCE_SECONDS)
    assert (x * 2.0).requires_grad
    with br.no_grad():
        assert not (x * 2.0).requires_grad
    assert (x * 2.0).requires_grad
    may_end.set()
    thread.join(PATIENCE_SECONDS)
    assert seen == [True, False, True]


def test_runners_around_the_device_see_recorded_operations() -> None:
    device = RecordingDevice()
    x = recorded_leaf(device)
    counter = Counter(device.client)
    device.client = counter
    y = x * 2.0
    device.client = counter.inner
    y.sum().backward()
    assert counter.names == ["MulScalar"]
    assert x.grad is not None


def test_gradients_of_moved_tensors_move_back_without_a_read() -> None:
    a, b = RecordingDevice("a"), RecordingDevice("b")
    x = a.tensor(np.ones(3)).requires_grad_()
    y = x.to(b)
    assert y.requires_grad
    assert y.device == b
    (y * 2.0).sum().backward()
    assert x.grad is not None
    assert x.grad.device == a
    events = [event[0] for event in (*a.runner.events, *b.runner.events)]
    assert events.count("expose") == events.count("fetch") == 2
    assert "read" not in events
    assert x.to(a) is x


def test_threads_record_and_walk_at_the_same_time(device: br.Device) -> None:
    failures: list[BaseException] = []

    def train(seed: int) -> None:
        try:
            start = np.full(4, float(seed))
            for _ in range(20):
                x = device.tensor(start).requires_grad_()
                br.exp(x * x * 0.01).sum().backward()
                assert x.grad is not None
                expected = np.exp(start * start * 0.01) * 0.02 * start
                np.testing.assert_allclose(x.grad.numpy(), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_gradients_that_two_threads_add_to_one_leaf_are_both_counted(device: br.Device) -> None:
    x = device.tensor([1.0, 2.0]).requires_grad_()
    (x * 10.0).sum().backward()
    first, second = (x * 1.0).sum(), (x * 100.0).sum()
    overtaken = Overtaken(device.client, second.backward)
    device.client = overtaken
    try:
        first.backward()
    finally:
        device.client = overtaken.inner
    assert overtaken.work is None
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), [111.0, 111.0])


class Overtaken(ForwardingRunner):
    """Has another thread do its work when the first addition is issued."""

    def __init__(self, inner: Any, work: Callable[[], Any]) -> None:
        super().__init__(inner)
        self.work: Callable[[], Any] | None = work

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        if self.work is not None and signature.row.name == "Add":
            thread = threading.Thread(target=self.work)
            self.work = None
            thread.start()
            thread.join(PATIENCE_SECONDS)
        return super().register_op(signature, inputs)


class Counter(ForwardingRunner):
    """Lists the operations of a device, and counts graphs as one."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.names: list[str] = []
        self.made: list[tuple[str, tuple[int, ...]]] = []  # names, and shapes of first outputs

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        self.names.append(signature.row.name)
        self.made.append((signature.row.name, signature.outputs[0].shape))
        return super().register_op(signature, inputs)

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        self.names.append(f"graph of {len(graph.steps)}")
        return self.inner.register_graph(graph, inputs, numbers)


def loss_of(weight: br.Tensor, x: br.Tensor) -> br.Tensor:
    return br.tanh(x @ weight).sum()


def stepped(weight: np.ndarray[Any, Any], rate: float) -> np.ndarray[Any, Any]:
    hidden = np.tanh(INPUT @ weight)
    changed: np.ndarray[Any, Any] = weight - rate * (INPUT.T @ (1 - hidden**2))
    return changed


@br.compile
def step_with_function(weight: br.Tensor, x: br.Tensor, rate: float) -> tuple[br.Tensor, br.Tensor]:
    loss, gradient = br.value_and_grad(loss_of)(weight, x)
    return weight - gradient * rate, loss


@br.compile
def step_with_backward(weight: br.Tensor, x: br.Tensor, rate: float) -> tuple[br.Tensor, br.Tensor]:
    weight.requires_grad_()
    loss = loss_of(weight, x)
    loss.backward()
    assert weight.grad is not None
    return weight.detach() - weight.grad * rate, loss


@pytest.mark.parametrize("step", [step_with_function, step_with_backward])
def test_a_compiled_step_with_its_gradients_is_one_task(step: Any, device: br.Device) -> None:
    weight, x = device.tensor(WEIGHT), device.tensor(INPUT)
    expected = WEIGHT
    for rate in (0.5, 0.25):
        weight, loss = step(weight, x, rate)
        assert not loss.requires_grad
        np.testing.assert_allclose(loss.item(), np.tanh(INPUT @ expected).sum())
        expected = stepped(expected, rate)
        np.testing.assert_allclose(weight.numpy(), expected)
    counter = Counter(device.client)
    device.client = counter
    try:
        step(weight, x, 0.125)
    finally:
        device.client = counter.inner
    assert len(counter.names) == 1
    assert counter.names[0].startswith("graph of")


def test_a_compiled_function_of_tracked_tensors_is_recorded(device: br.Device) -> None:
    compiled = br.compile(loss_of)
    weight, x = device.tensor(WEIGHT), device.tensor(INPUT)
    compiled(weight, x)
    weight.requires_grad_()
    for _ in range(2):
        loss = compiled(weight, x)
        assert loss.requires_grad
        weight.grad = None
        loss.backward()
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad.numpy(), WEIGHT - stepped(WEIGHT, 1.0))


def test_a_compiled_function_of_tracked_tensors_uses_its_graph_in_no_grad(
    device: br.Device,
) -> None:
    compiled = br.compile(loss_of)
    weight, x = device.tensor(WEIGHT).requires_grad_(), device.tensor(INPUT)
    with br.no_grad():
        for _ in range(2):
            loss = compiled(weight, x)
            assert not loss.requires_grad
            np.testing.assert_allclose(loss.item(), np.tanh(INPUT @ WEIGHT).sum())
    assert repr(compiled).endswith("1 graph>")


def test_a_compiled_function_updates_leaves_in_place_in_no_grad(device: br.Device) -> None:
    @br.compile
    def step(weights: list[br.Tensor], grads: list[br.Tensor], rate: float) -> Any:
        weights[0] -= grads[0] * rate  # the list is not changed: the tensor is the same leaf
        weights[2].data = weights[2] + 1.0
        return weights[0], grads[0].sum()

    leaves = [device.tensor([1.0, 2.0]).requires_grad_() for _ in range(3)]
    before, older = [*leaves], [leaf.detach() for leaf in leaves]
    grads = [device.tensor([1.0, 1.0])]
    leaves[0].grad = device.tensor([5.0, 5.0])
    for count in range(1, 4):
        with br.no_grad():
            shown, total = step(leaves, grads, 0.5)
        assert not shown.requires_grad
        assert shown.numpy().tolist() == [1.0 - count / 2, 2.0 - count / 2]
        assert leaves[0].numpy().tolist() == shown.numpy().tolist()
        assert leaves[1].numpy().tolist() == [1.0, 2.0]
        assert leaves[2].numpy().tolist() == [1.0 + count, 2.0 + count]
        assert total.item() == 2.0
    assert repr(step).endswith("1 graph>")
    assert all(one is old and one.is_leaf for one, old in zip(leaves, before, strict=True))
    assert leaves[0].grad is not None
    assert older[0].numpy().tolist() == [1.0, 2.0]
    (leaves[0] * 2.0).sum().backward()
    assert leaves[0].grad.numpy().tolist() == [7.0, 7.0]


def test_untracked_tensors_and_results_are_not_updated_by_a_compiled_function(
    device: br.Device,
) -> None:
    @br.compile
    def step(w: br.Tensor) -> br.Tensor:
        w -= 1.0
        return w

    w = device.tensor([1.0]).requires_grad_()
    result, plain = w * 2.0, w.detach()
    with br.no_grad():
        for _ in range(2):
            assert step(result).item() == 1.0
            assert step(plain).item() == 0.0
        assert step(w).item() == 0.0
        assert step(w).item() == -1.0
    assert (w.item(), result.item(), plain.item()) == (-1.0, 2.0, 1.0)


def test_one_leaf_that_is_two_arguments_is_updated_uncompiled(device: br.Device) -> None:
    @br.compile
    def step(w: br.Tensor, same: br.Tensor) -> br.Tensor:
        w -= 1.0
        return same * 1.0

    w = device.tensor([1.0]).requires_grad_()
    with br.no_grad():
        assert step(w, w).item() == 0.0
    assert w.item() == 0.0


def test_a_compiled_function_takes_the_gradients_of_leaves_in_no_grad(device: br.Device) -> None:
    @br.compile
    def step(weights: dict[str, br.Tensor], rate: float) -> Any:
        for w in weights.values():
            if w.grad is not None:
                w -= w.grad * rate
        return weights["a"].grad

    weights = {name: device.tensor([1.0, 2.0]).requires_grad_() for name in "abc"}
    for count in range(1, 4):
        (weights["a"] * weights["b"].detach() + weights["b"]).sum().backward()
        with br.no_grad():
            returned = step(weights, 0.5)
        assert returned is not None
        assert weights["a"].grad is not None
        assert returned.numpy().tolist() == weights["a"].grad.numpy().tolist()
        assert weights["b"].numpy().tolist() == [1.0 - count / 2, 2.0 - count / 2]
        assert weights["c"].grad is None
        for w in weights.values():
            w.grad = None
    # b was 1.0, 0.5 and 0.0 when its elements were the gradients of a.
    assert weights["a"].numpy().tolist() == [1.0 - 0.75, 2.0 - 2.25]
    assert repr(step).endswith("1 graph>")
    with br.no_grad():
        assert step(weights, 0.5) is None  # recorded again: there are no gradients
    assert weights["b"].numpy().tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("has_grad", [False, True])
def test_a_compiled_function_cannot_add_to_the_grad_of_a_leaf(
    device: br.Device, has_grad: bool
) -> None:
    @br.compile
    def step(w: br.Tensor) -> None:
        with br.enable_grad():
            (w * w).sum().backward()

    w = device.tensor([1.0]).requires_grad_()
    before = w.grad = device.tensor([5.0]) if has_grad else None
    refused = pytest.raises(br.UsageError, match=r"changes the \.grad of an argument, by backward")
    with br.no_grad(), refused:
        step(w)
    assert w.grad is before


def test_a_training_step_of_a_perceptron_takes_at_most_45_operations(device: br.Device) -> None:
    shapes = {"hidden": (128, 784), "bias": (128,), "out": (10, 128), "out_bias": (10,)}
    weights = {name: br.zeros(shape, device=device) for name, shape in shapes.items()}
    x, labels = br.zeros((4, 784), device=device), device.tensor([1, 2, 3, 4])

    def loss_of(weights: dict[str, br.Tensor]) -> br.Tensor:
        hidden = F.relu(F.linear(x, weights["hidden"], weights["bias"]))
        return F.cross_entropy(F.linear(hidden, weights["out"], weights["out_bias"]), labels)

    counter = Counter(device.client)
    device.client = counter
    try:
        _, grads = br.value_and_grad(loss_of)(weights)
        br.tree.map(lambda weight, grad: weight - grad * 0.1, weights, grads)
    finally:
        device.client = counter.inner
    assert 31 <= len(counter.names) <= 45

    # In the order of the weights in memory, which updates can use without strided access.
    products = [shape for name, shape in counter.made if name == "LinearWeightBackward"]
    assert products == [shapes["out"], shapes["hidden"]]
    # Only the forward pass transposes: the gradients of the transposed weights need no transpose.
    assert counter.names.count("SwapDims") == 2


@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_gradients_of_a_linear_weight_are_those_of_a_product(
    is_transposed: bool, device: br.Device
) -> None:
    random = np.random.default_rng(0)
    x, weight = (
        device.tensor(random.normal(size=shape)).requires_grad_() for shape in ((5, 3), (3, 4))
    )

    def second(layer: Callable[[br.Tensor, br.Tensor], br.Tensor]) -> list[Any]:
        first: Any
        w = weight.T.detach().requires_grad_() if is_transposed else weight
        used = w.T if is_transposed else w
        loss = (layer(x, used) ** 3).sum()
        (first,) = br.autograd.grad(loss, [w], create_graph=True)
        # The transpose arrives twice at the weight here, and once at another operation.
        both = (layer(x, used) * layer(x, used)).sum() + (used * used).sum()
        (summed,) = br.autograd.grad(both, [w], retain_graph=True)
        return [first, summed, *br.autograd.grad((first * first).sum(), [x, w])]

    found = second(lambda x, w: F.linear(x, w.T))
    wanted = second(lambda x, w: x @ w)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12)
