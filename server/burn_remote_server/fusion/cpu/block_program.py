"""Programs of functions that run block by block.

The functions are those of single operations. So results have the same bits as those of single
operations if a function computes an element with the same bits at any position of an array. NumPy's
loops do so for contiguous arrays, but not for reversed ones, nor for strided float16. Therefore
each call checks that operands are C-contiguous, or repeat C-contiguous elements. A reduction gets
whole rows of a C-contiguous array.

The first runs try several sizes of blocks, one of which is the whole arrays (``block_trials``).

With a compiler, kernels replace the runs of exact instructions once they are compiled.

An output may be written into the memory of an input that is used for the last time. A function
reads and writes elements at the same positions, so a block overwrites only elements that no later
block reads. This is done only if no function can raise, because overwritten inputs cannot be used
again.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import Shape
from burn_remote_server.fusion.cpu.block_schedules import (
    Instruction,
    KernelCall,
    Schedule,
    Step,
    Width,
    inputs_taken,
    most_held,
    scheduled,
)
from burn_remote_server.fusion.cpu.block_trials import BlockTrial
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler, Kernels
from burn_remote_server.fusion.cpu.kernel_groups import grouped, source_of
from burn_remote_server.fusion.cpu.kernel_source import KernelArray
from burn_remote_server.fusion.cpu.layouts import Layout, Mask, expanded_mask, static_mask
from burn_remote_server.fusion.cpu.unfailing_functions import cannot_raise
from burn_remote_server.fusion.fuser import OverwrittenInputs

__all__ = ["BLOCK_ELEMENTS", "BlockProgram", "Operand"]

# 64 Ki elements of four bytes, for several operands, stay in a core's second-level cache; measured
# as the fastest of 4 Ki to 512 Ki (`benchmarks/fusion.py`).
BLOCK_ELEMENTS: Final = 64 * 1024

# The sizes of blocks that the first runs try, as multiples of ``BLOCK_ELEMENTS``. The larger one
# was faster where other work shares the first-level caches.
BLOCK_MULTIPLES: Final = (1, 2)

# Most bytes of a program's arrays for which the first runs also try to compute each instruction for
# the whole arrays. More do not fit into the caches of most processors, so that blocks are faster.
# The bound also limits the memory of intermediate results.
MAX_WHOLE_BYTES: Final = 64 * 2**20

# NumPy's loops read and write 64 bytes at a time. If they cross the borders of cache lines, as in
# memory that the C library aligns to 16 bytes, additions in the cache took twice as long.
CACHE_LINE_BYTES: Final = 64

# Kernels leave few intermediate arrays, so larger blocks are faster (`--block-sizes`).
KERNEL_BLOCK_ELEMENTS: Final = 256 * 1024

# Most layouts of the inputs for which a program is prepared. Layouts rarely change between calls.
MAX_LAYOUTS: Final = 8

# Most nested loops of a kernel: one for each axis that cannot be merged with its neighbour. Few
# programs need more.
MAX_KERNEL_RANK: Final = 4

# The number of the run at which a program is compiled. A program that runs once is not worth it.
COMPILED_AT: Final = 2


class Operand(NamedTuple):
    """An input of a program."""

    shape: Shape
    dtype: np.dtype[Any]


class _Way(NamedTuple):
    """How a program is executed: by functions, or with kernels.

    ``taken`` has, for each output, the input whose memory it takes, or -1.
    """

    layout: Layout
    schedule: Schedule
    taken: tuple[int, ...]


class _Prepared:
    """The prepared form of a program for inputs with certain masks, some of them overwritable.

    ``blocks`` says how it is executed by functions, in blocks of several sizes, among which
    ``trial`` chooses. ``compiled`` says how it is executed with kernels; ``source`` is the assembly
    of the kernels.
    """

    def __init__(self, blocks: tuple[_Way, ...], compiled: _Way | None, source: str) -> None:
        self.blocks = blocks
        self.trial = BlockTrial(len(blocks))
        self.compiled = compiled
        self.source = source
        self.runs = 0


class BlockProgram:
    """Instructions whose results have one common shape, or one element for each row of it.

    ``constants`` are zero-dimensional arrays, and ``outputs`` are the values that are kept. If an
    instruction is a reduction, the shape has at least two rows, each at most half as long as a
    block. ``runs_compiled``: the last run used kernels.
    """

    def __init__(
        self,
        shape: Shape,
        inputs: Sequence[Operand],
        constants: Sequence[Any],
        instructions: Sequence[Instruction],
        outputs: Sequence[int],
        compiler: KernelCompiler | None = None,
    ) -> None:
        self._shape = shape
        self._constants = tuple(constants)
        self._masks = tuple(static_mask(each.shape, shape) for each in inputs)
        self._dtypes = [each.dtype for each in inputs]
        # Keyed by the masks of the inputs, and by the places of those that may be overwritten.
        self._prepared: OrderedDict[tuple[tuple[Mask, ...], tuple[int, ...]], _Prepared] = (
            OrderedDict()
        )
        self._instructions = tuple(instructions)
        self._outputs = tuple(outputs)
        self._reduces = any(each.is_reduction for each in instructions)
        # Inputs that are reduced. They must be C-contiguous as they are.
        self._reduced = {
            each.operands[0]
            for each in instructions
            if each.is_reduction and each.operands[0] < len(inputs)
        }
        self._first = first = len(inputs) + len(constants)
        self._output_widths = [instructions[value - first].width for value in outputs]
        # Inputs that have as many elements as a result of the program's shape.
        self._whole_inputs = {
            place: Width(each.dtype) for place, each in enumerate(inputs) if each.shape == shape
        }
        self.overwrites = all(cannot_raise(each.function, each.into) for each in instructions)
        self._compiler = compiler
        self.runs_compiled = False
        self._kernels: tuple[KernelCall, ...] = ()
        if compiler is not None:
            self._kernels = tuple(grouped(first, instructions, outputs))
            # A program that is one kernel has no intermediate arrays to keep in the cache.
            self._is_one_kernel = [(each.start, each.end) for each in self._kernels] == [
                (0, len(instructions))
            ]
            replaced = {place for each in self._kernels for place in range(each.start, each.end)}
            self._kernels_overwrite = all(
                place in replaced or cannot_raise(each.function, each.into)
                for place, each in enumerate(instructions)
            )

    def run(self, inputs: Sequence[Any], reusable: Sequence[int] = ()) -> list[Any] | None:
        """Return the outputs, or ``None`` if the layout of an input is unsuitable.

        Outputs may take the memory of the inputs at the places ``reusable``, which nothing else
        references. Raises ``OverwrittenInputs`` for an error after one has been overwritten.
        """
        operands, masks = [*inputs], self._masks
        for place, array in enumerate(operands):
            if not array.flags.c_contiguous:
                found = expanded_mask(array, self._shape)
                if found is None or place in self._reduced:
                    return None
                operands[place] = found[0]
                masks = (*masks[:place], found[1], *masks[place + 1 :])
        prepared = self._prepare(masks, self._overwritable(inputs, reusable))
        kernels = self._compiled(prepared)
        trial = prepared.trial
        way = prepared.blocks[trial.candidate]
        if kernels is not None and [each.dtype for each in operands] == self._dtypes:
            assert prepared.compiled is not None
            way = prepared.compiled
        else:
            kernels = None
        layout, schedule, taken = way
        rows = (*self._shape[:-1], 1)
        outputs = [
            np.empty(rows if width.is_row else self._shape, width.dtype)
            if place < 0
            else inputs[place]
            for width, place in zip(self._output_widths, taken, strict=True)
        ]
        arrays = [
            *[each.reshape(shape) for each, shape in zip(operands, layout.shapes, strict=True)],
            *self._constants,
            *[
                each.reshape(layout.row_result_shape if width.is_row else layout.result_shape)
                for each, width in zip(outputs, self._output_widths, strict=True)
            ],
        ]
        scratch = [
            _aligned(layout.row_size if width.is_row else layout.size, width.dtype)
            for width in schedule.scratch
        ]
        self.runs_compiled = kernels is not None
        try:
            if kernels is not None:
                self._run_kernels(layout, schedule.steps, arrays, scratch, kernels)
            elif trial.is_decided:
                self._run_blocks(layout, schedule.steps, arrays, scratch)
            else:
                started = time.thread_time()
                self._run_blocks(layout, schedule.steps, arrays, scratch)
                trial.note(time.thread_time() - started)
        except Exception as error:  # of any kernel, also MemoryError
            pass_on_of_signal_handler(error)
            overwritten = tuple(place for place in taken if place >= 0)
            if overwritten:
                raise OverwrittenInputs(overwritten) from error
            raise
        return outputs

    def _overwritable(self, inputs: Sequence[Any], reusable: Sequence[int]) -> tuple[int, ...]:
        """Return the places of the inputs that an output could take."""
        return tuple(
            place
            for place in reusable
            if place in self._whole_inputs
            and inputs[place].flags.c_contiguous
            and (inputs[place].shape, inputs[place].dtype) == (self._shape, self._dtypes[place])
        )

    def _prepare(self, masks: tuple[Mask, ...], overwritable: tuple[int, ...]) -> _Prepared:
        key = masks, overwritable
        prepared = self._prepared.get(key)
        if prepared is None:
            blocks = self._block_ways(masks, overwritable if self.overwrites else ())
            compiled, source = None, ""
            if self._kernels:
                most = KERNEL_BLOCK_ELEMENTS
                if self._is_one_kernel:
                    most = math.prod(self._shape)
                layout = Layout(self._shape, masks, most, keeps_rows=self._reduces)
                compiled = self._way(
                    layout, overwritable if self._kernels_overwrite else (), self._kernels
                )
                source = self._source(compiled)
            prepared = self._prepared[key] = _Prepared(blocks, compiled, source)
            if len(self._prepared) > MAX_LAYOUTS:
                self._prepared.popitem(last=False)
        return prepared

    def _block_ways(self, masks: tuple[Mask, ...], overwritable: Sequence[int]) -> tuple[_Way, ...]:
        """Return the ways that the first runs try."""
        sizes = [BLOCK_ELEMENTS * multiple for multiple in BLOCK_MULTIPLES]
        whole = math.prod(self._shape)
        counted = whole * most_held(self._first, self._instructions, self._outputs)
        found: dict[Shape, _Way] = {}
        for size in [*sizes, whole]:
            layout = Layout(self._shape, masks, size, keeps_rows=self._reduces)
            way = self._way(layout, overwritable)
            made = _bytes([*self._output_widths, *way.schedule.scratch]) * whole
            needed = made + _bytes(self._whole_inputs.values()) * whole
            # The quota counts what single operations hold.
            if size in sizes or (needed <= MAX_WHOLE_BYTES and made <= counted):
                found.setdefault(layout.size, way)
            if self._reduces:  # only for this size has it been measured that rows pay
                break
        return tuple(found.values())

    def _way(
        self, layout: Layout, overwritable: Sequence[int], kernels: Sequence[KernelCall] = ()
    ) -> _Way:
        candidates = {place: self._whole_inputs[place] for place in overwritable}
        first, instructions, outputs = self._first, self._instructions, self._outputs
        taken = inputs_taken(first, instructions, outputs, candidates, kernels)
        schedule = scheduled(first, instructions, outputs, kernels, taken)
        return _Way(layout, schedule, tuple(taken.get(value, -1) for value in outputs))

    # -- blocks -------------------------------------------------------------------------------

    def _run_blocks(
        self, layout: Layout, steps: Sequence[Step], arrays: Sequence[Any], scratch: Sequence[Any]
    ) -> None:
        inputs, constants = arrays[: len(self._masks)], arrays[len(self._masks) : self._first]
        outputs = arrays[self._first :]
        most = layout.size[0]
        for rows, index, places in layout.blocks():
            r = [
                *[each[place] for each, place in zip(inputs, places, strict=True)],
                *constants,
                *[each[index] for each in outputs],
                *(scratch if rows == most else [each[:rows] for each in scratch]),
            ]
            for step in steps:
                _run_step(step, r)

    # -- kernels ------------------------------------------------------------------------------

    def _compiled(self, prepared: _Prepared) -> Kernels | None:
        """Return the kernels if they are compiled; start to compile them at run ``COMPILED_AT``."""
        if self._compiler is None or not prepared.source:
            return None
        prepared.runs += 1
        if prepared.runs < COMPILED_AT:
            return None
        names = tuple(f"kernel{place}" for place in range(len(self._kernels)))
        return self._compiler.found(prepared.source, names)

    def _source(self, way: _Way) -> str:
        """Return the assembly of all kernels; an empty text if there are too many axes."""
        layout = way.layout
        rank = len(layout.size)
        if rank > MAX_KERNEL_RANK:
            return ""
        last = [shape[-1] > 1 or layout.size[-1] == 1 for shape in layout.shapes]
        arrays = [*map(KernelArray, self._dtypes, last)]
        arrays += [KernelArray(each.dtype, is_row=False) for each in self._constants]
        arrays += [
            KernelArray(each.width.dtype, not each.width.is_row) for each in self._instructions
        ]
        taken = dict(zip(self._outputs, way.taken, strict=True))
        return "\n".join(
            source_of(
                f"kernel{place}",
                rank,
                call,
                self._first,
                self._instructions,
                [arrays[value] for value in call.operands],
                taken,
            )
            for place, call in enumerate(self._kernels)
        )

    def _run_kernels(
        self,
        layout: Layout,
        steps: Sequence[Step],
        arrays: Sequence[Any],
        scratch: Sequence[Any],
        kernels: Kernels,
    ) -> None:
        registers = [*arrays, *scratch]
        rank = len(layout.size)
        slots = [register for step in steps for register in step.registers]
        moved = [_strides(registers[slot], layout) for slot in slots]
        is_scratch = [slot >= len(arrays) for slot in slots]
        bases = np.array([_address(registers[slot]) for slot in slots], np.int64)
        # For each array, the distance in bytes between the first elements of consecutive blocks,
        # along the divided axis and those before it.
        leading = np.array(
            [
                [0] * (len(each) - rank) if fixed else each[:-rank]
                for each, fixed in zip(moved, is_scratch, strict=True)
            ],
            np.int64,
        )
        moves = np.array(
            [0 if fixed else each[-rank] for each, fixed in zip(moved, is_scratch, strict=True)],
            np.int64,
        )
        strides = np.array([each[-rank:-1] for each in moved], np.int64)
        lengths = np.array(layout.size, np.int64)
        pointers = np.empty(len(slots), np.int64)
        calls = _kernel_arguments(steps, pointers, strides, lengths, rank)
        uses_numpy = any(step.kernel < 0 for step in steps)
        inputs, constants = arrays[: len(self._masks)], arrays[len(self._masks) : self._first]
        outputs = arrays[self._first :]
        most = layout.size[0]
        r: list[Any] = []
        for rows, index, places in layout.blocks():
            *lead, part = index
            np.multiply(moves, part.start, out=pointers)
            pointers += bases
            if lead:
                pointers += leading @ np.array(lead, np.int64)
            lengths[0] = rows
            if uses_numpy:
                r = [
                    *[each[place] for each, place in zip(inputs, places, strict=True)],
                    *constants,
                    *[each[index] for each in outputs],
                    *(scratch if rows == most else [each[:rows] for each in scratch]),
                ]
            for step, arguments in zip(steps, calls, strict=True):
                if step.kernel < 0:
                    _run_step(step, r)
                else:
                    kernels.functions[step.kernel](*arguments)


def _run_step(step: Step, r: list[Any]) -> None:
    function, takes_out, sources, target, _, _ = step
    assert function is not None
    if not takes_out:
        # Copied, because the function may return an operand, whose memory will be overwritten.
        np.copyto(r[target], function(*[r[source] for source in sources]), "no")
    elif len(sources) == 2:
        function(r[sources[0]], r[sources[1]], out=r[target])
    else:
        function(*[r[source] for source in sources], out=r[target])


def _bytes(widths: Iterable[Width]) -> int:
    return sum(width.dtype.itemsize for width in widths)


def _aligned(shape: Shape, dtype: np.dtype[Any]) -> Any:
    """Return a new array that begins at a cache line."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + CACHE_LINE_BYTES, np.uint8)
    start = -_address(memory) % CACHE_LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _strides(array: Any, layout: Layout) -> list[int]:
    """Return the stride in bytes along each axis of the layout; 0 along broadcast axes."""
    missing = len(layout.result_shape) - array.ndim
    return [0] * missing + [
        0 if length == 1 else stride
        for stride, length in zip(array.strides, array.shape, strict=True)
    ]


def _kernel_arguments(
    steps: Sequence[Step], pointers: Any, strides: Any, lengths: Any, rank: int
) -> list[tuple[int, int, int]]:
    """Return the addresses of each step's arguments; the tables have one row for each register."""
    ends = [0]
    for step in steps:
        ends.append(ends[-1] + len(step.registers))
    size = pointers.itemsize
    return [
        (
            _address(pointers) + size * start,
            _address(strides) + size * start * (rank - 1),
            _address(lengths),
        )
        for start, _ in pairwise(ends)
    ]
