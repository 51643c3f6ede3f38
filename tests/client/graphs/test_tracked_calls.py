"""Compiled functions of tracked tensors: one task forward, one task backward, eager's gradients."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote.graphs import tracked_call
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.operation_graph import Graph
from burn_remote_protocol.operations.row import Signature
from support.gradient_cases import CASES, Case
from support.waiting import PATIENCE_SECONDS

# Without the type of gradients that may be None.
gradients_of: Any = br.autograd.grad


@pytest.fixture
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        local.seed(0)
        yield local


class Tasks(ForwardingRunner):
    """Lists the tasks of a device; a graph is one task."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.names: list[str] = []

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        self.names.append(signature.row.name)
        return super().register_op(signature, inputs)

    def register_graph(
        self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
    ) -> tuple[TensorHandle, ...]:
        self.names.append("graph")
        return self.inner.register_graph(graph, inputs, numbers)


def loss_of(params: dict[str, br.Tensor], x: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
    hidden = (x @ params["in"]).relu()
    logits = hidden @ params["out"]
    return -F.log_softmax(logits, dim=-1).mean(), hidden


def parameters(device: br.Device) -> dict[str, br.Tensor]:
    return {
        name: br.random.normal(shape, device=device).requires_grad_()
        for name, shape in (("in", (4, 6)), ("out", (6, 3)))
    }


def gradients(
    function: Callable[..., Any], leaves: Sequence[br.Tensor], *arguments: Any
) -> list[Any]:
    """Return the elements of a result and of its gradients."""
    result = function(*arguments)
    found = gradients_of(result.sum(), leaves, allow_unused=True)
    return [one if one is None else one.numpy() for one in (result, *found)]


def test_gradients_through_a_compiled_function_have_eager_bits(device: br.Device) -> None:
    fast = br.compile(loss_of)
    params = parameters(device)
    for _ in range(3):
        x = br.random.normal((5, 4), device=device)
        seen = []
        for function in (loss_of, fast):
            loss, hidden = function(params, x)
            loss = loss + 0.1 * hidden.sum()
            grads = gradients_of(loss, [*params.values()])
            seen.append([one.numpy() for one in (loss, hidden, *grads)])
        for eager, compiled in zip(*seen, strict=True):
            np.testing.assert_array_equal(compiled, eager)
    assert repr(fast).endswith(": 1 graph>")


def test_a_tracked_call_is_one_task_and_its_backward_pass_another(device: br.Device) -> None:
    fast = br.compile(loss_of)
    params, x = parameters(device), br.random.normal((5, 4), device=device)
    tasks = Tasks(device.client)
    device.client = tasks
    try:
        for _ in range(2):
            tasks.names.clear()
            loss, _ = fast(params, x)
            assert tasks.names == ["graph"]  # also in the first call: recording executes nothing
            loss.backward()
            assert tasks.names[:3] == ["graph", "Full", "graph"]
            assert {*tasks.names[3:]} <= {"Add"}  # the sums with the gradients of the first call
    finally:
        device.client = tasks.inner


def test_recording_executes_no_operation(device: br.Device) -> None:
    fast = br.compile(lambda w: (w * 2).exp().sum())
    w = br.zeros((3,), device=device).requires_grad_()
    before = device.traffic.operations
    fast(w)
    first = device.traffic.operations
    fast(w)
    assert first - before == device.traffic.operations - first


def test_only_results_that_the_loss_uses_give_gradients(device: br.Device) -> None:
    fast = br.compile(lambda w: (w * 3, 1 / w))
    w = br.zeros((2,), device=device).requires_grad_()
    tripled, _ = fast(w)  # the gradient of the other result is infinite, and times 0 NaN
    tripled.sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), [3, 3])
    w.grad = None
    _, inverse = fast(w)
    inverse.sum().backward()
    assert np.isinf(w.grad.numpy()).all()


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_gradients_of_every_kind_of_operation_have_eager_bits(
    case: Case, device: br.Device
) -> None:
    fast = br.compile(case.function)

    def of(function: Callable[..., Any]) -> list[Any]:
        leaves = [
            br.tensor(array, device=device, dtype=br.float64).requires_grad_()
            for array in case.inputs
        ]
        result = function(*leaves)
        if not result.requires_grad:
            return [result.numpy()]
        total = br.abs(result).sum() if result.dtype.is_complex else (result * result).sum()
        found = gradients_of(total, leaves, allow_unused=True)
        return [
            one.numpy() if one is not None else np.zeros(leaf.shape)
            for one, leaf in zip((result, *found), (result, *leaves), strict=True)
        ]

    with warnings.catch_warnings():
        # Cases that upload their fixed inputs cannot be recorded, and run uncompiled.
        warnings.filterwarnings("ignore", message=".*uploads a tensor")
        for _ in range(2):
            for compiled, eager in zip(of(fast), of(case.function), strict=True):
                np.testing.assert_array_equal(compiled, eager)


def test_gradients_of_gradients_pass_a_compiled_function(device: br.Device) -> None:
    def cubed(w: br.Tensor) -> br.Tensor:
        return (w * w * w).sum()

    fast = br.compile(cubed)
    w = br.tensor([1.0, -2.0], device=device).requires_grad_()
    (first,) = gradients_of(fast(w), [w], create_graph=True)
    (second,) = gradients_of(first.sum(), [w])
    np.testing.assert_allclose(second.numpy(), [6, -12])


def test_gradients_of_gradients_refuse_random_numbers(device: br.Device) -> None:
    fast = br.compile(lambda w: (w * br.random.uniform((2,), device=device) * w).sum())
    w = br.ones((2,), device=device).requires_grad_()
    loss = fast(w)
    with pytest.raises(br.UsageError, match="draws random numbers"):
        gradients_of(loss, [w], create_graph=True)


def test_a_second_backward_pass_needs_retain_graph(device: br.Device) -> None:
    fast = br.compile(lambda w: (w * w).sum())
    w = br.ones((2,), device=device).requires_grad_()
    loss = fast(w)
    loss.backward(retain_graph=True)
    loss.backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), [4, 4])
    with pytest.raises(br.UsageError, match="retain_graph=True"):
        loss.backward()


def test_numbers_change_from_call_to_call_without_another_graph(device: br.Device) -> None:
    fast = br.compile(lambda w, rate, power: ((w * rate) ** power).sum())
    w = br.tensor([2.0], device=device).requires_grad_()
    pending = [(fast(w, rate, 2.0), rate) for rate in (1.0, 3.0, 0.5)]
    for loss, rate in reversed(pending):
        (grad,) = gradients_of(loss, [w])
        np.testing.assert_allclose(grad.numpy(), [2 * 2.0 * rate**2], rtol=1e-6)
    assert repr(fast).endswith(": 1 graph>")


def test_a_number_that_decides_a_branch_makes_another_graph(device: br.Device) -> None:
    fast = br.compile(lambda w, n: (w * n if n > 0 else w / n).sum())
    w = br.tensor([2.0], device=device).requires_grad_()
    for n, expected in ((2.0, 2.0), (-4.0, -0.25), (5.0, 5.0)):
        (grad,) = gradients_of(fast(w, n), [w])
        assert grad.item() == expected
    assert repr(fast).endswith(": 2 graphs>")


def test_random_numbers_of_a_call_are_those_of_its_gradient(device: br.Device) -> None:
    fast = br.compile(lambda w: w * (br.random.uniform((64,), device=device) > 0.5))
    w = br.ones((64,), device=device).requires_grad_()
    masks = []
    for _ in range(2):
        dropped = fast(w)
        (grad,) = gradients_of(dropped.sum(), [w])
        np.testing.assert_array_equal(grad.numpy(), dropped.numpy())
        masks.append(grad.numpy())
    assert (masks[0] != masks[1]).any()


def test_detached_tensors_inside_get_no_gradient(device: br.Device) -> None:
    # A straight-through estimator: the gradient is that of the identity.
    fast = br.compile(lambda w: (w + (w.round() - w).detach()).sum())
    w = br.tensor([0.3, 1.7], device=device).requires_grad_()
    loss = fast(w)
    assert loss.item() == 2
    (grad,) = gradients_of(loss, [w])
    np.testing.assert_array_equal(grad.numpy(), [1, 1])


def test_gradients_defined_inside_are_used(device: br.Device) -> None:
    def forward(x: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        y = br.exp(x)
        return br.log(1.0 + y), y

    @br.custom_vjp(forward, lambda y, grad: grad * y * 100)
    def own(x: br.Tensor) -> br.Tensor:
        return br.log(1.0 + br.exp(x))

    doubled: Any = br.checkpoint(lambda one: one.tanh() * 2)

    def block(x: br.Tensor) -> Any:
        return doubled(own(x))

    w = br.tensor([0.3, 1.7], device=device).requires_grad_()
    fast = br.compile(block)
    for _ in range(2):
        for one, other in zip(gradients(fast, [w], w), gradients(block, [w], w), strict=True):
            np.testing.assert_array_equal(one, other)


def test_results_without_tracked_inputs_are_not_tracked(device: br.Device) -> None:
    fast = br.compile(lambda w, x: {"sum": w + x, "index": w.argmax(), "twice": x * 2, "x": x})
    w = br.ones((2,), device=device).requires_grad_()
    x = br.ones((2,), device=device)
    result = fast(w, x)
    assert {name for name, one in result.items() if one.requires_grad} == {"sum"}
    assert result["x"] is x
    assert not fast(w.detach(), x)["sum"].requires_grad


def test_a_tracked_argument_that_is_returned_stays_the_leaf(device: br.Device) -> None:
    w = br.ones((2,), device=device).requires_grad_()
    same, doubled = br.compile(lambda w: (w, w * 2))(w)
    assert same is w
    doubled.sum().backward()
    assert w.grad is not None


def test_intermediate_tensors_pass_gradients_through_a_compiled_function(
    device: br.Device,
) -> None:
    fast = br.compile(lambda x, y: (x * y).sum())
    w = br.tensor([2.0, 3.0], device=device).requires_grad_()
    fast(w.exp(), w).backward()
    assert w.grad is not None
    elements = np.array([2.0, 3.0])
    np.testing.assert_allclose(
        w.grad.numpy(),
        np.exp(elements) * (elements + 1),
        rtol=1e-6,
    )


def test_one_leaf_as_two_arguments_gets_the_sum_of_their_gradients(device: br.Device) -> None:
    fast = br.compile(lambda x, y: (x * 2 + y * 5).sum())
    w = br.ones((1,), device=device).requires_grad_()
    fast(w, w).backward()
    assert w.grad is not None
    assert w.grad.item() == 7


def test_only_the_gradients_that_are_wanted_are_computed(device: br.Device) -> None:
    fast = br.compile(lambda x, y: (x @ y).sum())
    x = br.ones((3, 3), device=device).requires_grad_()
    y = br.ones((3, 3), device=device).requires_grad_()
    counts = []
    for wanted in ([x], [x, y]):
        loss = fast(x, y)
        before = device.traffic.operations
        gradients_of(loss, wanted)
        counts.append(device.traffic.operations - before)
    assert counts[0] < counts[1]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda w: w * w.sum().item(), "reads the elements of a tensor"),
        (lambda w: (w * br.tensor([1.0, 2.0], device=w.device)).sum(), "uploads a tensor"),
        (lambda w: w.detach(), "returns a tracked argument as another tensor"),
    ],
)
def test_a_function_that_cannot_be_recorded_runs_uncompiled(
    function: Any, reason: str, device: br.Device
) -> None:
    fast = br.compile(function)
    w = br.tensor([1.0, 3.0], device=device).requires_grad_()
    with pytest.warns(UserWarning, match=f"tracked tensors and runs uncompiled: .*{reason}"):
        first = fast(w)
    second = fast(w)  # warns once
    np.testing.assert_array_equal(first.numpy(), function(w).numpy())
    assert second.requires_grad == function(w).requires_grad


def test_a_function_that_calls_backward_on_its_argument_runs_uncompiled(
    device: br.Device,
) -> None:
    def step(w: br.Tensor) -> br.Tensor:
        loss = (w * w).sum()
        loss.backward()
        return loss.detach()

    w = br.tensor([1.0, 3.0], device=device).requires_grad_()
    with pytest.warns(UserWarning, match="changes a tracked argument"):
        br.compile(step)(w)
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), [2, 6])


def test_what_the_warning_about_retain_grad_advises_is_compiled(device: br.Device) -> None:
    def retains(w: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        hidden = w * 2
        hidden.retain_grad()
        return (hidden * hidden).sum(), hidden

    def returns(w: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        hidden = w * 2
        loss = (hidden * hidden).sum()
        return loss, gradients_of(loss, hidden)[0]

    w = br.tensor([1.0, 3.0], device=device).requires_grad_()
    with pytest.warns(UserWarning, match=r"calls retain_grad\(\); return the gradient"):
        loss, hidden = br.compile(retains)(w)
    loss.backward()
    assert hidden.grad is not None
    fast = br.compile(returns)
    for _ in range(2):
        loss, gradient = fast(w)  # without a warning
        np.testing.assert_array_equal(gradient.numpy(), hidden.grad.numpy())
    assert "1 graph>" in repr(fast)


def test_a_captured_tracked_tensor_gets_its_gradient_uncompiled(device: br.Device) -> None:
    captured = br.ones((2,), device=device).requires_grad_()
    fast = br.compile(lambda w: (w * captured).sum())
    w = br.tensor([1.0, 3.0], device=device).requires_grad_()
    with pytest.warns(UserWarning, match=r"captured \(float32\[2\]\), a tensor that is not an"):
        fast(w).backward()
    assert captured.grad is not None
    np.testing.assert_array_equal(captured.grad.numpy(), [1, 3])


def test_a_tensor_that_is_stored_outside_is_refused_and_unusable(device: br.Device) -> None:
    kept: list[br.Tensor] = []

    def function(w: br.Tensor) -> br.Tensor:
        hidden = (w * 2).exp()  # its gradient needs it, so it is also kept for later calls
        kept.append(hidden)
        return hidden.sum()

    w = br.ones((2,), device=device).requires_grad_()
    # The container is a guard, so its change is also warned about.
    with pytest.raises(br.UsageError, match=r"stores the tensor made at .* outside"):
        br.compile(function)(w)
    with pytest.raises(br.UsageError, match="so it has no elements"):
        kept[0].numpy()
    with pytest.raises(br.UsageError, match="so it has no elements"):
        _ = kept[0] * w
    assert (w * 2).sum().item() == 4  # the session lives


def test_an_error_of_the_function_is_the_one_of_an_uncompiled_call(device: br.Device) -> None:
    fast = br.compile(lambda w: w @ br.ones((5, 5), device=w.device))
    w = br.ones((2, 2), device=device).requires_grad_()
    with pytest.raises(br.ShapeMismatch):
        fast(w)


def test_an_operation_that_fails_names_its_line(device: br.Device) -> None:
    def function(w: br.Tensor, index: br.Tensor) -> br.Tensor:
        return (w * 2).take(index, axis=0).sum()

    w = br.ones((2,), device=device).requires_grad_()
    loss = br.compile(function)(w, br.tensor([7], device=device))
    with pytest.raises(br.OperationFailed, match=r"test_tracked_calls\.py"):
        loss.item()


def test_a_gradient_that_does_not_exist_is_refused_with_its_operation(device: br.Device) -> None:
    fast = br.compile(lambda w: br.linalg.svd(w)[0].sum())
    w = br.random.normal((3, 2), device=device).requires_grad_()
    loss = fast(w)
    with pytest.raises(br.UsageError, match="full_matrices"):
        loss.backward()
    assert (w * 0).sum().item() == 0


def test_a_compiled_function_keeps_no_device_and_no_tensor(device: br.Device) -> None:
    fast = br.compile(loss_of)
    own = br.LocalDevice()
    params, x = parameters(own), br.random.normal((5, 4), device=own)
    loss, _ = fast(params, x)
    loss.backward()
    kept: list[Any] = [weakref.ref(one) for one in (own.runners, loss, x)]
    own.close()
    del own, params, x, loss, _
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)


def test_a_call_without_a_backward_pass_leaves_nothing(device: br.Device) -> None:
    fast = br.compile(loss_of)
    params, x = parameters(device), br.random.normal((5, 4), device=device)
    fast(params, x)
    device.sync()
    alive = tensor_count(device)
    for _ in range(50):
        fast(params, x)
    device.sync()
    assert tensor_count(device) <= alive


def tensor_count(device: br.Device) -> int:
    engine: Any = device.session._connection._link._engine
    return len(engine._tensors)


def test_a_function_keeps_a_bounded_number_of_backward_graphs(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked_call, "MAX_BACKWARD_GRAPHS", 2)
    graphs: list[Graph] = []

    class Graphs(ForwardingRunner):
        def register_graph(
            self, graph: Graph, inputs: Sequence[TensorHandle], numbers: Sequence[Any]
        ) -> tuple[TensorHandle, ...]:
            if all(one is not graph for one in graphs):
                graphs.append(graph)
            return self.inner.register_graph(graph, inputs, numbers)

    fast = br.compile(lambda x: (x.exp(), x.sin(), x * x))
    x = br.random.normal((3,), device=device).requires_grad_()
    around = Graphs(device.client)
    device.client = around
    try:
        for place in (0, 1, 2, 0):
            eager = (x.exp(), x.sin(), x * x)[place]
            (seen,) = gradients_of(fast(x)[place].sum(), [x])
            (expected,) = gradients_of(eager.sum(), [x])
            np.testing.assert_array_equal(seen.numpy(), expected.numpy())
    finally:
        device.client = around.inner
    # The forward graph, and a backward graph in each round: the last one replaces the first again.
    assert len(graphs) == 5


def test_threads_compute_gradients_of_one_compiled_function(device: br.Device) -> None:
    fast = br.compile(loss_of)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        try:
            params = parameters(device)
            x = br.tensor(
                np.random.default_rng(seed).normal(size=(5, 4)).astype(np.float32), device=device
            )
            start.wait(PATIENCE_SECONDS)
            for _ in range(20):
                grads = []
                for function in (fast, loss_of):
                    loss, _ = function(params, x)
                    found = gradients_of(loss, [*params.values()])
                    grads.append([one.numpy() for one in found])
                for one, other in zip(*grads, strict=True):
                    np.testing.assert_array_equal(one, other)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
