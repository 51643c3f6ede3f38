"""Servers report a lost GPU to every session, and work without pinned memory."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend
from burn_remote_server.backends.interface import BackendSession
from support.kernels import signature
from support.servers import RunningServer, server

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[1]
LOST = r"GPU 0 .* is lost: CUDA reports error 700 \(cudaErrorIllegalAddress\).*restart the server"
PATIENCE_SECONDS = 30
CUDA_ERROR_OUT_OF_MEMORY = 2


@contextlib.contextmanager
def breakable(*flags: str) -> Iterator[RunningServer]:
    """Run a server with a custom operation that breaks the GPU for this process only."""
    added = ("--custom-operations", "support.gpu_faults", *flags)
    path = ":".join([*sys.path, str(TESTS)])
    with server("--backend", "cupy", *added, PYTHONPATH=path) as started:
        yield started


@pytest.fixture
def running(gpu: Backend) -> Iterator[RunningServer]:
    assert gpu.name == "cupy"
    with breakable() as started:
        yield started


def session(running: RunningServer, token: str, **options: Any) -> br.RemoteDevice:
    """Open a separate session."""
    return br.RemoteDevice(running.address, token=token, **options)


def written_nowhere(device: br.Device) -> br.Tensor:
    """Break the device and return the result of the operation that broke it."""
    x = br.ones((4,), device=device)
    return br.custom("write_nowhere", x, outputs=br.TensorSpec((4,), br.float32))


def status(running: RunningServer, path: str) -> int:
    """Return the status code of an HTTP request to a server."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def becomes(running: RunningServer, path: str, wanted: int) -> bool:
    """Whether a server responds with this status within five seconds."""
    deadline = time.monotonic() + 5
    while status(running, path) != wanted and time.monotonic() < deadline:
        pass  # each request takes milliseconds
    return status(running, path) == wanted


def test_every_session_learns_that_the_gpu_is_lost_and_the_server_stops_cleanly(
    gpu: Backend, capfd: pytest.CaptureFixture[str]
) -> None:
    # Started here, because a fixture's server does not capture its output.
    with breakable() as running:
        everyone_hears_that_the_gpu_is_lost(running)
    log = capfd.readouterr().err
    assert log.count("device lost") == 1
    # CuPy unloads its modules late in the interpreter's shutdown and cannot be silenced there.
    assert log.count("Traceback") == log.count("driver.moduleUnload") <= 1
    assert "Exception ignored" not in log
    assert len(log.splitlines()) < 10


def everyone_hears_that_the_gpu_is_lost(running: RunningServer) -> None:
    """Break the GPU, make every kind of request to it, and stop the server."""
    assert status(running, "/readyz") == 200
    with (
        session(running, "breaking") as breaking,
        session(running, "other") as other,
        session(running, "rust", dialect="burn-0.21") as rust,
    ):
        x, y = br.ones((1000, 1000), device=other), br.ones((4,), device=rust)
        other.sync()
        assert y.tolist() == [1, 1, 1, 1]
        with pytest.raises(br.DeviceLost, match=LOST):
            written_nowhere(breaking).numpy()
        for read in (
            lambda: x.numpy(),
            lambda: (x @ x).numpy(),
            lambda: br.random.uniform((100,), device=other).numpy(),
            lambda: br.tensor(np.ones(10), device=other).numpy(),
            lambda: br.tensor(np.ones(5_000_000), device=other).numpy(),
            other.sync,
        ):
            with pytest.raises(br.DeviceLost, match=LOST):
                read()
        for read in (lambda: y.numpy(), lambda: (y + 1).numpy(), rust.sync):
            with pytest.raises(br.OperationFailed, match=LOST):
                read()
        with pytest.raises(br.HandshakeRefused, match=LOST):
            session(running, "later").sync()
        assert (status(running, "/readyz"), status(running, "/healthz")) == (503, 503)
        assert (
            sum(
                value
                for name, value in running.metrics().items()
                if name.startswith("burn_remote_device_lost")
            )
            == 1
        )
        many = [br.ones((10,), device=other) for _ in range(100)]
        del many
        with pytest.raises(br.DeviceLost, match=LOST):  # else closing reports these failures
            other.sync()
        assert running.stop() == 0


def test_waiting_reads_end_when_the_gpu_is_lost(running: RunningServer) -> None:
    with contextlib.ExitStack() as opened, ThreadPoolExecutor(8) as pool:
        devices = [opened.enter_context(session(running, f"waiting {n}")) for n in range(8)]
        reads = []
        for device in devices:
            x = br.eye(4096, device=device)
            device.sync()
            for _ in range(200):
                x = x @ x
            reads.append(pool.submit(x.numpy))
        with session(running, "breaking") as breaking, pytest.raises(br.DeviceLost, match=LOST):
            written_nowhere(breaking).numpy()
        for read in reads:
            # Reads computed before the fault have their result.
            error = read.exception(PATIENCE_SECONDS)
            assert error is None or isinstance(error, br.DeviceLost)
        for device in devices:
            with contextlib.suppress(br.DeviceLost):  # of a result that its read no longer reported
                device.close()


def test_the_loss_of_an_idle_gpu_is_detected(running: RunningServer) -> None:
    with session(running, "breaking") as breaking:
        broken = written_nowhere(breaking)
        assert becomes(running, "/readyz", 503)
        with pytest.raises(br.DeviceLost, match=LOST):
            broken.numpy()


def test_a_tensor_of_a_lost_gpu_does_not_move(
    running: RunningServer, cpu_server: RunningServer
) -> None:
    with session(running, "breaking") as breaking, br.RemoteDevice(cpu_server.address) as cpu:
        x = br.ones((1000, 1000), device=breaking)
        breaking.sync()
        with pytest.raises(br.DeviceLost, match=LOST):
            written_nowhere(breaking).numpy()
        with pytest.raises(br.OperationFailed, match=LOST):
            x.to(cpu).numpy()
        with pytest.raises(br.OperationFailed, match=LOST):
            br.ones((1000, 1000), device=cpu).to(breaking).numpy()
        assert running.stop() == 0


def test_the_other_gpu_computes_correctly_or_is_lost_too(gpu: Backend) -> None:
    """After an illegal access, CUDA may refuse all calls of the process, as driver 580 does."""
    if gpu.device_count < 2:
        pytest.skip(f"needs two GPUs; there is {gpu.device_count}")
    with (
        breakable("--device-count", "2") as running,
        br.RemoteDevice(f"{running.address}/1") as second,
        br.RemoteDevice(running.address) as first,
    ):
        x = br.ones((1000, 1000), device=second)
        second.sync()
        with pytest.raises(br.DeviceLost, match=LOST):
            written_nowhere(first).numpy()
        with pytest.raises(br.DeviceLost, match=LOST):
            br.ones((1000, 1000), device=first).numpy()
        try:
            for _ in range(20):
                x = (x @ x) / 1000
                assert x.mean().item() == 1
        except br.DeviceLost as error:
            assert "GPU 1" in str(error)
            expected = (503, 503), [1, 1]
        else:
            expected = (503, 200), [1, 0]
        lost = [
            value
            for name, value in running.metrics().items()
            if name.startswith("burn_remote_device_lost")
        ]
        assert ((status(running, "/readyz"), status(running, "/healthz")), lost) == expected
        assert running.stop() == 0


# -- without pinned memory ------------------------------------------------------------------------


@pytest.fixture
def unpinned(gpu: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The first GPU on a machine without free pinned memory."""
    from cupy.cuda import runtime

    from burn_remote_server.backends.cupy import host_copies
    from burn_remote_server.backends.cupy.pinned_memory import HostMemory

    def none_left(size: int) -> Any:
        raise runtime.CUDARuntimeError(CUDA_ERROR_OUT_OF_MEMORY)

    monkeypatch.setattr(host_copies, "_memory", HostMemory(none_left))
    return gpu


def elements_read(session: BackendSession, array: Any) -> bytes:
    """Return an array's elements, at once or after a wait."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    found = session.read(array, F32, lambda: answers.put)
    return bytes(answers.get(timeout=PATIENCE_SECONDS) if found is None else found)


@pytest.mark.parametrize("size", [0, 1, 5_000_003])
def test_uploads_and_reads_work_without_pinned_memory(unpinned: Backend, size: int) -> None:
    data = np.random.default_rng(size).standard_normal(size, np.float32).tobytes()
    own = unpinned.open_session()
    own.activate()
    shared = unpinned.to_device(TensorData(data, (size,), F32))
    assert elements_read(own, own.adopt(shared)) == data
    assert bytes(unpinned.to_bytes(shared, F32)) == data


def test_a_read_of_unfinished_work_without_pinned_memory_is_delivered_later(
    unpinned: Backend,
) -> None:
    square = TensorSpec((4096, 4096), F32)
    data = np.eye(4096, dtype=np.float32).tobytes()
    own = unpinned.open_session()
    own.activate()
    x = own.adopt(unpinned.to_device(TensorData(data, square.shape, F32)))
    multiply = own.bind(signature("Float.Matmul", square, square))
    result = x
    for _ in range(100):  # some 100 ms of work
        result = multiply(result, x)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    assert own.read(result, F32, lambda: answers.put) is None
    del result
    assert bytes(answers.get(timeout=PATIENCE_SECONDS)) == data


def test_a_copy_without_pinned_memory_delays_no_other_session(unpinned: Backend) -> None:
    square = TensorSpec((4096, 4096), F32)
    shared = unpinned.to_device(
        TensorData(np.eye(4096, dtype=np.float32).tobytes(), square.shape, F32)
    )

    def working() -> tuple[BackendSession, Any]:
        own = unpinned.open_session()
        own.activate()
        x = own.adopt(shared)
        multiply = own.bind(signature("Float.Matmul", square, square))
        result = x
        for _ in range(100):  # some 100 ms of work
            result = multiply(result, x)
        return own, result

    is_copied, may_go_on = threading.Event(), threading.Event()

    def keep(value: Any) -> None:
        is_copied.set()
        may_go_on.wait(2 * PATIENCE_SECONDS)

    one, result = working()
    assert one.read(result, F32, lambda: keep) is None
    assert is_copied.wait(PATIENCE_SECONDS)
    other, _ = working()
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    assert not other.synced(lambda: told.put)
    try:
        assert told.get(timeout=PATIENCE_SECONDS) is None
    finally:
        may_go_on.set()


def test_a_failed_allocation_of_pinned_memory_does_not_harm_the_gpu(gpu: Backend) -> None:
    from burn_remote_server.backends.cupy import host_copies

    # More than a process can address: CUDA and the system both refuse at once.
    with pytest.raises(MemoryError):
        host_copies.host_array(2**60)
    own = gpu.open_session()
    own.activate()
    shared = gpu.to_device(TensorData(bytes(400), (100,), F32))
    assert elements_read(own, own.adopt(shared)) == bytes(400)
    assert gpu.failure is None
