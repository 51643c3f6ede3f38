"""Which errors of CUDA mean that a GPU is lost to this process, and who hears of it?

After one of them every call to the GPU fails, whoever makes it, until the process is started anew.
Others, such as that of a full memory, concern their call alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from burn_remote_protocol.errors import BurnRemoteError, DeviceLost
from burn_remote_server.backends.cupy.watch import NOT_READY
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["LOST", "Faults"]

logger = get_logger(__name__)

# By the number, which the runtime and the driver share, as the runtime's reference names it. Of
# most it says that the process must be terminated; the first five and the last are what calls
# answer when the GPU, or what this process had opened on it, is no longer there.
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

_noting: Final = threading.Lock()


class Faults:
    """Whether one GPU is lost. Thread-safe.

    ``ask`` returns what the GPU says of itself now, as a number of CUDA's, without waiting for it.
    As a context, this raises ``DeviceLost`` in place of what fails because the GPU is lost, and
    before anything is tried on one that is known to be.
    """

    __slots__ = ("_ask", "_device", "failure", "status")

    def __init__(self, device: str, ask: Callable[[], int]) -> None:
        self._device: Final = device
        self._ask: Final = ask
        self.status = 0
        self.failure: str | None = None

    def examine(self) -> str | None:
        """Ask the GPU, and return why it is lost, or ``None``.

        It alone knows: an error may be that of another GPU, or of a library, which has its own.
        """
        if self.failure is None:
            self.note(self._ask())
        return self.failure

    def note(self, status: int) -> None:
        """Take in what a call to this GPU has answered."""
        name = LOST.get(status)
        with _noting:
            if name is None or self.failure is not None:
                return
            # Whoever sees that there is a failure may ask for the status.
            self.status = status
            self.failure = (
                f"{self._device} is lost: CUDA reports error {status} ({name}), and the tensors on "
                "it are gone; restart the server, or go on with another device"
            )
            _quiet_destructors()
        logger.error("device lost", device=self._device, status=status, error=name)

    def event_status(self, query: Callable[..., int], *event: Any) -> int:
        """Return what CUDA says of an event: one that is ahead on a GPU that is lost never passes,
        and has the GPU's error."""
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
    """Say nothing of memory, events and streams that cannot be given back to a GPU that is lost.

    There may be thousands, freed by whoever drops the last reference, and each would be reported
    with a traceback.
    """
    report = sys.unraisablehook

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if getattr(unraisable.exc_value, "status", None) not in LOST:
            report(unraisable)

    sys.unraisablehook = report_others
