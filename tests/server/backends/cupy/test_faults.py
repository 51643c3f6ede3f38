"""A GPU that is lost is known by what it says of itself, and everyone who asks is told."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from burn_remote_protocol.errors import DeviceLost, UnknownTensor
from burn_remote_server.backends.cupy.faults import LOST, Faults
from burn_remote_server.backends.cupy.watch import NOT_READY, Watch

ILLEGAL_ADDRESS = 700
NO_MEMORY = 2
PATIENCE_SECONDS = 5


class CudaError(RuntimeError):
    """What CuPy raises for a call that failed."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class Gpu:
    """A GPU that says of itself what a test wants."""

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
        """Do something on the GPU, which breaks under it."""
        with self.faults:
            self.status = status
            raise CudaError(status)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back at the end
    yield Gpu()


def test_an_error_of_a_lost_gpu_says_what_was_seen_and_what_to_do(gpu: Gpu) -> None:
    with pytest.raises(DeviceLost) as caught:
        gpu.fail()
    assert str(caught.value) == (
        "GPU 3 (of a test) is lost: CUDA reports error 700 (cudaErrorIllegalAddress), and the "
        "tensors on it are gone; restart the server, or continue on another device"
    )
    assert isinstance(caught.value.__cause__, CudaError)


def test_nothing_is_tried_on_a_gpu_that_is_known_to_be_lost(gpu: Gpu) -> None:
    with pytest.raises(DeviceLost):
        gpu.fail()
    with pytest.raises(DeviceLost), gpu.faults:
        pytest.fail("it was tried")


@pytest.mark.parametrize("error", [CudaError(NO_MEMORY), CudaError(ILLEGAL_ADDRESS), ValueError()])
def test_an_error_does_not_make_a_gpu_lost_that_works(gpu: Gpu, error: Exception) -> None:
    # A number such as 700 may be another GPU's.
    with pytest.raises(type(error)), gpu.faults:
        raise error
    assert gpu.faults.failure is None


def test_an_error_that_has_a_type_stays_what_it_is(gpu: Gpu) -> None:
    gpu.status = ILLEGAL_ADDRESS
    with pytest.raises(UnknownTensor), gpu.faults:
        raise UnknownTensor("tensor 7")


@pytest.mark.parametrize("status", sorted(LOST))
def test_looking_finds_a_gpu_that_was_lost_while_nobody_used_it(gpu: Gpu, status: int) -> None:
    assert gpu.faults.examine() is None
    gpu.status = status
    assert f"error {status} (cudaError" in str(gpu.faults.examine())
    gpu.status = 0
    assert gpu.faults.failure is not None


@pytest.mark.parametrize("status", [NOT_READY, NO_MEMORY])
def test_a_gpu_that_is_busy_or_full_is_not_lost(gpu: Gpu, status: int) -> None:
    gpu.status = status
    assert gpu.faults.examine() is None


def test_the_log_says_it_once(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.raises(DeviceLost):
            gpu.fail()
    (record,) = caplog.records
    assert "device lost" in record.getMessage()


def test_who_waits_for_an_event_of_a_lost_gpu_is_told(gpu: Gpu) -> None:
    told: queue.Queue[int] = queue.Queue()
    watch = Watch(gpu, gpu.event_status)
    watch.call(object(), told.put)
    assert gpu.was_asked.wait(PATIENCE_SECONDS)
    assert told.empty()
    gpu.faults.note(ILLEGAL_ADDRESS)
    assert told.get(timeout=PATIENCE_SECONDS) == ILLEGAL_ADDRESS


def test_an_event_that_reports_the_error_of_its_gpu_makes_it_lost(gpu: Gpu) -> None:
    gpu.status = 719
    assert gpu.faults.event_status(lambda: 719) == 719
    assert "cudaErrorLaunchFailure" in str(gpu.faults.failure)


@pytest.mark.parametrize("status", sorted(LOST))
def test_an_event_with_an_error_does_not_make_a_gpu_lost_that_works(gpu: Gpu, status: int) -> None:
    assert gpu.faults.event_status(lambda: status) == status
    assert gpu.faults.failure is None


def test_who_begins_to_wait_when_the_gpu_is_lost_is_told_too(gpu: Gpu) -> None:
    with pytest.raises(DeviceLost):
        gpu.fail()
    told: queue.Queue[int] = queue.Queue()
    # Its thread starts only now, and cannot make the device its own.
    Watch(gpu, gpu.event_status).call(object(), told.put)
    assert told.get(timeout=PATIENCE_SECONDS) == ILLEGAL_ADDRESS


def test_destructors_that_give_back_to_a_lost_gpu_are_not_reported(
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
