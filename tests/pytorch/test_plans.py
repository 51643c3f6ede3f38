"""Calls that are like earlier ones: fewer tasks, and the same results."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import burn_remote as br
from support.session_tasks import Tasks

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
plans = importlib.import_module("burn_remote.torch.call_plans")
functional: Any = torch.nn.functional
pytestmark = pytest.mark.torch

# A call is remembered when it is first seen, recorded when it is seen again, and then repeated.
REPEATED = 4


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with pytest.MonkeyPatch.context() as patch:
        yield Tasks(patch)


@pytest.fixture(scope="module")
def device(tasks: Tasks) -> Any:
    return brt.local()  # it keeps the methods of sessions that ``tasks`` has patched


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def is_close(ours: Any, theirs: Any) -> bool:
    return bool(torch.allclose(ours.cpu(), theirs, atol=1e-5, equal_nan=True))


def test_a_repeated_operation_is_one_task_with_the_views_that_it_reads(
    device: Any, tasks: Tasks
) -> None:
    x, w = drawn(2, 3, 16), drawn(8, 5, seed=1)
    ours, our_w = x.to(device), w.to(device)
    for _ in range(REPEATED):
        tasks.taken()
        result = torch.layer_norm(ours.view(6, 2, 8).transpose(0, 1), (8,)) @ our_w[:, 1:4]
    assert tasks.taken() == (0, 2)
    assert is_close(result, torch.layer_norm(x.view(6, 2, 8).transpose(0, 1), (8,)) @ w[:, 1:4])


def test_a_repeated_operation_reads_what_was_written_between(device: Any) -> None:
    def run(place: Any) -> Any:
        x, w = drawn(4, 6).to(place), drawn(3, 5, seed=1).to(place)
        view = x.view(4, 2, 3)[:, 1]
        results = []
        for step in range(REPEATED + 2):
            results.append(view @ w)
            x.t()[3].mul_(step + 0.5)
            view[1:].add_(step)
        return torch.stack([*results, view @ w])

    assert is_close(run(device), run("cpu"))


@pytest.mark.parametrize(
    "numbers", [(1, 1.0, True), (0.0, -0.0), (float("nan"), 2.0, float("nan")), (2, 3, 2.5)]
)
def test_numbers_that_differ_are_told_apart(device: Any, numbers: tuple[Any, ...]) -> None:
    x = torch.tensor([1, 0, -2])
    ours = x.to(device)
    for _ in range(REPEATED):
        for number in numbers:
            found, expected = ours * number, x * number
            assert found.dtype is expected.dtype
            assert torch.equal(torch.signbit(found.cpu()), torch.signbit(expected))
            assert is_close(found, expected)


def test_another_default_dtype_is_noticed(device: Any) -> None:
    x = torch.tensor([1, 2, 3], device=device)
    dtypes = []
    try:
        for dtype in (torch.float32, torch.float64) * REPEATED:
            torch.set_default_dtype(dtype)
            dtypes.append((x / 2).dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    assert dtypes == [torch.float32, torch.float64] * REPEATED


def test_results_lie_in_memory_as_on_the_cpu_each_time(device: Any) -> None:
    x = drawn(3, 4, 5).transpose(0, 2)
    ours = drawn(3, 4, 5).to(device).transpose(0, 2)
    for _ in range(REPEATED):
        assert torch.exp(ours).stride() == torch.exp(x).stride()
        assert is_close(torch.exp(ours).view(x.t().shape if x.dim() == 2 else x.shape), x.exp())
        lowest, places = ours.min(1)
        assert is_close(lowest, x.min(1)[0])
        assert is_close(places, x.min(1)[1])


def test_a_server_that_keeps_no_more_graphs_gets_single_operations(
    device: Any, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MAX_GRAPHS", 0)
    x = drawn(4, 7)
    ours = x.to(device)
    for _ in range(REPEATED):
        tasks.taken()
        result = functional.layer_norm(ours, (7,))
    operations, graphs = tasks.taken()
    assert operations > 1
    assert graphs == 0
    assert is_close(result, functional.layer_norm(x, (7,)))


def test_a_failure_names_the_line_of_its_own_call(device: Any) -> None:
    x, places = drawn(4, 2).to(device), torch.tensor([0, 1], device=device)
    for _ in range(REPEATED):
        x.t().index_select(1, places).sum().item()
    places.add_(9)
    failed = x.t().index_select(1, places)  # this line
    with pytest.raises(br.OperationFailed) as raised:
        failed.cpu()
    lines = Path(__file__).read_text().splitlines()
    number = next(at for at, line in enumerate(lines, 1) if line.endswith("# this line"))
    assert f"test_plans.py:{number}" in str(raised.value)


def test_numbers_are_drawn_anew_and_repeated_for_a_seed(device: Any) -> None:
    x = torch.ones(64, device=device)
    seen = []
    for _ in range(2):
        torch.manual_seed(3)
        seen.append([functional.dropout(x, 0.5).cpu() for _ in range(REPEATED)])
    assert all(torch.equal(*pair) for pair in zip(*seen, strict=True))
    assert not torch.equal(seen[0][2], seen[0][3])


def test_an_optimizer_with_a_schedule_updates_all_parameters_by_few_tasks(
    device: Any, tasks: Tasks
) -> None:
    results = []
    for place in (device, "cpu"):
        parameters = [
            drawn(*shape, seed=at).to(place).requires_grad_()
            for at, shape in enumerate([(3, 4), (5,), (2, 2), (3, 4)])
        ]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for step in range(REPEATED + 2):
            for at, parameter in enumerate(parameters):
                parameter.grad = drawn(*parameter.shape, seed=10 * step + at).to(place)
            tasks.taken()
            optimizer.step()
            counts = tasks.taken()
            schedule.step()
        if place is device:
            assert counts[0] == 0
            assert counts[1] <= 8
        results.append(parameters)
    assert all(is_close(ours.detach(), theirs) for ours, theirs in zip(*results, strict=True))


def test_an_invalid_call_raises_the_same_error_each_time(device: Any) -> None:
    x, y = drawn(3, 4).to(device), drawn(3, 5).to(device)
    for _ in range(REPEATED):
        with pytest.raises(RuntimeError, match="4"):
            x @ y


def test_nothing_waits_for_a_garbage_collection(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection takes longer than a step, and may end the process in a backward pass."""
    collected: list[Any] = []
    monkeypatch.setattr("burn_remote.graphs.recorded_call.gc.collect", lambda: collected.append(1))
    w = drawn(6, 6).to(device).requires_grad_()
    optimizer = torch.optim.Adam([w])
    for step in range(REPEATED):
        x = drawn(6, 6, seed=step).to(device)
        torch.cat([x, functional.layer_norm(x.t() @ w, (6,))[[0, 2]]]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not collected


def repeated_rows(x: Any, y: Any) -> None:
    torch._foreach_add_([x[0], x[0]], 1.0)


def crossed_rows(x: Any, y: Any) -> None:
    torch._foreach_add_([x, y], [y, x])


def overlapping_rows(x: Any, y: Any) -> None:
    torch._foreach_mul_([x[:2], x[1:], y[1:]], [2.0, 3.0, 0.5])


def a_factor_among_the_targets(x: Any, y: Any) -> None:
    torch._foreach_mul_([x, y[0, 0], y[1]], y[0, 0])


def rows_apart(x: Any, y: Any) -> None:
    torch._foreach_mul_([x[:2], x[2:], y], [y[:2], y[2:], x])


@pytest.mark.parametrize(
    "update",
    [repeated_rows, crossed_rows, overlapping_rows, a_factor_among_the_targets, rows_apart],
)
def test_an_update_of_a_list_sees_the_updates_of_earlier_members(device: Any, update: Any) -> None:
    for step in range(REPEATED):
        results = []
        for place in (device, "cpu"):
            x, y = drawn(4, 3, seed=step).to(place), drawn(4, 3, seed=step + 9).to(place)
            update(x, y)
            results.append((x, y))
        assert all(is_close(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_a_plan_whose_outputs_are_not_described_yet_is_not_used(device: Any) -> None:
    """Another thread may find a plan between its recording and the description of its results."""
    x = drawn(3, 7).to(device)
    results = [torch.exp(x)]
    record = plans.Planner.record

    def record_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorded = record(self, *args, **kwargs)
        results.append(torch.exp(x))
        return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans.Planner, "record", record_and_call)
        results.append(torch.exp(x))
    results.append(torch.exp(x))
    assert len(results) == 4
    assert all(is_close(one, drawn(3, 7).exp()) for one in results)


def test_half_of_the_channels_are_dropped_with_the_default_chance(device: Any) -> None:
    x = torch.ones(64, 64, 1, 1, device=device)
    for _ in range(REPEATED):
        kept = functional.dropout2d(x, 0.5).cpu()
        assert set(kept.flatten().tolist()) == {0, 2}
        assert 0.4 < kept.bool().float().mean() < 0.6


def test_an_update_of_a_list_between_forward_and_backward_is_noticed(device: Any) -> None:
    for _ in range(REPEATED):
        w = drawn(3).to(device).requires_grad_()
        loss = (w * w).sum()
        with torch.no_grad():
            torch._foreach_add_([w], 1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_backward_passes_start_from_one_tensor_without_an_operation(
    device: Any, tasks: Tasks
) -> None:
    loss = torch.tensor(2.0, device=device)
    torch.ones_like(loss)
    tasks.taken()
    first = torch.ones_like(loss)
    assert tasks.taken() == (0, 0)
    first.mul_(5)
    second = torch.ones_like(loss, requires_grad=True)
    assert (first.item(), second.item(), second.requires_grad) == (5, 1, True)
    assert torch.ones_like(loss, dtype=torch.int32).dtype is torch.int32
    assert torch.ones_like(loss, device="cpu").device.type == "cpu"
    other = brt.local()
    assert torch.ones_like(loss, device=other).device == other
    assert torch.ones_like(loss.to(other)).item() == 1
