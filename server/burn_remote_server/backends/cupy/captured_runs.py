"""CUDA graphs: the kernels of a run, captured once and launched as one.

The kernels of a graph read and write fixed addresses. So one kernel copies the inputs and numbers
of a launch to memory of the graph, and another one copies the outputs to new arrays; both take a
table of addresses. Inputs and numbers that are the same as in the previous launch need no copy
(``graph_memory``). All memory of a graph comes from a separate pool. That pool takes memory from
the GPU's pool under the session's stream, so only later work of that stream reuses freed memory.
"""

from __future__ import annotations

import contextlib
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
from burn_remote_server.backends.cupy.device import Gpu, OnStream
from burn_remote_server.backends.cupy.graph_memory import InputMemory, OutputMemory
from burn_remote_server.backends.cupy.launches import PreparedLaunch, kept_function
from burn_remote_server.backends.cupy.new_arrays import new_array
from burn_remote_server.backends.cupy.range_checks import RangeChecks, checked_by
from burn_remote_server.backends.interface import CapturedRun, NotCaptured

__all__ = ["CudaGraphs", "prepare"]

# Numbers of copies for which there is a kernel. The driver copies the kernel's whole table at each
# launch, and CUDA limits the parameters of a kernel to 4 KB.
TABLE_LENGTHS: Final = (8, 32, 128)
MAX_COPIES: Final = TABLE_LENGTHS[-1]
THREADS: Final = 256
# The bytes that each thread copies, which determine the number of blocks, and the most blocks of a
# copy: four for each multiprocessor of a large GPU.
BYTES_PER_THREAD: Final = 64
MAX_BLOCKS: Final = 528

_FLOAT32: Final = np.dtype(np.float32)

# The highest bit of ``bytes``: ``source`` holds the element itself.
IMMEDIATE: Final = 1 << 63

_SOURCE: Final = """
typedef unsigned long long u64;
struct Copy { u64 target, source, bytes; };
template <int length> struct Copies { Copy items[length]; };

__device__ void copy_elements(const Copy& copy) {
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    if (copy.bytes >> 63) {
        char* target = (char*)copy.target;
        if (first < (copy.bytes & 15)) target[first] = (char)(copy.source >> (8 * first));
        return;
    }
    u64 done = 0;
    if (!((copy.target | copy.source) & 15)) {
        const u64 count = copy.bytes / 16;
        const uint4* source = (const uint4*)copy.source;
        uint4* target = (uint4*)copy.target;
        for (u64 i = first; i < count; i += step) target[i] = source[i];
        done = count * 16;
    }
    for (u64 i = done + first; i < copy.bytes; i += step)
        ((char*)copy.target)[i] = ((const char*)copy.source)[i];
}
"""

_FUNCTION: Final = """
extern "C" __global__ void burn_remote_copies_{length}(
    const __grid_constant__ Copies<{length}> copies) {{
    const Copy copy = copies.items[blockIdx.y];
    copy_elements(copy);
}}
"""


@cache
def _kernels(device: int) -> dict[int, Any]:
    """Return the kernels of copies for the current device, whose number is given, by length."""
    source = _SOURCE + "".join(_FUNCTION.format(length=length) for length in TABLE_LENGTHS)
    return {
        length: kept_function(source, f"burn_remote_copies_{length}", ("--std=c++17",))
        for length in TABLE_LENGTHS
    }


class _Launch(NamedTuple):
    """One kernel of copies, the places of its arrays, and its table of 64-bit integers."""

    places: range
    table: memoryview
    kernel: PreparedLaunch


class _Copies:
    """Copies between a graph's memory and arrays, by one kernel for up to ``MAX_COPIES``.

    ``own`` is the graph's memory. ``column`` is 0 if the arrays are targets, 1 if they are sources.
    The last ``values`` sources are elements, not addresses.
    """

    def __init__(self, device: int, own: Sequence[Any], column: int, values: int = 0) -> None:
        self._column: Final = column
        self._sizes: Final = [array.nbytes for array in own]
        for place in range(len(own) - values, len(own)):
            self._sizes[place] |= IMMEDIATE
        self._omitted: Collection[int] | None = None
        self._launches: Final[list[_Launch]] = []
        for first in range(0, len(own), MAX_COPIES):
            part = own[first : first + MAX_COPIES]
            length = next(each for each in TABLE_LENGTHS if each >= len(part))
            rows = np.zeros((length, 3), np.uint64)
            rows[: len(part), 1 - column] = [array.data.ptr for array in part]
            bytes_to_copy = max(THREADS * BYTES_PER_THREAD, *(array.nbytes for array in part))
            blocks = min(MAX_BLOCKS, -(-bytes_to_copy // (THREADS * BYTES_PER_THREAD)))
            kernel = PreparedLaunch(
                _kernels(device)[length], (blocks, len(part)), (THREADS,), 0, (rows,)
            )
            places = range(first, first + len(part))
            self._launches.append(_Launch(places, rows.data.cast("B").cast("Q"), kernel))

    def run(self, others: Sequence[int], stream: int, omitted: Collection[int] = ()) -> None:
        """Copy from or to the arrays at the addresses ``others``, except the places ``omitted``."""
        sizes = self._sizes
        if len(omitted) == len(sizes):
            return
        is_changed = omitted != self._omitted
        for places, table, kernel in self._launches:
            entry = self._column
            for place in places:
                table[entry] = others[place]
                entry += 3
            if is_changed:
                entry = 2
                for place in places:
                    table[entry] = 0 if place in omitted else sizes[place]
                    entry += 3
            kernel.run(stream)
        self._omitted = omitted


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
            return new_array(self.shape, self.dtype)
        return self.over(cupy.cuda.alloc(self.nbytes))

    def over(self, pointer: Any) -> Any:
        """Return an array in the memory at a pointer."""
        if self.is_c:
            return new_array(self.shape, self.dtype, pointer)
        return cupy.ndarray(self.shape, self.dtype, pointer, strides=self.strides)

    def laid_out(self, array: Any) -> Any:
        """Return the array or a copy of it, with this layout; ``None`` if neither has it.

        A copy is in C order.
        """
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
    """A captured graph and its memory. A reference to it keeps both alive."""

    graph: Any
    block: _Block
    workspace: _Block | None
    # Memory of earlier outputs, which counts with ``block``.
    made: OutputMemory
    inputs: tuple[_Layout, ...]
    dtypes: tuple[Any, ...]
    outputs: tuple[_Layout, ...]
    copies_in: _Copies
    # The graph's memory of the inputs, and of the outputs.
    own: Sequence[Any]
    results: Sequence[Any]
    checks: RangeChecks | None


class CudaGraph(CapturedRun):
    """A captured run of one session, launched on the session's stream."""

    def __init__(self, gpu: Gpu, stream: Any, captured: _Captured) -> None:
        self._gpu: Final = gpu
        self._stream: Final = stream
        self._captured: _Captured | None = captured
        # All copies of outputs run in one kernel, so none may write memory that another one reads.
        self._memory: Final = InputMemory(
            captured.inputs, captured.outputs if _are_apart(captured.own, captured.results) else ()
        )
        # The bytes of the numbers of the last launch; they are still in the graph's memory.
        self._numbers: list[int] = []
        self._copies_out = _Copies(gpu.index, captured.results, 0)
        # The memory of the inputs to which outputs are forwarded.
        self._forwarded: list[int] = []

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
        checks, stream, memory = captured.checks, self._stream, self._memory
        with self._gpu.faults:
            outputs = captured.made.arrays()
            if not self._copy_in(captured, inputs, numbers):
                return None
            if checks is not None:
                checks.begin()
            captured.graph.launch(stream)
            memory.forwarding()
            targets = [array.data.ptr for array in outputs]
            self._copies_out.run(targets + self._forwarded, stream.ptr)
            memory.launched(outputs)
            if checks is not None and checks.failed(stream):
                return None  # the caller runs the operations one by one, and one raises the error
        return outputs

    def _copy_in(self, captured: _Captured, inputs: Sequence[Any], numbers: Sequence[Any]) -> bool:
        """Copy inputs and numbers that are not yet in the graph's memory.

        Returns ``False`` if an input has another layout than the graph's.
        """
        memory = self._memory
        omitted = memory.held(inputs)
        elements = _elements(numbers, captured.dtypes) if captured.dtypes else []
        if elements == self._numbers:
            if len(omitted) == len(inputs):
                return True
            places = omitted | {*range(len(inputs), len(inputs) + len(elements))}
        else:
            places = omitted
        sources: list[int] = []
        given: list[Any] = []  # copies live until the kernel that reads them is queued
        for place, (array, layout) in enumerate(zip(inputs, captured.inputs, strict=True)):
            if place not in omitted and array.strides != layout.strides:
                array = layout.laid_out(array)
                if array is None:
                    return False
                given.append(array)
            sources.append(array.data.ptr)
        if memory.learn(inputs, omitted):
            self._forward(captured)
        captured.copies_in.run(sources + elements, self._stream.ptr, places)
        memory.copied(inputs, omitted)
        self._numbers = elements
        return True

    def _forward(self, captured: _Captured) -> None:
        """Let the copies of the outputs also write the memory of the inputs that they become."""
        pairs = self._memory.forwarded
        forwarded = [captured.results[output] for output, _ in pairs]
        self._copies_out = _Copies(self._gpu.index, [*captured.results, *forwarded], 0)
        self._forwarded = [captured.own[place].data.ptr for _, place in pairs]

    def release(self) -> None:
        captured, self._captured = self._captured, None
        if captured is not None:
            captured.made.clear()
            self._gpu.keep_until_finished((captured.graph, captured.checks), self._stream)

    def __del__(self) -> None:
        self.release()


def _are_apart(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether no array of ``some`` shares memory with one of ``others``.

    The memory of an array has no gaps.
    """
    ranges = sorted(
        (array.data.ptr, array.data.ptr + array.nbytes, kind)
        for kind, arrays in enumerate((some, others))
        for array in arrays
        if array.nbytes
    )
    ends = [0, 0]  # how far the ranges of each kind reach so far
    for start, end, kind in ranges:
        if start < ends[1 - kind]:
            return False
        ends[kind] = max(ends[kind], end)
    return True


def _elements(numbers: Sequence[Any], dtypes: Sequence[Any]) -> list[int]:
    """Return numbers in their dtypes, each as the integer of its bytes."""
    if {*map(type, numbers)} == {float} and {*dtypes} == {_FLOAT32}:
        # All at once: an array for each number would take longer than the launch.
        with np.errstate(all="ignore"):
            rounded = np.array(numbers, np.float64).astype(np.float32)
        return rounded.view(np.uint32).tolist()  # type: ignore[no-any-return]
    pairs = zip(numbers, dtypes, strict=True)
    return [int.from_bytes(scalar_array(np, *pair).tobytes(), "little") for pair in pairs]


def prepare(device: int) -> None:
    """Compile the kernels of captures for the current device, whose number is given."""
    _kernels(device)


class CudaGraphs:
    """The captures of one session. Only the session's thread calls these methods."""

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
        with cupy.cuda.using_allocator(pool.malloc), OnStream(side):
            own = [_Layout.of(_without_gaps(array)).empty() for array in inputs]
            numbers = [cupy.empty((), constant.dtype) for constant in constants]
            blas = CapturedBlas(side, workspace)
            with captured_by(blas), checked_by(checks), _graph_of(side) as graph:
                outputs = [_without_gaps(array) for array in run(own, numbers)]
        device = self._gpu.index
        layouts = tuple(map(_Layout.of, outputs))
        made = OutputMemory(layouts)
        captured = _Captured(
            graph[0],
            _Block((pool, own, numbers, outputs), pool.total_bytes() + made.nbytes),
            used[0] if used else None,
            made,
            tuple(map(_Layout.of, own)),
            tuple(constant.dtype for constant in constants),
            layouts,
            _Copies(device, [*own, *numbers], 1, len(numbers)),
            own,
            outputs,
            checks if checks.is_used else None,
        )
        found = CudaGraph(self._gpu, self._stream, captured)
        self._gpu.note_capture(found)
        return found

    def _taken(self, size: int) -> Any:
        """Take memory from the GPU's pool, for work on the session's stream."""
        with OnStream(self._stream):
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
    """Capture the kernels that are launched on a stream; afterwards, the list has the graph.

    Raises ``NotCaptured``.
    """
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
        raise NotCaptured(f"CUDA cannot capture the run: {error}") from error
