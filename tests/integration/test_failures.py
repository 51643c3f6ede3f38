"""Failures reach the caller as typed errors with the reason and the line of the operation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import burn_remote as br
from support.ports import reserved_port
from support.servers import UNFORKED, RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until


def failing(device: br.Device) -> br.Tensor:
    return br.arange(4, device=device).take(br.tensor([99], device=device), axis=0)


def test_a_read_of_a_failed_tensor_names_operation_shapes_reason_and_line(
    native_device: br.Device,
) -> None:
    tensor = failing(native_device)
    with pytest.raises(br.OperationFailed) as caught:
        (tensor + 1).numpy()
    error = caught.value
    assert error.operation == "Base.Select"
    assert "int64[4]" in error.shapes
    assert "99" in error.reason
    assert error.location.startswith(__file__)
    assert error.location.split(":")[-1] == str(failing.__code__.co_firstlineno + 1)


def test_the_session_continues_after_a_failure(device: br.Device) -> None:
    good = br.ones((3,), device=device)
    with pytest.raises(br.OperationFailed):
        failing(device).numpy()
    assert good.tolist() == [1, 1, 1]


def test_a_sync_raises_a_failure_that_was_not_read(device: br.Device) -> None:
    failing(device)
    with pytest.raises(br.OperationFailed, match="99"):
        device.sync()
    device.sync()


def test_awaiting_a_failed_tensor_raises_too(device: br.Device) -> None:
    async def read() -> None:
        await failing(device).read()

    with pytest.raises(br.OperationFailed):
        asyncio.run(read())


def test_tensors_of_two_devices_are_refused(
    device: br.Device, second_server: RunningServer
) -> None:
    with br.RemoteDevice(second_server.address) as other, pytest.raises(br.DeviceMismatch):
        br.ones((2,), device=device) + br.ones((2,), device=other)


def test_incompatible_shapes_fail_at_the_call(device: br.Device) -> None:
    with pytest.raises(br.ShapeMismatch, match="3") as caught:
        br.ones((2, 3), device=device) @ br.ones((4, 5), device=device)
    assert isinstance(caught.value, ValueError)


def test_a_killed_server_fails_every_waiting_thread() -> None:
    # Only the end of the connection can tell the client in time.
    with server("--heartbeat-seconds", "3600") as running:
        device = br.RemoteDevice(running.address)
        x = br.ones((1200, 1200), dtype=br.float64, device=device)
        for _ in range(40):
            x = x @ x * 1e-9
        errors: list[BaseException] = []
        asked = threading.Barrier(5)

        def wait() -> None:
            pending = x.read()
            asked.wait()
            try:
                pending.result(PATIENCE_SECONDS)
            except br.BurnRemoteError as error:
                errors.append(error)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        asked.wait()
        running.kill()
        for thread in threads:
            thread.join(2 * PATIENCE_SECONDS)
        assert len(errors) == 4
        assert all(isinstance(error, br.ConnectionLost) for error in errors)
        with pytest.raises(br.ConnectionLost):
            x + 1
        device.close()


HOLD_AND_DIE = """
import os, sys, numpy as np, burn_remote as br
device = br.RemoteDevice(sys.argv[1])
tensor = br.tensor(np.ones(32 * 2**20), device=device)
device.sync()
os.kill(os.getpid(), 9)
"""


def test_a_killed_clients_tensors_are_freed_when_its_lease_ends() -> None:
    with server("--lease-seconds", "0.2", module=UNFORKED) as running:
        before = running.resident_bytes
        ran = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, running.address], check=False)
        assert ran.returncode == -signal.SIGKILL
        assert running.peak_bytes - before >= 256 * 2**20
        wait_until(lambda: running.resident_bytes - before <= 64 * 2**20)


def test_a_refused_connection_gives_advice() -> None:
    with reserved_port() as port, pytest.raises(br.ConnectionFailed, match=f"{port}"):
        br.RemoteDevice(f"ws://127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["http://127.0.0.1:3000", "ws://", "ws://host:port", "ws:/x"])
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(br.ConnectionFailed, match="ws://"):
        br.RemoteDevice(address)


def test_an_http_server_at_the_address_is_recognized() -> None:
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Quiet) as http:
        thread = threading.Thread(target=http.handle_request)
        thread.start()
        with pytest.raises(br.ConnectionFailed, match="HTTP"):
            br.RemoteDevice(f"ws://127.0.0.1:{http.server_port}")
        thread.join(PATIENCE_SECONDS)


def test_a_closed_device_raises_closed_device(first_server: RunningServer) -> None:
    device = br.RemoteDevice(first_server.address)
    tensor = br.ones((2,), device=device)
    device.close()
    device.close()
    with pytest.raises(br.ClosedDevice):
        tensor + 1
    with pytest.raises(br.ClosedDevice):
        tensor.numpy()


def test_a_nested_with_block_leaves_the_shared_session_open(
    first_server: RunningServer,
) -> None:
    def total(address: str) -> float:
        with br.RemoteDevice(address) as device:
            return float(br.ones((3,), device=device).sum())

    with br.RemoteDevice(first_server.address) as device:
        x = br.ones((2,), device=device)
        assert total(first_server.address) == 3
        assert x.tolist() == [1, 1]
    with pytest.raises(br.ClosedDevice):
        x.numpy()


def test_a_forked_child_gets_an_error_and_the_parent_keeps_its_session(
    first_server: RunningServer,
) -> None:
    with br.RemoteDevice(first_server.address) as device:
        tensor = br.ones((2,), device=device)
        tensor.numpy()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                tensor.numpy()
            except br.ClosedDevice:
                os.write(writer, b"typed")
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        assert os.read(reader, 10) == b"typed"
        os.close(reader)
        assert tensor.tolist() == [1, 1]


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_a_reply_for_the_parent_is_not_read_by_a_forked_child(
    dialect: str, first_server: RunningServer
) -> None:
    with br.RemoteDevice(first_server.address, dialect=dialect) as device:
        requested = br.ones((2,), device=device).read()
        device.session.flush()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(br.ClosedDevice, TimeoutError):
                try:
                    requested.result(PATIENCE_SECONDS)
                except br.ClosedDevice:
                    code = 0
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert requested.result(PATIENCE_SECONDS).tolist() == [1, 1]
        assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("wait", ["numpy", "item", "read", "sync"])
@pytest.mark.parametrize("kind", ["local", "native"])
def test_a_failure_that_was_caught_keeps_no_tensor_alive(
    kind: str, wait: str, first_server: RunningServer
) -> None:
    def fail(device: br.Device) -> weakref.ref[br.Tensor]:
        large = br.ones((1000,), device=device)
        failed = large.take(br.tensor([1000], device=device), axis=0)
        waits: dict[str, Callable[[], object]] = {
            "numpy": failed.numpy,
            "item": failed.item,
            "read": lambda: br.read([failed]),
            "sync": device.sync,
        }
        with contextlib.suppress(br.OperationFailed):
            waits[wait]()
            raise AssertionError("nothing failed")
        return weakref.ref(large)

    opened = br.LocalDevice() if kind == "local" else br.RemoteDevice(first_server.address)
    with opened as device:
        gc.disable()
        try:
            assert fail(device)() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_tensor_computed_from_a_failed_one_is_dropped_after_a_read_of_it(
    is_compiled: bool,
) -> None:
    def negative(x: br.Tensor) -> br.Tensor:
        return -x

    function = br.compile(negative) if is_compiled else negative
    with br.LocalDevice() as device:
        result = function(failing(device))
        alive = weakref.ref(result)
        with pytest.raises(br.OperationFailed, match="index 99"):
            result.numpy()
        del result
        gc.collect()
        assert alive() is None


def test_a_draining_server_finishes_the_queue_and_announces_its_end() -> None:
    with server() as running:
        device = br.RemoteDevice(running.address)
        x = br.ones((600, 600), device=device)
        for _ in range(20):
            x = x @ x * 1e-6
        pending = x.read()
        pending.attend()
        code = running.stop()
        assert pending.result(PATIENCE_SECONDS).shape == (600, 600)
        assert code == 0
        with pytest.raises(br.SessionLost, match="shutting down; its tensors are gone") as lost:
            device.sync()
        assert running.address in str(lost.value)
        device.close()


def test_the_error_of_a_closed_device_says_how_to_go_on() -> None:
    with server() as running, br.RemoteDevice(running.address) as device:
        x = br.ones(3, device=device)
    with pytest.raises(br.UsageError, match=r"closed its connection .* open the device again"):
        x.numpy()


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_idle_peer_connections_do_not_delay_a_stop(
    dialect: str, first_server: RunningServer
) -> None:
    # The grace period is an hour, but the test waits only a few seconds.
    with server("--drain-seconds", "3600") as running, br.RemoteDevice(first_server.address) as to:
        device = br.RemoteDevice(running.address, dialect=dialect)
        assert br.ones((2,), device=device).to(to).tolist() == [1, 1]
        assert running.stop() == 0
        device.close()


def test_an_unknown_device_number_is_refused_with_the_known_ones(
    second_server: RunningServer,
) -> None:
    with pytest.raises(
        br.ConnectionFailed, match=r"HTTP 421: there is no device /7 here; there is only /0"
    ):
        br.RemoteDevice(f"{second_server.address}/7")
