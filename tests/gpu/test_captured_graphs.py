"""Compiled functions on a GPU give the bits of single operations, also as captured CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional
from burn_remote_server.backends import Backend
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.random_programs import difference, drawn_program, run_eagerly, run_graph
from support.servers import RunningServer, server
from support.waiting import wait_until

pytestmark = pytest.mark.gpu

# NVIDIA's compiler takes 0.3 s for a kernel, and longer on a busy machine.
COMPILE_SECONDS = 60.0


@pytest.fixture
def running() -> Iterator[RunningServer]:
    with server("--backend", "cupy") as found:
        yield found


@pytest.fixture
def device(running: RunningServer) -> Iterator[br.RemoteDevice]:
    with br.RemoteDevice(running.address) as found:
        yield found


def replays(running: RunningServer) -> float:
    return running.metric("burn_remote_graph_replays_total")


def call_until_captured(call: Callable[[], Any], running: RunningServer) -> None:
    """Call a compiled function until the server launches what it captured of it."""
    before = replays(running)

    def is_replayed() -> bool:
        call()
        return replays(running) > before

    wait_until(is_replayed, COMPILE_SECONDS)


def perceptron(device: br.Device) -> list[br.Tensor]:
    draw = np.random.default_rng(0)
    shapes = (64, 784), (64, 10), (784, 256), (1, 256), (256, 10), (1, 10)
    arrays = [draw.standard_normal(shape, np.float32) * np.float32(0.1) for shape in shapes]
    return [br.tensor(array, device=device) for array in arrays]


def training_step(
    x: br.Tensor,
    y: br.Tensor,
    parameters: list[br.Tensor],
    rate: float,
) -> list[br.Tensor]:
    w1, b1, w2, b2 = parameters
    hidden = (x @ w1 + b1).relu()
    logits = hidden @ w2 + b2
    d_logits = (logits.softmax(axis=-1) - y) * (1 / 64)
    d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(br.float32)
    return [
        w1 - (x.T @ d_hidden) * rate, b1 - d_hidden.sum(axis=0, keepdims=True) * rate,
        w2 - (hidden.T @ d_logits) * rate, b2 - d_logits.sum(axis=0, keepdims=True) * rate,
    ]  # fmt: skip


def test_training_has_the_bits_of_single_operations(
    running: RunningServer, device: br.Device
) -> None:
    x, y, *start = perceptron(device)
    compiled = br.compile(training_step)
    call_until_captured(lambda: compiled(x, y, start, 0.1), running)
    rates = [0.1, 0.05, 0.2, 0.1, 0.07, 0.01, 0.3, 0.1]
    single = captured = start
    before = replays(running)
    for rate in rates:
        single = training_step(x, y, single, rate)
        captured = compiled(x, y, captured, rate)
    for one, other in zip(single, captured, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert replays(running) - before >= len(rates)
    assert running.metric("burn_remote_graph_captures_refused_total") == 0


def test_results_of_earlier_calls_stay_as_they_are(
    running: RunningServer, device: br.Device
) -> None:
    double = br.compile(lambda x: ((x + x) * 3 - x) @ x)
    x = br.tensor(np.eye(32, dtype=np.float32), device=device)
    call_until_captured(lambda: double(x), running)
    results = [double(x * factor) for factor in range(10)]
    for factor, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), np.eye(32) * 5 * factor * factor)


def embedded(table: br.Tensor, index: br.Tensor, grads: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
    rows = br.take(table * 2, index, axis=0) + 1
    return rows, br.update_along(table + 0, 0, index, grads * rows, update="add")


def test_indices_out_of_range_fail_a_captured_graph(
    running: RunningServer, device: br.Device
) -> None:
    compiled = br.compile(embedded)
    table = br.tensor(np.arange(12, dtype=np.float32).reshape(6, 2), device=device)
    grads = br.tensor(np.arange(8, dtype=np.float32).reshape(4, 2), device=device)
    valid = br.tensor(np.array([5, 0, 5, 3]), device=device)
    call_until_captured(lambda: compiled(table, valid, grads), running)
    assert running.metric("burn_remote_graph_captures_refused_total") == 0
    for number, places in enumerate(([1, 1, 1, 1], [0, 6, 2, 0], [0, 5, 2, 0], [-7, 0, 0, 0])):
        index = br.tensor(np.array(places), device=device)
        rows, updated = compiled(table, index, grads)
        if number % 2:
            with pytest.raises(br.OperationFailed, match=r"index (6|-1) is out of range"):
                rows.numpy()
            with pytest.raises(br.OperationFailed, match="out of range"):
                updated.numpy()
            call_until_captured(lambda: compiled(table, valid, grads), running)
            continue
        expected = embedded(table, index, grads)
        np.testing.assert_array_equal(rows.numpy(), expected[0].numpy())
        np.testing.assert_array_equal(updated.numpy(), expected[1].numpy())


def embedding_step(table: br.Tensor, index: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
    def loss(table: br.Tensor) -> br.Tensor:
        rows = functional.embedding(index, table)
        return (rows * rows).sum()

    found: tuple[br.Tensor, br.Tensor] = br.value_and_grad(loss)(table)
    return found


def test_an_embedding_and_its_gradient_are_captured(
    running: RunningServer, device: br.Device
) -> None:
    compiled = br.compile(embedding_step)
    draw = np.random.default_rng(0)
    table = br.tensor(draw.normal(size=(50, 96)).astype(np.float32), device=device)
    index = br.tensor(draw.integers(0, 50, (16, 64)), device=device)
    call_until_captured(lambda: compiled(table, index), running)
    assert running.metric("burn_remote_graph_captures_refused_total") == 0
    expected = embedding_step(table, index)
    for one, other in zip(compiled(table, index), expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    loss, gradient = compiled(table, index + 1)
    for one in (loss, gradient):
        with pytest.raises(br.OperationFailed, match=r"indices is 50, expected in 0\.\.49"):
            one.numpy()


def test_operations_that_wait_divide_a_graph(running: RunningServer, device: br.Device) -> None:
    def divided(x: br.Tensor, y: br.Tensor) -> br.Tensor:
        return ((x + 1) * 2 // y + 1) * x

    compiled = br.compile(divided)
    x = br.tensor(np.arange(1, 13, dtype=np.int32), device=device)
    call_until_captured(lambda: compiled(x, x + 1), running)
    assert running.metric("burn_remote_graph_captures_refused_total") > 0
    for number in (1, 2, 3):
        y = x * 0 + number
        np.testing.assert_array_equal(compiled(x, y).numpy(), divided(x, y).numpy())


def test_looked_up_rows_have_the_bits_of_single_operations(
    running: RunningServer, device: br.Device
) -> None:
    def looked_up(table: br.Tensor, index: br.Tensor) -> br.Tensor:
        scaled = (table * 2 + 1).exp()
        taken = br.take(scaled, index, axis=0)
        return (taken - 1) * taken

    compiled = br.compile(looked_up)
    table = br.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2), device=device)
    index = br.tensor(np.array([5, 0, 3]), device=device)
    call_until_captured(lambda: compiled(table, index), running)
    for order in ([1, 1, 1], [0, 5, 2]):
        index = br.tensor(np.array(order), device=device)
        np.testing.assert_array_equal(
            compiled(table, index).numpy(), looked_up(table, index).numpy()
        )


def test_inputs_that_stay_and_inputs_that_change_are_told_apart(
    running: RunningServer, device: br.Device
) -> None:
    product = br.compile(lambda x, w: ((x @ w) * 2 + 1) @ w)
    eye = np.eye(8, dtype=np.float32)
    x, w = br.tensor(eye, device=device), br.tensor(eye, device=device)
    call_until_captured(lambda: product(x, w), running)
    for call in range(12):
        if call % 3 == 0:
            x = br.tensor(eye * call, device=device)
        if call % 4 == 0:
            w = br.tensor(eye * (call + 1), device=device)
        ours = product(x, w).numpy()
        np.testing.assert_array_equal(ours, ((x @ w) * 2 + 1).numpy() @ w.numpy())


def test_results_that_return_as_inputs_have_the_bits_of_single_operations(
    running: RunningServer, device: br.Device
) -> None:
    def step(x: br.Tensor, a: br.Tensor, b: br.Tensor, rate: float) -> tuple[br.Tensor, br.Tensor]:
        return (a @ x) * rate + b, (b + a) * 0.5

    compiled = br.compile(step)
    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal((16, 16), np.float32) * np.float32(0.1) for _ in range(6)]
    x, other, a, b, c, d = [br.tensor(array, device=device) for array in arrays]
    call_until_captured(lambda: compiled(x, a, b, 0.5), running)
    single = captured = a, b
    kept = []
    for number in range(24):
        given, rate = (x, other)[number % 3 == 0], (0.5, 0.25)[number % 4 == 0]
        if number % 7 == 5:  # other arrays than the results of the call before
            single = captured = c, d
        if number % 7 == 3:
            single, captured = single[::-1], captured[::-1]
        single = step(given, *single, rate)
        captured = compiled(given, *captured, rate)
        kept.append((single, captured))
    for expected, found in kept:
        for one, another in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one.numpy(), another.numpy())


def test_results_and_views_that_are_kept_are_not_overwritten(
    running: RunningServer, device: br.Device
) -> None:
    turned = br.compile(lambda x: (((x @ x) * 2 + 1) @ x, x.sum() + 1))
    eye = np.eye(64, dtype=np.float32)
    call_until_captured(lambda: turned(br.tensor(eye, device=device)), running)
    before = replays(running)
    kept: list[tuple[int, br.Tensor, br.Tensor]] = []
    for number in range(40):
        product, total = turned(br.tensor(eye * number, device=device))
        if number % 3 == 1:
            kept.append((number, product, total))
        if number % 3 == 2:  # only views of the results remain
            kept.append((number, product[:, 1:].T, br.reshape(total, (1, 1))))
        if number % 8 == 7:
            kept = kept[1:]
    for number, product, total in kept:
        expected = 2 * eye * number**3 + number
        view = expected[:, 1:].T if number % 3 == 2 else expected
        np.testing.assert_array_equal(product.numpy(), view)
        assert float(total.numpy().ravel()[0]) == 64 * number + 1
    device.sync()
    assert replays(running) >= before + 40


def test_inputs_that_are_returned_may_change_places(
    running: RunningServer, device: br.Device
) -> None:
    def swapped(a: br.Tensor, b: br.Tensor) -> tuple[br.Tensor, br.Tensor, br.Tensor]:
        return b, a, (a @ b) * 2 + 1

    compiled = br.compile(swapped)
    a, b = [br.tensor(np.eye(8, dtype=np.float32) * each, device=device) for each in (2, 3)]
    call_until_captured(lambda: compiled(a, b), running)
    first, second = a, b
    for number in range(6):
        first, second, product = compiled(first, second)
        assert first[0, 0].item() == (3, 2)[number % 2]
        assert second[0, 0].item() == (2, 3)[number % 2]
        np.testing.assert_array_equal(product.numpy(), np.eye(8) * 12 + 1)


def test_random_numbers_are_drawn_anew_in_each_call(
    running: RunningServer, device: br.Device
) -> None:
    @br.compile
    def noisy(x: br.Tensor) -> br.Tensor:
        return (br.random.uniform(x.shape, device=device) + x) * 2 - x

    x = br.zeros((16,), device=device)
    drawn = {noisy(x).numpy().tobytes() for _ in range(8)}
    assert len(drawn) == 8


def test_transposed_inputs_and_outputs_keep_their_elements(
    running: RunningServer, device: br.Device
) -> None:
    turned = br.compile(lambda x, y: ((x.T + y) * 2).T)
    x = br.tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=device)
    y = br.tensor(np.arange(12, dtype=np.float32).reshape(4, 3), device=device)
    expected = ((x.numpy().T + y.numpy()) * 2).T
    call_until_captured(lambda: turned(x, y), running)
    np.testing.assert_array_equal(turned(x, y).numpy(), expected)
    np.testing.assert_array_equal(turned(y.T, x.T).numpy(), ((y.numpy() + x.numpy().T) * 2).T)


def test_sessions_replay_their_graphs_side_by_side(running: RunningServer) -> None:
    devices = [br.RemoteDevice(running.address, token=f"session {place}") for place in range(3)]
    functions = [br.compile(lambda x, w: ((x @ w) + 1).relu() @ w) for _ in devices]
    draw = np.random.default_rng(1)
    arrays = [draw.integers(-3, 4, (64, 64)).astype(np.float32) for _ in devices]
    inputs = [
        (br.tensor(array, device=device), br.tensor(arrays[0], device=device))
        for array, device in zip(arrays, devices, strict=True)
    ]
    for function, pair in zip(functions, inputs, strict=True):
        call_until_captured(lambda function=function, pair=pair: function(*pair), running)  # type: ignore[misc]
    calls = [*zip(functions, inputs, strict=True)] * 20
    results = [function(*pair) for function, pair in calls]
    for place, result in enumerate(results):
        expected = np.maximum(arrays[place % 3] @ arrays[0] + 1, 0) @ arrays[0]
        np.testing.assert_array_equal(result.numpy(), expected)
    for device in devices:
        device.close()


def test_captured_memory_gives_way_to_tensors() -> None:
    with (
        server("--backend", "cupy", "--max-session-bytes", "64MiB") as running,
        br.RemoteDevice(running.address) as device,
    ):
        turned = br.compile(lambda x: ((x.T + 1) * 2).T - x)
        x = br.zeros((1024, 1024), device=device)
        call_until_captured(lambda: turned(x), running)
        held = [br.ones((2**20,), device=device) + place for place in range(12)]
        device.sync()
        assert running.metric("burn_remote_graph_captures_released_total") == 1
        np.testing.assert_array_equal(turned(x).numpy()[:2, 0], [2, 2])
        assert [float(each[0].numpy()) for each in held] == [1 + place for place in range(12)]


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_programs_have_the_bits_of_single_operations(gpu: Backend, first: int) -> None:
    fusing: Any = with_fusion(gpu)
    for seed in range(first, first + 10):
        program = drawn_program(seed)
        expected = run_eagerly(program, gpu)
        found, _ = run_graph(program, fused=True, backend=fusing, calls=2)
        fusing.fusion_runtime.compiler.wait()
        found, _ = run_graph(program, fused=True, backend=fusing, calls=5)
        problem = difference(found, expected)
        assert problem is None, f"seed {seed}: {problem}"
