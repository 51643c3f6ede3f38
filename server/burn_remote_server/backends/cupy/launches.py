"""Kernel launches whose arguments are prepared.

CuPy converts the arguments of each launch, and reads the address of each NumPy array from its
``__array_interface__``. Such a launch takes 7 to 10 µs, of which the driver takes 5 (H100). Here, a
launch only writes addresses into memory that the driver reads.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import driver

__all__ = ["PreparedLaunch", "is_c_ordered", "kept_function", "number_structure", "prepared"]

# Most prepared launches of a thread, about 2 KB each. At this number, all are discarded.
MAX_KEPT: Final = 1024

# Whether an array is in C order: ``array.flags.c_contiguous`` without the object that ``flags``
# makes, which takes 5 times as long.
is_c_ordered: Final = attrgetter("_c_contiguous")

_of_thread: Final = threading.local()


def kept_function(source: str, name: str, options: tuple[str, ...]) -> Any:
    """Compile a source for the current device; return its function with this name.

    The function is never unloaded, because CuPy would report an error for each function that it
    unloads when a process with a lost GPU exits. So the number of such functions must be limited.
    """
    function = cupy.RawModule(code=source, options=options).get_function(name).kernel
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    return function


class PreparedLaunch:
    """A kernel with its grid and the memory of its arguments. One thread at a time may use it.

    The first ``count`` arguments are addresses, which the caller writes into ``pointers`` before
    ``run``. The arguments after them are ``values``: NumPy arrays, whose memory is passed by value.
    ``function`` is a function that CuPy loaded for the current device.
    """

    __slots__ = ("_arguments", "_call", "_kept", "pointers")

    def __init__(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        count: int,
        values: Sequence[Any] = (),
    ) -> None:
        memory = (ctypes.c_uint64 * max(count, 1))()
        self.pointers: Final = memoryview(memory).cast("B").cast("Q")
        addresses = [ctypes.addressof(memory) + 8 * place for place in range(count)]
        addresses += [value.ctypes.data for value in values]
        table = (ctypes.c_uint64 * max(len(addresses), 1))(*addresses)
        self._arguments: Final = ctypes.addressof(table)
        self._call: Final = (function.ptr, *_three(grid), *_three(block), 0)
        self._kept: Final = (function, memory, tuple(values), table)

    def run(self, stream: int) -> None:
        """Queue the kernel on the stream with this address."""
        driver.launchKernel(*self._call, stream, self._arguments, 0)


def number_structure(numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Return a kernel's argument for NumPy scalars: a C structure with these members in order.

    Returns no argument if there are no scalars.
    """
    if not numbers:
        return ()
    fields = [(f"n{place}", number.dtype) for place, number in enumerate(numbers)]
    return (np.array([tuple(numbers)], np.dtype(fields, align=True)),)


def _three(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return sizes along three dimensions; missing ones are 1."""
    return (*sizes, 1, 1)[:3]


def prepared(key: Hashable, make: Callable[[], PreparedLaunch]) -> PreparedLaunch:
    """Return the calling thread's launch with a key; call ``make`` for it the first time."""
    known: dict[Hashable, PreparedLaunch] = _of_thread.__dict__.setdefault("launches", {})
    found = known.get(key)
    if found is None:
        if len(known) >= MAX_KEPT:
            known.clear()
        found = known[key] = make()
    return found
