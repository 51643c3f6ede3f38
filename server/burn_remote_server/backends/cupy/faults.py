"""The meaning of errors of CUDA and its libraries: lost GPUs, and failed allocations.

After some CUDA errors, every later call to that GPU fails until the process restarts: the GPU is
*lost*. Other errors, such as out of memory, affect only the call that returned them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from burn_remote_protocol.errors import BurnRemoteError, DeviceLost
from burn_remote_server.backends.cupy.event_poller import NOT_READY
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["LOST", "Faults", "lacks_memory"]

logger = get_logger(__name__)

# Numbers and names of the CUDA errors that mean a lost GPU; the runtime and the driver share the
# numbers. For most of them, the CUDA runtime reference says that the process must be terminated.
# The first five and the last mean that the GPU, or this process's handle of it, no longer exists.
LOST: Final = {
    46: "cudaErrorDevicesUnavailable",
    100: "cudaErrorNoDevice",
    101: "cudaErrorInvalidDevice",
    201: "cudaErrorDeviceUninitialized",
    400: "cudaErrorInvalidResourceHandle",
    214: "cudaErrorECCUncorrectable",
    220: "cudaErrorNvlinkUncorrectable",
    226: "cudaErrorContained",
    700: "cudaErrorIllegalAddress",
    702: "cudaErrorLaunchTimeout",
    709: "cudaErrorContextIsDestroyed",
    710: "cudaErrorAssert",
    714: "cudaErrorHardwareStackError",
    715: "cudaErrorIllegalInstruction",
    716: "cudaErrorMisalignedAddress",
    717: "cudaErrorInvalidAddressSpace",
    718: "cudaErrorInvalidPc",
    719: "cudaErrorLaunchFailure",
    721: "cudaErrorTensorMemoryLeak",
    810: "cudaErrorMpsClientTerminated",
    911: "cudaErrorExternalDevice",
    999: "cudaErrorUnknown",
}

# CuPy's class of exceptions for CUDA or a library -> the status for a failed allocation, from the
# library's header. CuPy raises ``MemoryError`` only for its own allocations.
_ALLOCATION_FAILED: Final = {
    "CUDARuntimeError": 2,
    "CUDADriverError": 2,
    "CUBLASError": 3,
    "CUSOLVERError": 2,
    "CUSPARSEError": 2,
    "CUFFTError": 2,
    "CURANDError": 102,
}

_noting: Final = threading.Lock()


def lacks_memory(error: Exception) -> bool:
    """Whether CUDA or one of its libraries could not allocate memory of the GPU."""
    status = getattr(error, "status", None)
    if status is None:
        status = getattr(error, "result", None)  # of cuFFT
    return status is not None and status == _ALLOCATION_FAILED.get(type(error).__name__)


class Faults:
    """The fault state of one GPU. Thread-safe.

    ``ask`` returns the GPU's current CUDA status, without waiting. As a context manager, this class
    raises ``DeviceLost`` on entry if the GPU is lost. If the loss causes an error inside the
    context, it raises ``DeviceLost`` instead of that error.
    """

    __slots__ = ("_ask", "_device", "failure", "status")

    def __init__(self, device: str, ask: Callable[[], int]) -> None:
        self._device: Final = device
        self._ask: Final = ask
        self.status = 0
        self.failure: str | None = None

    def examine(self) -> str | None:
        """Query the GPU; return why it is lost, or ``None``.

        Only the GPU's own status is conclusive: an exception may concern another GPU, or a library
        with error numbers of its own.
        """
        if self.failure is None:
            self.note(self._ask())
        return self.failure

    def note(self, status: int) -> None:
        """Record the status that a call to this GPU returned."""
        name = LOST.get(status)
        with _noting:
            if name is None or self.failure is not None:
                return
            # Set the status before the reason, because readers that find a reason then read the
            # status.
            self.status = status
            self.failure = (
                f"{self._device} is lost: CUDA reports error {status} ({name}), and the tensors on "
                "it are gone; restart the server, or continue on another device"
            )
            _quiet_destructors()
        logger.error("device lost", device=self._device, status=status, error=name)

    def event_status(self, query: Callable[..., int], *event: Any) -> int:
        """Return the CUDA status of an event.

        On a lost GPU, a pending event never passes; its status is the GPU's error.
        """
        if self.failure is None:
            status = query(*event)
            if status not in (0, NOT_READY):
                self.examine()
            return status
        return self.status

    def __enter__(self) -> None:
        if self.failure is not None:
            raise DeviceLost(self.failure)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, BurnRemoteError | MemoryError):
            return
        failure = self.examine()
        if failure is not None:
            raise DeviceLost(failure) from error


def _quiet_destructors() -> None:
    """Suppress errors of destructors that cannot free memory, events and streams of a lost GPU.

    Otherwise, Python would report each error with a traceback, and there may be thousands of such
    objects.
    """
    report = sys.unraisablehook

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if getattr(unraisable.exc_value, "status", None) not in LOST:
            report(unraisable)

    sys.unraisablehook = report_others
