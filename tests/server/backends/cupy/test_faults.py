"""Detection of a lost GPU and its report to every caller."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from burn_remote_protocol.errors import DeviceLost, UnknownTensor
from burn_remote_server.backends.cupy.event_poller import NOT_READY, EventPoller
from burn_remote_server.backends.cupy.faults import LOST, Faults, lacks_memory
from support.waiting import PATIENCE_SECONDS

ILLEGAL_ADDRESS = 700
NO_MEMORY = 2


class CudaError(RuntimeError):
    """The error that CuPy raises for a failed call."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class Gpu:
    """A fake GPU whose status a test sets."""

    id = 3

    def __init__(self) -> None:
        self.status = 0
        self.was_asked = threading.Event()
        self.faults = Faults("GPU 3 (of a test)", lambda: self.status)

    def use(self) -> None:
        if self.status:
            raise CudaError(self.status)

    def event_status(self, event: Any) -> int:
        self.was_asked.set()
        return self.faults.event_status(lambda: NOT_READY)

    def fail(self, status: int = ILLEGAL_ADDRESS) -> None:
        """Run an operation during which the GPU breaks."""
        with self.faults:
            self.status = status
            raise CudaError(status)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # restored after the test
    yield Gpu()


def test_the_error_of_a_lost_gpu_states_the_cause_and_the_remedy(gpu: Gpu) -> None:
    with pytest.raises(DeviceLost) as caught:
        gpu.fail()
    assert str(caught.value) == (
        "GPU 3 (of a test) is lost: CUDA reports error 700 (cudaErrorIllegalAddress), and the "
        "tensors on it are gone; restart the server, or continue on another device"
    )
    assert isinstance(caught.value.__cause__, CudaError)


def test_a_lost_gpu_is_not_used_again(gpu: Gpu) -> None:
    with pytest.raises(DeviceLost):
        gpu.fail()
    with pytest.raises(DeviceLost), gpu.faults:
        pytest.fail("the lost GPU was used")


@pytest.mark.parametrize("error", [CudaError(NO_MEMORY), CudaError(ILLEGAL_ADDRESS), ValueError()])
def test_an_error_on_a_working_gpu_does_not_make_it_lost(gpu: Gpu, error: Exception) -> None:
    # An error code such as 700 may come from another GPU.
    with pytest.raises(type(error)), gpu.faults:
        raise error
    assert gpu.faults.failure is None


def test_a_typed_error_is_passed_on(gpu: Gpu) -> None:
    gpu.status = ILLEGAL_ADDRESS
    with pytest.raises(UnknownTensor), gpu.faults:
        raise UnknownTensor("tensor 7")


@pytest.mark.parametrize("status", sorted(LOST))
def test_a_check_detects_the_loss_of_an_idle_gpu(gpu: Gpu, status: int) -> None:
    assert gpu.faults.examine() is None
    gpu.status = status
    assert f"error {status} (cudaError" in str(gpu.faults.examine())
    gpu.status = 0
    assert gpu.faults.failure is not None


@pytest.mark.parametrize("status", [NOT_READY, NO_MEMORY])
def test_a_gpu_that_is_busy_or_full_is_not_lost(gpu: Gpu, status: int) -> None:
    gpu.status = status
    assert gpu.faults.examine() is None


def test_the_loss_is_logged_once(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.raises(DeviceLost):
            gpu.fail()
    (record,) = caplog.records
    assert "device lost" in record.getMessage()


def test_waiters_for_events_of_a_lost_gpu_are_notified(gpu: Gpu) -> None:
    told: queue.Queue[int] = queue.Queue()
    watch = EventPoller(gpu, gpu.event_status)
    watch.call(object(), told.put, 1)
    assert gpu.was_asked.wait(PATIENCE_SECONDS)
    assert told.empty()
    gpu.faults.note(ILLEGAL_ADDRESS)
    assert told.get(timeout=PATIENCE_SECONDS) == ILLEGAL_ADDRESS


def test_an_event_that_reports_a_fatal_error_makes_its_gpu_lost(gpu: Gpu) -> None:
    gpu.status = 719
    assert gpu.faults.event_status(lambda: 719) == 719
    assert "cudaErrorLaunchFailure" in str(gpu.faults.failure)


@pytest.mark.parametrize("status", sorted(LOST))
def test_an_event_with_an_error_on_a_working_gpu_does_not_make_it_lost(
    gpu: Gpu, status: int
) -> None:
    assert gpu.faults.event_status(lambda: status) == status
    assert gpu.faults.failure is None


def test_waiters_that_start_after_the_loss_are_notified_too(gpu: Gpu) -> None:
    with pytest.raises(DeviceLost):
        gpu.fail()
    told: queue.Queue[int] = queue.Queue()
    # The thread starts only now and cannot select the lost device.
    EventPoller(gpu, gpu.event_status).call(object(), told.put, 1)
    assert told.get(timeout=PATIENCE_SECONDS) == ILLEGAL_ADDRESS


def test_failed_destructors_of_a_lost_gpu_are_not_reported(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda seen: reported.append(seen.exc_value))
    with pytest.raises(DeviceLost):
        gpu.fail()

    class Freed:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def __del__(self) -> None:
            raise self.error

    other = ValueError("a defect")
    for error in (CudaError(ILLEGAL_ADDRESS), other):
        Freed(error)
    assert reported == [other]


@pytest.mark.parametrize(
    ("kind", "name", "status", "other"),
    [
        ("CUDARuntimeError", "status", 2, 700),
        ("CUBLASError", "status", 3, 2),
        ("CUSOLVERError", "status", 2, 3),
        ("CUFFTError", "result", 2, 3),
    ],
)
def test_a_library_that_cannot_allocate_lacks_memory(
    kind: str, name: str, status: int, other: int
) -> None:
    error, failure = (type(kind, (RuntimeError,), {name: one})() for one in (status, other))
    assert lacks_memory(error)
    assert not lacks_memory(failure)
    assert not lacks_memory(RuntimeError("of another library"))
