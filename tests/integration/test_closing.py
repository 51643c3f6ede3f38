"""The end of a device: it reports failures that nobody read, and leaves no work behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest

import burn_remote as br
from support.servers import RunningServer, server
from support.waiting import wait_until


def failing(device: br.Device, index: int = 99) -> br.Tensor:
    return br.arange(4, device=device).take(br.tensor([index], device=device), axis=0)


OPENERS: dict[str, Callable[[RunningServer], br.Device]] = {
    "memory": lambda running: br.LocalDevice(),
    "websocket": lambda running: br.RemoteDevice(running.address, dialect="native"),
    "burn": lambda running: br.RemoteDevice(running.address, dialect="burn-0.21"),
}


@pytest.fixture(params=[*OPENERS])
def opened(request: pytest.FixtureRequest, first_server: RunningServer) -> br.Device:
    """A device that the test itself closes."""
    return OPENERS[request.param](first_server)


def test_closing_raises_a_failure_that_nobody_read(opened: br.Device) -> None:
    failing(opened)
    with pytest.raises(br.OperationFailed, match="99"):
        opened.close()
    assert opened.session.closed
    opened.close()


def test_a_division_by_zero_that_a_read_raised_is_not_raised_again(opened: br.Device) -> None:
    quotient = br.tensor([1, 2], device=opened) // 0
    with pytest.raises(br.OperationFailed, match="integer division by 0"):
        quotient.numpy()
    opened.close()


def test_a_block_that_ends_normally_raises_a_failure_that_nobody_read(opened: br.Device) -> None:
    with pytest.raises(br.OperationFailed, match="99"), opened:
        failing(opened)
    assert opened.session.closed


def test_an_error_that_ends_a_block_is_raised_with_a_note_of_the_failure(
    opened: br.Device,
) -> None:
    with pytest.raises(KeyError) as caught, opened:
        failing(opened)
        raise KeyError("mine")
    assert "99" in "".join(caught.value.__notes__)
    assert opened.session.closed


def test_a_failure_that_was_raised_before_is_not_raised_at_the_end(opened: br.Device) -> None:
    with opened:
        with pytest.raises(br.OperationFailed):
            (failing(opened) + 1).numpy()
        failing(opened)
        with pytest.raises(br.OperationFailed):
            opened.sync()


@pytest.mark.parametrize("end", [br.Device.sync, br.Device.close])
def test_the_failures_after_the_first_are_counted_and_listed(
    end: Callable[[br.Device], None], first_server: RunningServer
) -> None:
    device = br.RemoteDevice(first_server.address)
    for index in range(90, 96):
        failing(device, index)
    with pytest.raises(br.OperationFailed, match="90") as caught:
        end(device)
    error = caught.value
    assert error.others_count == len(error.others) == 5
    for index, other in zip(range(91, 96), error.others, strict=True):
        assert str(index) in other.reason
    (note,) = error.__notes__
    assert all(f" {index}" in note for index in (91, 92, 93))
    assert "and 2 more" in note
    device.close()


EXITING = """
import sys, burn_remote as br
device = br.RemoteDevice(sys.argv[1]) if len(sys.argv) > 1 else br.LocalDevice()
br.arange(4, device=device).take(br.tensor([99], device=device), axis=0)
"""


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_program_that_ends_without_closing_warns_of_a_failure(
    is_remote: bool, first_server: RunningServer
) -> None:
    arguments = [first_server.address] if is_remote else []
    ended = subprocess.run(
        [sys.executable, "-c", EXITING, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "RuntimeWarning" in ended.stderr
    assert "99" in ended.stderr


def test_the_first_device_of_a_server_is_the_same_with_and_without_its_number(
    first_server: RunningServer,
) -> None:
    with (
        br.RemoteDevice(first_server.address) as plain,
        br.RemoteDevice(f"{first_server.address}/0") as numbered,
    ):
        assert plain == numbered
        assert plain.session is numbered.session
        assert (br.ones((2,), device=plain) + br.ones((2,), device=numbered)).tolist() == [2, 2]


def test_a_forgotten_device_does_not_keep_the_session_of_another_open(
    first_server: RunningServer,
) -> None:
    forgotten = br.RemoteDevice(first_server.address)
    kept = br.RemoteDevice(first_server.address)
    del forgotten
    gc.collect()
    kept.close()
    assert kept.session.closed


def test_a_session_without_devices_and_tensors_ends(first_server: RunningServer) -> None:
    device = br.RemoteDevice(first_server.address)
    session = weakref.ref(device.session)
    x = br.ones((2,), device=device)
    del device
    gc.collect()
    assert x.tolist() == [1, 1]
    assert x.device == br.RemoteDevice(first_server.address)
    assert str(x.device) == first_server.address
    del x

    def is_gone() -> bool:
        gc.collect()  # the session's flush thread may have referred to it a moment ago
        return session() is None

    wait_until(is_gone)


def test_the_device_of_a_tensor_whose_device_was_forgotten_can_be_closed(
    first_server: RunningServer,
) -> None:
    x = br.ones((2,), device=br.RemoteDevice(first_server.address))
    gc.collect()
    x.device.close()
    with pytest.raises(br.ClosedDevice):
        x.numpy()


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_a_server_skips_the_queued_work_of_a_device_that_was_closed(dialect: str) -> None:
    # A queue of one batch: the server reads no further frames while the first ones run.
    with server("--session-queue-batches", "1") as running:
        warm = br.RemoteDevice(running.address)
        warm.sync()
        warm.close()
        before = running.threads
        device = br.RemoteDevice(running.address, dialect=dialect)
        x = br.ones((1500, 1500), device=device)
        # Some minutes of work. Large products would begin threads that stay.
        for _ in range(10_000):
            y = br.erf(x)
        del y
        wait_until(lambda: running.threads > before)  # a thread has begun the work
        device.close(timeout_seconds=0)
        wait_until(lambda: running.threads <= before)


def test_a_server_whose_drain_time_ends_inside_a_product_says_so_and_exits() -> None:
    with server("--drain-seconds", "0") as running:
        device = br.RemoteDevice(running.address, dialect="native")
        x = y = br.ones((1500, 1500), device=device)
        assert x[0, 0].item() == 1
        for _ in range(40):
            y = y @ x
        pending = y.read()
        wait_until(lambda: running.metric("burn_remote_operations_total") >= 4)
        assert running.stop() == 0
        with pytest.raises(br.SessionLost, match="shut down before the work"):
            pending.result()
