"""Checks of indices on a GPU, also in captured runs.

A kernel turns indices into positions. If an index is out of range, it sets a flag in host memory,
the *note*, and uses position 0, so that later kernels stay inside their arrays. A single operation
waits for the GPU and reads the note. A captured operation cannot wait. So the launch of a captured
run reads the note after its kernels, and discards the results if it is set.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import cupy
import numpy as np

from burn_remote_server.backends.cupy.host_copies import host_array
from burn_remote_server.backends.cupy.pinned_memory import is_pinned

__all__ = ["RangeChecks", "checked_by", "checked_positions"]

# Negative indices become unsigned numbers that exceed any size.
_positions: Final = cupy.ElementwiseKernel(
    "T index, uint64 size",
    "int64 position, raw int32 note",
    """
    const unsigned long long place = static_cast<unsigned long long>(index);
    if (place >= size) note[0] = 1;
    position = place >= size ? 0 : static_cast<long long>(place);
    """,
    "burn_remote_positions",
)

_of_thread: Final = threading.local()


class RangeChecks:
    """Checks whose notes are read together. Raises ``MemoryError`` without pinned memory."""

    def __init__(self) -> None:
        note = host_array(4)
        if not is_pinned(note):
            raise MemoryError("there is no pinned memory for checks of indices")
        self._note: Final = note.view(np.int32)
        # CUDA maps pinned host memory to the same address on the GPU.
        address = int(self._note.ctypes.data)
        memory = cupy.cuda.UnownedMemory(address, 4, self._note, cupy.cuda.runtime.getDevice())
        self._target: Final = cupy.ndarray((1,), np.int32, cupy.cuda.MemoryPointer(memory, 0))
        self.is_used = False

    def positions(self, indices: Any, size: int) -> Any:
        """Return indices as ``int64`` positions; note whether one is not in ``0..size - 1``."""
        self.is_used = True
        positions = cupy.empty(indices.shape, np.int64)
        _positions(indices, size, positions, self._target)
        return positions

    def begin(self) -> None:
        """Forget earlier notes. No check may be running."""
        self._note[0] = 0

    def failed(self, stream: Any) -> bool:
        """Wait for a stream; return whether a check on it failed since ``begin``."""
        stream.synchronize()
        return bool(self._note[0])


def checked_positions(indices: Any, size: int, compare: Callable[[], Any]) -> Any:
    """Return indices as ``int64`` positions on an axis of ``size`` elements.

    ``compare`` checks the indices by array functions and returns the positions, or raises an error
    that names an index out of range. It is called if the kernel found such an index, and if there
    is no pinned memory for the kernel's note. While a run is captured, it is not called: the launch
    of the captured run reads the note. Neither ``indices`` nor the axis may be empty.
    """
    try:
        checks, is_captured = _current_checks()
    except MemoryError:
        return compare()
    if is_captured:
        return checks.positions(indices, size)
    checks.begin()
    positions = checks.positions(indices, size)
    return compare() if checks.failed(cupy.cuda.get_current_stream()) else positions


def _current_checks() -> tuple[RangeChecks, bool]:
    """Return the checks of the calling thread, and whether they belong to a captured run."""
    found = getattr(_of_thread, "captured", None)
    if found is not None:
        return found, True
    device = cupy.cuda.runtime.getDevice()
    own: dict[int, RangeChecks] = _of_thread.__dict__.setdefault("own", {})
    if device not in own:
        own[device] = RangeChecks()
    return own[device], False


@contextlib.contextmanager
def checked_by(checks: RangeChecks) -> Iterator[None]:
    """Use ``checks`` for the run that the calling thread captures."""
    _of_thread.captured = checks
    try:
        yield
    finally:
        _of_thread.captured = None
