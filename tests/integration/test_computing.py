"""Computation on a device, over every kind of link."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.lifetime import Flusher
from burn_remote.sessions.receiver import Receiver
from support.servers import RunningServer


def test_operations_run_where_the_tensors_are(device: br.Device) -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.random((5, 4)), rng.random((4, 3)), rng.random((3,))
    y = (
        br.tensor(x, device=device) @ br.tensor(w, device=device) + br.tensor(b, device=device)
    ).relu()
    np.testing.assert_allclose(y.numpy(), np.maximum(x @ w + b, 0), rtol=1e-12)


def test_an_extension_row_runs_and_is_differentiated_on_our_server(
    native_device: br.Device,
) -> None:
    x, y = np.array([3.0, 0.0, 1e200]), np.array([4.0, 0.0, 1e200])

    def length(a: br.Tensor) -> br.Tensor:
        return br.hypot(a, br.tensor(y, device=native_device)).sum()

    leg = br.tensor(x, device=native_device)
    np.testing.assert_allclose(br.hypot(leg, 4.0).numpy(), np.hypot(x, 4.0))
    np.testing.assert_allclose(br.grad(length)(leg).numpy(), [0.6, 0, np.sqrt(0.5)])


def test_an_extension_row_is_refused_by_name_in_burns_dialect(first_server: RunningServer) -> None:
    with br.RemoteDevice(first_server.address, dialect="burn-0.21") as device:
        x = br.ones((2,), device=device)
        with pytest.raises(br.Unsupported, match=r"Float\.Hypot is not an operation of Burn"):
            br.hypot(x, x)
        assert (x + x).numpy().tolist() == [2, 2]


def test_no_call_waits_before_a_read(device: br.Device) -> None:
    device.sync()
    before = device.traffic
    x = br.zeros((4, 4), device=device)
    for _ in range(10):
        x = x + 1
    assert x.shape == (4, 4)
    assert x.dtype is br.float32
    assert "Tensor" in repr(x)
    assert (device.traffic - before).bytes_received == 0
    assert x.numpy()[0, 0] == 10


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the flush timer: operations leave when a batch is full or a caller waits."""
    monkeypatch.setattr(Flusher, "schedule", lambda flusher, session: None)


@pytest.mark.usefixtures("unhurried")
def test_a_burst_of_operations_is_sent_in_few_frames(native_device: br.Device) -> None:
    x = br.zeros((16, 16), device=native_device)
    native_device.sync()
    before = native_device.traffic
    for _ in range(1000):
        x = x + 1
    native_device.sync()
    traffic = native_device.traffic - before
    assert traffic.operations == 1000
    assert traffic.frames_sent <= 8


WAITS: dict[str, Callable[[list[br.Tensor]], object]] = {
    "read": br.read,
    "aio.read": lambda tensors: asyncio.run(br.aio.read(tensors)),
    "aio.sync": lambda tensors: asyncio.run(br.aio.sync(*[x.device for x in tensors])),
    "Group.sync": lambda tensors: br.distributed.Group([x.device for x in tensors]).sync(),
}


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_the_requests_to_several_devices_are_sent_before_the_first_wait(
    first_server: RunningServer,
    second_server: RunningServer,
    dialect: str,
    wait: Callable[[list[br.Tensor]], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[list[int]] = []
    with contextlib.ExitStack() as stack:
        devices = [
            stack.enter_context(br.RemoteDevice(one.address, dialect=dialect))
            for one in (first_server, second_server)
        ]

        def noting(method: Callable[..., None]) -> Callable[..., None]:
            def note(*arguments: Any) -> None:
                sent.append([one.traffic.frames_sent for one in devices])
                method(*arguments)

            return note

        for name in ("wait", "attend"):
            monkeypatch.setattr(Receiver, name, noting(getattr(Receiver, name)))
        wait([br.ones((2,), device=one) + 1 for one in devices])
        assert sent[0] == [one.traffic.frames_sent for one in devices]


def test_a_session_counts_its_traffic(device: br.Device) -> None:
    before = device.traffic
    x = br.zeros((2,), device=device) + 1
    assert (device.traffic - before).requests == 0
    x.numpy()
    device.sync()
    device.supports_dtype(br.float32)
    assert (device.traffic - before).requests == 3


@pytest.mark.usefixtures("unhurried")
def test_many_tensors_are_read_in_one_round_trip(native_device: br.Device) -> None:
    tensors = [br.full((2,), i, dtype=br.int64, device=native_device) for i in range(20)]
    native_device.sync()
    before = native_device.traffic
    arrays = br.read(tensors)
    assert [int(array[0]) for array in arrays] == list(range(20))
    assert (native_device.traffic - before).frames_sent == 1


@pytest.mark.parametrize("count", [1, 4096, 5000, 1_000_003])
def test_tensors_of_any_size_survive_a_round_trip(device: br.Device, count: int) -> None:
    array = np.random.default_rng(count).random(count)
    np.testing.assert_array_equal(br.tensor(array, device=device).numpy(), array)


def test_an_upload_is_a_snapshot(device: br.Device) -> None:
    array = np.ones(1_000_000, np.float32)
    tensor = br.tensor(array, device=device)
    array[:] = 2
    assert float(tensor.sum().item()) == 1_000_000


def test_sixty_four_threads_share_one_device(device: br.Device) -> None:
    results: dict[int, float] = {}

    def work(number: int) -> None:
        x = br.full((8,), float(number), device=device)
        for _ in range(50):
            x = x + 1
        results[number] = float(x.sum().item())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {i: 8.0 * (i + 50) for i in range(64)}


async def test_reads_can_be_awaited_concurrently(device: br.Device) -> None:
    tensors = [br.full((3,), float(i), device=device) for i in range(10)]
    arrays = await asyncio.gather(*(awaited(tensor) for tensor in tensors))
    assert [float(array[0]) for array in arrays] == [float(i) for i in range(10)]


async def awaited(tensor: br.Tensor) -> np.ndarray:
    array: np.ndarray = await tensor.read()
    return array


def test_the_same_seed_gives_the_same_numbers_on_every_device(
    device: br.Device, second_server: RunningServer
) -> None:
    with br.RemoteDevice(second_server.address) as other:
        drawn = []
        for each in (device, other):
            each.seed(42)
            drawn.append(br.random.normal((100,), device=each).numpy())
    np.testing.assert_array_equal(drawn[0], drawn[1])


def test_dropped_tensors_leave_the_server(first_server: RunningServer) -> None:
    with br.RemoteDevice(first_server.address) as device:
        device.sync()
        before = first_server.resident_bytes
        for _ in range(40):
            br.ones((1024, 1024, 8), device=device)  # 32 MiB each, 1.25 GiB together
        device.sync()
        assert first_server.resident_bytes - before < 400 * 2**20


def test_a_device_reports_its_support_of_a_dtype(device: br.Device) -> None:
    assert device.supports_dtype(br.float32)
    assert br.DTypeUsage.STORAGE in device.dtype_usage(br.int8)


def test_more_tensors_can_be_joined_than_fit_in_one_message(device: br.Device) -> None:
    ones = [br.full((1,), place, dtype=br.int64, device=device) for place in range(5000)]
    assert br.concat(ones).tolist() == [*range(5000)]
