"""Programs of element-wise functions that run block by block.

The functions are those of the operations one by one, so an element has the same bits, as long as a
function gives an element the same bits wherever it stands in a contiguous array. NumPy's loops do;
not so for reversed arrays, nor for float16 at a stride. Therefore operands are C-contiguous, or
repeat C-contiguous elements; each call checks it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.interface import Run
from burn_remote_server.fusion.array.layouts import Layout, Mask, expanded_mask, static_mask

__all__ = ["BLOCK_ELEMENTS", "BlockProgram", "Instruction"]

# 64 Ki elements of four bytes, for several operands, stay in a core's second-level cache; measured
# as the fastest of 4 Ki to 512 Ki (`benchmarks/fusion.py`).
BLOCK_ELEMENTS: Final = 64 * 1024

# Operands whose layout changes from call to call are rare.
MAX_LAYOUTS: Final = 8


class Instruction(NamedTuple):
    """A call of ``function(*operands)``, or of ``into(*operands, out=…)``, on one block.

    Operands and results are values, which have numbers: first the inputs of the program, then the
    constants, then the results of the instructions.
    """

    function: Run
    into: Run | None
    operands: tuple[int, ...]
    dtype: np.dtype[Any]


class BlockProgram:
    """Element-wise instructions with results of one shape.

    ``inputs`` are the shapes of the inputs, ``constants`` zero-dimensional arrays, ``outputs`` the
    values that are kept.
    """

    def __init__(
        self,
        shape: Shape,
        inputs: Sequence[Shape],
        constants: Sequence[Any],
        instructions: Sequence[Instruction],
        outputs: Sequence[int],
    ) -> None:
        self._shape = shape
        self._constants = tuple(constants)
        masks = tuple(static_mask(each, shape) for each in inputs)
        self._masks = masks
        self._layouts: OrderedDict[tuple[Mask, ...], Layout] = OrderedDict()
        self._output_dtypes = _output_dtypes(len(inputs) + len(constants), instructions, outputs)
        self._program, self._scratch = _allocated(
            len(inputs), len(constants), instructions, outputs
        )

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the outputs, or ``None`` if the layout of an input is unsuitable."""
        operands, masks = [*inputs], self._masks
        for place, array in enumerate(operands):
            if not array.flags.c_contiguous:
                found = expanded_mask(array, self._shape)
                if found is None:
                    return None
                operands[place] = found[0]
                masks = (*masks[:place], found[1], *masks[place + 1 :])
        layout = self._layout(masks)
        outputs = [np.empty(self._shape, dtype) for dtype in self._output_dtypes]
        self._run_blocks(
            layout,
            [each.reshape(shape) for each, shape in zip(operands, layout.shapes, strict=True)],
            [each.reshape(layout.result_shape) for each in outputs],
        )
        return outputs

    def _layout(self, masks: tuple[Mask, ...]) -> Layout:
        layout = self._layouts.get(masks)
        if layout is None:
            layout = self._layouts[masks] = Layout(self._shape, masks, BLOCK_ELEMENTS)
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return layout

    def _run_blocks(self, layout: Layout, operands: list[Any], outputs: list[Any]) -> None:
        scratch = [np.empty(layout.size, dtype) for dtype in self._scratch]
        most = layout.size[0]
        for rows, index, places in layout.blocks():
            r = [
                *[each[place] for each, place in zip(operands, places, strict=True)],
                *self._constants,
                *[each[index] for each in outputs],
                *(scratch if rows == most else [each[:rows] for each in scratch]),
            ]
            for function, takes_out, sources, target in self._program:
                if not takes_out:
                    # Copied, because the result may be an operand, whose memory is used again.
                    np.copyto(r[target], function(*[r[source] for source in sources]), "no")
                elif len(sources) == 2:
                    function(r[sources[0]], r[sources[1]], out=r[target])
                else:
                    function(*[r[source] for source in sources], out=r[target])


def _output_dtypes(
    first: int, instructions: Sequence[Instruction], outputs: Sequence[int]
) -> list[np.dtype[Any]]:
    return [instructions[value - first].dtype for value in outputs]


def _allocated(
    input_count: int,
    constant_count: int,
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
) -> tuple[list[tuple[Run, bool, tuple[int, ...], int]], list[np.dtype[Any]]]:
    """Assign registers: of inputs, constants, outputs, then scratch arrays, which are reused.

    Returns the program and the dtypes of the scratch arrays.
    """
    first = input_count + constant_count
    last_use = {value: place for place, each in enumerate(instructions) for value in each.operands}
    register = {value: value for value in range(first)}
    register |= {value: first + place for place, value in enumerate(outputs)}
    scratch: list[np.dtype[Any]] = []
    free: dict[np.dtype[Any], list[int]] = {}
    program: list[tuple[Run, bool, tuple[int, ...], int]] = []
    for place, each in enumerate(instructions):
        sources = tuple(register[value] for value in each.operands)
        for value in {*each.operands}:
            if last_use[value] == place and register[value] >= first + len(outputs):
                dtype = instructions[value - first].dtype
                free.setdefault(dtype, []).append(register[value])
        value = first + place
        target = register.get(value)
        if target is None:
            waiting = free.get(each.dtype)
            if waiting:
                target = waiting.pop()
            else:
                target = first + len(outputs) + len(scratch)
                scratch.append(each.dtype)
            register[value] = target
            if value not in last_use:  # a result that nothing uses
                free.setdefault(each.dtype, []).append(target)
        program.append((each.into or each.function, each.into is not None, sources, target))
    return program, scratch
