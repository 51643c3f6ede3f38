"""A server whose devices are simulated GPUs: ``python -m support.simulated_gpus`` and its flags.

The devices compute with NumPy. Their sessions share arrays by events, and their collectives by NCCL
run on ``support.simulated_cuda``, for ``SECONDS`` each, without exchanging elements. ``SIGUSR1``
has the server write statistics to the file ``STATISTICS``.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from support import simulated_cuda

simulated_cuda.install()  # before the modules that import CuPy

from burn_remote_server.__main__ import main  # noqa: E402
from burn_remote_server.backends import opening  # noqa: E402
from burn_remote_server.backends.cupy.communicator import NcclCommunicator  # noqa: E402
from burn_remote_server.backends.cupy.device import Gpu, Shared  # noqa: E402
from burn_remote_server.backends.numpy.backend import NumpyBackend  # noqa: E402

if TYPE_CHECKING:
    from burn_remote_server.backends.interface import Backend


class SimulatedBackend(NumpyBackend):
    """A NumPy backend with a simulated GPU."""

    def __init__(self, index: int, memory_limit: int | None) -> None:
        super().__init__(memory_limit)
        self._gpu = Gpu(index)

    @property
    def has_communicators(self) -> bool:
        return True

    def new_communicator_identifier(self) -> bytes:
        return secrets.token_bytes(128)

    def open_communicator(self, identifier: bytes, members: int, rank: int) -> Any:
        return NcclCommunicator(self._gpu, identifier, members, rank)

    def open_session(self, *given: Any, **options: Any) -> Any:
        session: Any = super().open_session(*given, **options)
        gpu, stream = self._gpu, self._gpu.take_stream()

        class Session(type(session)):  # type: ignore[misc]
            def share(self, array: Any) -> Any:
                return gpu.shared(array, stream)

            _shared_by: Any = None

            def share_all(self, arrays: Sequence[Any], *, has_worked: bool = True) -> list[Any]:
                if has_worked or self._shared_by is None:
                    self._shared_by = gpu.recorded(stream)
                return [Shared(array, self._shared_by) for array in arrays]

            def adopt(self, shared: Any) -> Any:
                if not isinstance(shared, Shared):
                    return shared
                stream.wait_event(shared.ready)
                return shared.array.view(np.ndarray)

        session.__class__ = Session
        return session


def statistics() -> dict[str, Any]:
    """Return microseconds and switches of each thread, and how often CUDA was called."""
    threads = {}
    for thread in threading.enumerate():
        task = Path(f"/proc/self/task/{thread.native_id}")
        lines = (task / "status").read_text().splitlines()
        switches = [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        threads[thread.name] = [nanoseconds / 1e3, *switches]
    return {"threads": threads, "calls": dict(simulated_cuda.CALLS)}


def write_statistics(number: int, frame: object) -> None:
    """Write the statistics for the process that sent the signal."""
    path = Path(os.environ["STATISTICS"])
    new = path.with_suffix(".new")
    new.write_text(json.dumps(statistics()))
    new.rename(path)


def open_simulated(count: int, memory_limit: int | None, tf32: bool) -> list[Backend]:
    """Return the devices of a server."""
    return [SimulatedBackend(index, memory_limit) for index in range(count)]


if __name__ == "__main__":
    simulated_cuda.settings.combines = False
    simulated_cuda.settings.seconds = float(os.environ["SECONDS"])
    opening._OPENERS["numpy"] = open_simulated
    signal.signal(signal.SIGUSR1, write_statistics)
    main()
