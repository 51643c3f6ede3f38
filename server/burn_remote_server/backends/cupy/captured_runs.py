"""CUDA graphs: the kernels of a run, captured once and launched as one.

A graph's kernels have fixed addresses. So a launch copies its inputs and numbers to memory of the
graph, and the outputs to new arrays, each in one kernel that takes a table of addresses. All memory
of a graph comes from a pool of its own, which takes it from the GPU's pool as the session's stream
does: freed memory is reused only by later work of that stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import cupy
import numpy as np

from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.cupy.blas import (
    HOPPER,
    WORKSPACE_BYTES,
    CapturedBlas,
    captured_by,
)
from burn_remote_server.backends.cupy.device import Gpu
from burn_remote_server.backends.cupy.range_checks import RangeChecks, checked_by
from burn_remote_server.backends.interface import CapturedRun, NotCaptured

__all__ = ["CudaGraphs", "prepare"]

# Copies of one kernel; CUDA bounds its parameters by 4 KB.
MAX_COPIES: Final = 128
THREADS: Final = 256
# Bytes that a thread copies before the next block is worth starting, and the most blocks of a copy:
# four for each multiprocessor of a large GPU.
BYTES_PER_THREAD: Final = 64
MAX_BLOCKS: Final = 528

_FLOAT32: Final = np.dtype(np.float32)

# The highest bit of ``bytes``: ``source`` holds the element itself.
IMMEDIATE: Final = 1 << 63

_SOURCE: Final = f"""
typedef unsigned long long u64;
struct Copy {{ u64 target, source, bytes; }};
struct Copies {{ Copy items[{MAX_COPIES}]; }};

extern "C" __global__ void burn_remote_copies(const __grid_constant__ Copies copies) {{
    const Copy copy = copies.items[blockIdx.y];
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    if (copy.bytes >> 63) {{
        char* target = (char*)copy.target;
        if (first < (copy.bytes & 15)) target[first] = (char)(copy.source >> (8 * first));
        return;
    }}
    u64 done = 0;
    if (!((copy.target | copy.source) & 15)) {{
        const u64 count = copy.bytes / 16;
        const uint4* source = (const uint4*)copy.source;
        uint4* target = (uint4*)copy.target;
        for (u64 i = first; i < count; i += step) target[i] = source[i];
        done = count * 16;
    }}
    for (u64 i = done + first; i < copy.bytes; i += step)
        ((char*)copy.target)[i] = ((const char*)copy.source)[i];
}}
"""


@cache
def _kernel(device: int) -> Any:
    """Return the kernel of copies for the current device, which has this number."""
    module = cupy.RawModule(code=_SOURCE, options=("--std=c++17",))
    function = module.get_function("burn_remote_copies").kernel
    # Never unloaded: at the exit of a process whose GPU is lost, CuPy would report an error of it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    return function


class _Launch(NamedTuple):
    """One kernel of copies: their places, their table, and the grid."""

    places: range
    table: memoryview  # of 64-bit integers
    argument: Any
    grid: tuple[int, int]


class _Copies:
    """Copies between a graph's memory and arrays, by one kernel for up to ``MAX_COPIES``.

    ``column`` is 0 if the arrays are targets, 1 if they are sources. The last ``values`` sources
    are elements, not addresses.
    """

    def __init__(self, device: int, own: Sequence[Any], column: int, values: int = 0) -> None:
        self._kernel: Final = _kernel(device)
        self._column: Final = column
        self._sizes: Final = [array.nbytes for array in own]
        for place in range(len(own) - values, len(own)):
            self._sizes[place] |= IMMEDIATE
        self._launches: Final[list[_Launch]] = []
        for first in range(0, len(own), MAX_COPIES):
            part = own[first : first + MAX_COPIES]
            rows = np.zeros((MAX_COPIES, 3), np.uint64)
            rows[: len(part), 1 - column] = [array.data.ptr for array in part]
            bytes_to_copy = max(THREADS * BYTES_PER_THREAD, *(array.nbytes for array in part))
            blocks = min(MAX_BLOCKS, -(-bytes_to_copy // (THREADS * BYTES_PER_THREAD)))
            # CuPy passes an array of one element by value.
            argument = rows.reshape(-1).view([("items", np.uint64, 3 * MAX_COPIES)])
            table = rows.data.cast("B").cast("Q")
            places = range(first, first + len(part))
            self._launches.append(_Launch(places, table, argument, (blocks, len(part))))

    def run(self, others: Sequence[int], omitted: Collection[int] = ()) -> None:
        """Copy from or to the addresses ``others``, but not at the places ``omitted``."""
        sizes = self._sizes
        if len(omitted) == len(sizes):
            return
        for places, table, argument, grid in self._launches:
            entry = 0
            for place in places:
                table[entry + self._column] = others[place]
                table[entry + 2] = 0 if place in omitted else sizes[place]
                entry += 3
            self._kernel(grid, (THREADS,), (argument,))


class _Layout(NamedTuple):
    """The shape, dtype and strides of a graph's input or output, whose memory has no gaps."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]
    is_c: bool
    nbytes: int

    @classmethod
    def of(cls, array: Any) -> _Layout:
        return cls(
            array.shape, array.dtype, array.strides, bool(array.flags.c_contiguous), array.nbytes
        )

    def empty(self) -> Any:
        """Return a new array."""
        if self.is_c:
            return cupy.ndarray(self.shape, self.dtype)
        memory = cupy.cuda.alloc(self.nbytes)
        return cupy.ndarray(self.shape, self.dtype, memory, strides=self.strides)

    def laid_out(self, array: Any) -> Any:
        """Return an array in this layout, or ``None`` if that is not the array or a C copy."""
        if array.strides == self.strides:
            return array
        return cupy.ascontiguousarray(array) if self.is_c else None


def _without_gaps(array: Any) -> Any:
    """Return the array, or a copy in C order if its elements do not fill its memory."""
    expected = array.itemsize
    for stride, size in sorted(zip(array.strides, array.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return cupy.ascontiguousarray(array)
            expected *= size
    return array


class _Block:
    """Memory that graphs use."""

    __slots__ = ("__weakref__", "memory", "nbytes")

    def __init__(self, memory: Any, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes


class _Captured(NamedTuple):
    """A captured graph with all that a launch needs. Holding it keeps graph and memory alive."""

    graph: Any
    block: _Block
    workspace: _Block | None
    inputs: tuple[_Layout, ...]
    dtypes: tuple[Any, ...]
    outputs: tuple[_Layout, ...]
    copies_in: _Copies
    copies_out: _Copies
    checks: RangeChecks | None


class CudaGraph(CapturedRun):
    """A captured run of one session, launched on the session's stream."""

    def __init__(self, gpu: Gpu, stream: Any, captured: _Captured) -> None:
        self._gpu: Final = gpu
        self._stream: Final = stream
        self._captured: _Captured | None = captured
        # The inputs of the last launch, whose elements the graph's memory has.
        self._held: list[Callable[[], Any]] = [_nothing] * len(captured.inputs)

    @property
    def blocks(self) -> Sequence[tuple[object, int]]:
        if self._captured is None:
            return ()
        blocks = (self._captured.block, self._captured.workspace)
        return [(block, block.nbytes) for block in blocks if block is not None]

    @property
    def is_released(self) -> bool:
        return self._captured is None

    def launch(self, inputs: Sequence[Any], numbers: Sequence[Any]) -> list[Any] | None:
        captured = self._captured  # another thread may release it now
        if captured is None:
            return None
        given = []  # copies live until the kernel that reads them is queued
        # Arrays never change, so those of the call before need no copy: weights of a model, say.
        held = self._held
        omitted = {place for place, array in enumerate(inputs) if held[place]() is array}
        for array, layout in zip(inputs, captured.inputs, strict=True):
            if array.strides != layout.strides:
                array = layout.laid_out(array)
                if array is None:
                    return None
            given.append(array)
        sources = [array.data.ptr for array in given]
        sources += _elements(numbers, captured.dtypes)
        checks = captured.checks
        with self._gpu.faults:
            outputs = [layout.empty() for layout in captured.outputs]
            captured.copies_in.run(sources, omitted)
            self._held = [weakref.ref(array) for array in inputs]
            if checks is not None:
                checks.begin()
            captured.graph.launch(self._stream)
            captured.copies_out.run([array.data.ptr for array in outputs])
            if checks is not None and checks.failed(self._stream):
                return None  # the operations run one by one, and the one that fails says why
        return outputs

    def release(self) -> None:
        captured, self._captured = self._captured, None
        if captured is not None:
            self._gpu.keep_until_finished((captured.graph, captured.checks), self._stream)

    def __del__(self) -> None:
        self.release()


def _nothing() -> None:
    """Return ``None``, as a weak reference to a dead array does."""


def _elements(numbers: Sequence[Any], dtypes: Sequence[Any]) -> list[int]:
    """Return the bytes of numbers in their dtypes, as integers."""
    if {*map(type, numbers)} == {float} and {*dtypes} == {_FLOAT32}:
        # All at once: an array for each number would take longer than the launch.
        with np.errstate(all="ignore"):
            rounded = np.array(numbers, np.float64).astype(np.float32)
        return rounded.view(np.uint32).tolist()  # type: ignore[no-any-return]
    pairs = zip(numbers, dtypes, strict=True)
    return [int.from_bytes(scalar_array(np, *pair).tobytes(), "little") for pair in pairs]


def prepare(device: int) -> None:
    """Compile what captures need, for the current device, which has this number."""
    _kernel(device)


class CudaGraphs:
    """The captures of one session. Only the session's thread calls it."""

    def __init__(self, gpu: Gpu, stream: Any) -> None:
        self._gpu: Final = gpu
        self._stream: Final = stream
        self._workspace: weakref.ref[_Block] | None = None

    def capture(
        self,
        run: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        inputs: Sequence[Any],
        constants: Sequence[Any],
    ) -> CudaGraph:
        """Capture a run; see ``BackendSession.capture``."""
        side = self._gpu.capture_stream(self._stream)
        used: list[_Block] = []  # the workspace, if a matrix product is captured

        def workspace() -> tuple[int, int]:
            if not used:
                used.append(self._shared_workspace())
            return used[0].memory.ptr, used[0].nbytes

        if any(constant.itemsize > 8 for constant in constants):
            raise NotCaptured("a number has more than 8 bytes")
        checks = RangeChecks()
        pool = cupy.cuda.MemoryPool(self._taken)
        with cupy.cuda.using_allocator(pool.malloc), side:
            own = [_Layout.of(_without_gaps(array)).empty() for array in inputs]
            numbers = [cupy.empty((), constant.dtype) for constant in constants]
            blas = CapturedBlas(side, workspace)
            with captured_by(blas), checked_by(checks), _graph_of(side) as graph:
                outputs = [_without_gaps(array) for array in run(own, numbers)]
        device = self._gpu.index
        captured = _Captured(
            graph[0],
            _Block((pool, own, numbers, outputs), pool.total_bytes()),
            used[0] if used else None,
            tuple(map(_Layout.of, own)),
            tuple(constant.dtype for constant in constants),
            tuple(map(_Layout.of, outputs)),
            _Copies(device, [*own, *numbers], 1, len(numbers)),
            _Copies(device, outputs, 0),
            checks if checks.is_used else None,
        )
        found = CudaGraph(self._gpu, self._stream, captured)
        self._gpu.note_capture(found)
        return found

    def _taken(self, size: int) -> Any:
        """Take memory from the GPU's pool, for work on the session's stream."""
        with self._stream:
            return self._gpu.pool.malloc(size)

    def _shared_workspace(self) -> _Block:
        """Return cuBLAS's workspace, which the session's graphs use one after the other."""
        block = None if self._workspace is None else self._workspace()
        if block is None:
            size = WORKSPACE_BYTES[int(self._gpu.device.compute_capability) >= HOPPER]
            block = _Block(self._taken(size), size)
            self._workspace = weakref.ref(block)
        return block


@contextlib.contextmanager
def _graph_of(stream: Any) -> Iterator[list[Any]]:
    """Capture what is launched on a stream; the list then has the graph. Raises ``NotCaptured``."""
    found: list[Any] = []
    stream.begin_capture()
    try:
        yield found
    except BaseException:
        # An error inside a capture may have ended it already.
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            stream.end_capture()
        raise
    try:
        found.append(stream.end_capture())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NotCaptured(f"CUDA cannot capture it: {error}") from error
