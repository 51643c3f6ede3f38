"""asyncio: the event loop runs while a program opens devices, sends, reads, waits and closes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import aio
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS

# Turns of the loop that prove that nothing blocks it.
TURNS = 50


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server() as one:
        yield one


class Heartbeat:
    """Counts the turns of the event loop, and opens a gate after the first ``TURNS``."""

    def __init__(self) -> None:
        self.turns = 0
        self.gate = threading.Event()
        self.has_turned = asyncio.Event()

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1
            if self.turns == TURNS:
                self.gate.set()
                self.has_turned.set()


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Heartbeat]:
    heart = Heartbeat()
    task = asyncio.create_task(heart.beat())
    try:
        yield heart
    finally:
        task.cancel()


class Gated:
    """Data whose conversion waits until the loop has made its turns: never, if it blocks them."""

    def __init__(self, gate: threading.Event, elements: Any) -> None:
        self._gate = gate
        self._elements = elements

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        assert self._gate.wait(PATIENCE_SECONDS), "the event loop was blocked"
        return np.asarray(self._elements, dtype)


async def test_async_with_opens_and_closes_a_device_without_await(running: RunningServer) -> None:
    async with aio.open_device(running.address, token=None) as device:
        assert (await br.ones((2,), device=device).read()).tolist() == [1, 1]
    with pytest.raises(br.ClosedDevice):
        br.ones((2,), device=device)


async def test_a_device_is_opened_as_a_task(running: RunningServer) -> None:
    opening = asyncio.create_task(aio.open_device(running.address, token=None))
    async with await opening as device:
        assert (await br.ones((2,), device=device).read()).tolist() == [1, 1]


async def test_a_device_that_cannot_be_opened_raises_in_async_with() -> None:
    with pytest.raises(br.UsageError, match="names no device"):
        async with aio.open_device("cuda"):
            pytest.fail("there is no device")


async def test_the_loop_turns_while_elements_are_sent(running: RunningServer) -> None:
    async with await aio.open_device(running.address) as device, heartbeat() as heart:
        x = await aio.tensor(Gated(heart.gate, np.arange(6.0).reshape(2, 3)), device=device)
        assert heart.turns >= TURNS
        assert (await x.read()).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("count", [0, 1, 100_000])
async def test_sent_elements_are_those_that_tensor_sends(
    running: RunningServer, count: int
) -> None:
    array = np.random.default_rng(1).random(count, np.float32)
    async with await aio.open_device(running.address) as device:
        x = await aio.tensor(array, dtype=br.float64, device=device)
        np.testing.assert_array_equal(await x.read(), array.astype(np.float64))
        assert x.dtype is br.float64


async def test_the_loop_turns_while_files_are_saved_and_loaded(
    running: RunningServer, tmp_path: Path
) -> None:
    async with await aio.open_device(running.address) as device, heartbeat() as heart:

        def wait_for_turns(*_: object) -> None:
            assert heart.gate.wait(PATIENCE_SECONDS), "the event loop was blocked"

        x = br.arange(4, device=device)
        await aio.save(tmp_path / "x.npy", x, progress=wait_for_turns)
        assert heart.turns >= TURNS
        heart.turns = 0
        heart.gate.clear()
        found = await aio.load(tmp_path / "x.npy", device=device, progress=wait_for_turns)
        assert heart.turns >= TURNS
        assert (await found.read()).tolist() == [0, 1, 2, 3]


async def test_several_tensors_are_read_in_one_frame(running: RunningServer) -> None:
    async with await aio.open_device(running.address, automatic_graphs=False) as device:
        xs = [br.full((2,), number, device=device) for number in range(20)]
        await aio.sync(device)
        before = device.traffic
        arrays = await aio.read(xs)
        assert (device.traffic - before).frames_sent == 1
        assert [array.tolist() for array in arrays] == [[n, n] for n in range(20)]


async def test_a_failed_tensor_among_several_raises_its_error(running: RunningServer) -> None:
    async with await aio.open_device(running.address, automatic_graphs=False) as device:
        good = br.ones((2,), device=device)
        bad = good.take(br.tensor([7], device=device), axis=0)
        with pytest.raises(br.OperationFailed):
            await aio.read([good, bad])
        assert (await good.read()).tolist() == [1, 1]


async def test_one_tensor_is_not_read_row_by_row() -> None:
    async with br.LocalDevice() as device:
        with pytest.raises(br.ArgumentMismatch, match=r"write await x\.read\(\)"):
            await aio.read(br.ones((2,), device=device))


async def test_calls_with_separate_arguments_say_what_to_write() -> None:
    # Typed as Any, because a type checker rejects these calls.
    misused: Any = aio
    with br.LocalDevice() as device:
        x: Any = br.ones((2,), device=device)
        with pytest.raises(br.ArgumentMismatch, match=r"read: .* write read\(\[x, y\]\)"):
            await misused.read(x, x)
        with pytest.raises(br.ArgumentMismatch, match=r"tensor: .* by keyword: .*device="):
            await misused.tensor([1.0], device)


async def test_awaiting_a_tensor_says_what_to_write() -> None:
    with br.LocalDevice() as device:
        x: Any = br.ones((2,), device=device)
        with pytest.raises(TypeError, match=r"write array = await x\.read\(\)"):
            await x
        with pytest.raises(TypeError, match=r"aio\.read\(\[x, y\]\)"):
            await asyncio.wait_for(x, None)


async def test_sync_waits_for_several_devices_and_raises_a_failure(running: RunningServer) -> None:
    async with br.LocalDevice() as local, await aio.open_device(running.address) as remote:
        good = br.ones((2,), device=local)
        failed = br.ones((2,), device=remote).take(br.tensor([7], device=remote), axis=0)
        with pytest.raises(br.OperationFailed):
            await aio.sync(local, remote)
        await aio.sync(local, remote)
        assert good.tolist() == [1, 1]
        del failed


async def test_leaving_async_with_closes_the_device(running: RunningServer) -> None:
    async with await aio.open_device(running.address) as device:
        x = br.ones((1,), device=device)
    with pytest.raises(br.ClosedDevice):
        x.numpy()


async def test_an_error_inside_async_with_is_noted_like_with(running: RunningServer) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        async with await aio.open_device(running.address) as device:
            failed = br.ones((2,), device=device).take(br.tensor([7], device=device), axis=0)
            raise ValueError("mine")
    assert any("an operation failed before" in note for note in caught.value.__notes__)
    del failed


async def test_options_open_a_device_of_their_own(running: RunningServer) -> None:
    async with (
        await aio.open_device(running.address, automatic_graphs=True) as one,
        await aio.open_device(running.address) as other,
    ):
        assert one != other


async def test_without_a_name_the_default_device_is_opened(running: RunningServer) -> None:
    br.set_default_device(running.address)
    try:
        async with await aio.open_device() as device:
            assert device is br.default_device()
            assert (await aio.tensor(np.ones(2))).device is device
    finally:
        br.set_default_device(None)


async def test_a_cancelled_upload_leaves_no_tensor_behind(running: RunningServer) -> None:
    async with await aio.open_device(running.address) as device, heartbeat() as heart:
        gate = threading.Event()
        sending = asyncio.create_task(aio.tensor(Gated(gate, np.ones(10)), device=device))
        await heart.has_turned.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        gate.set()
        assert br.ones((2,), device=device).tolist() == [1, 1]


async def test_the_error_of_a_sent_tensor_names_the_line_of_the_program() -> None:
    with server(BURN_REMOTE_MAX_SESSION_BYTES="1MiB") as small:
        async with await aio.open_device(small.address) as device:
            x = await aio.tensor(np.zeros(2**20, np.uint8).repeat(2), device=device)
            with pytest.raises(br.QuotaExceeded, match=r"test_aio\.py:\d+"):
                await x.read()
