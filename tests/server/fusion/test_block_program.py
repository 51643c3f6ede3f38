"""Programs over blocks: the sizes of blocks that the first runs try, and their scratch memory."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import burn_remote_server.fusion.cpu.block_program as block_program
from burn_remote_server.fusion.cpu.block_program import BlockProgram, Operand
from burn_remote_server.fusion.cpu.block_schedules import Instruction, Width, most_held, scheduled
from burn_remote_server.fusion.cpu.block_trials import ROUNDS, BlockTrial

F32 = np.dtype(np.float32)
SIZE = 1000


def chain(*functions: Any) -> list[Instruction]:
    """Return instructions, each on the result of the one before and on the only input, 0."""
    return [
        Instruction(function, function, (place, 0), Width(F32))
        for place, function in enumerate(functions)
    ]


CHAIN = chain(np.add, np.multiply, np.subtract, np.arctan2, np.multiply)


def program() -> BlockProgram:
    return BlockProgram((SIZE,), [Operand((SIZE,), F32)], [], CHAIN, [len(CHAIN)])


def largest_block(run: BlockProgram, array: Any) -> int:
    """Run a program once; return the largest number of elements that a step gets."""
    sizes: list[int] = []
    run_step = block_program._run_step

    def noting(step: Any, registers: list[Any]) -> None:
        sizes.append(registers[step.target].size)
        run_step(step, registers)

    with patch.object(block_program, "_run_step", noting):
        run.run([array])
    return max(sizes)


def test_a_trial_takes_the_candidate_with_the_shortest_run() -> None:
    trial = BlockTrial(3)
    seconds = iter([5.0, 4.0, 3.0, 2.0, 9.0, 9.0, 7.0, 1.5, 9.0])
    tried = []
    while not trial.is_decided:
        tried.append(trial.candidate)
        trial.note(next(seconds))
    assert tried == [0, 1, 2] * ROUNDS
    assert trial.candidate == 1


def test_of_equal_candidates_the_smallest_blocks_are_taken() -> None:
    trial = BlockTrial(2)
    while not trial.is_decided:
        trial.note(1.0)
    assert trial.candidate == 0


def test_a_single_candidate_needs_no_trial() -> None:
    assert BlockTrial(1).is_decided


def test_all_block_sizes_that_are_tried_give_the_same_bits() -> None:
    array = np.random.default_rng(0).random(SIZE, np.float32)
    expected = array
    for each in CHAIN:
        expected = each.function(expected, array)
    with patch.object(block_program, "BLOCK_ELEMENTS", 64):
        tested = program()
        sizes = [largest_block(tested, array) for _ in range(3)]
        results = [tested.run([array]) for _ in range(3 * ROUNDS)]
    assert sizes == [63, 125, 1000]
    for found in results:
        assert found is not None
        assert found[0].tobytes() == expected.tobytes()


def test_whole_arrays_are_not_tried_if_they_exceed_the_limit() -> None:
    array = np.ones(SIZE, np.float32)
    limit = 2 * 4 * SIZE  # the input and the result
    for most, largest in ((limit, 1000), (limit - 1, 125)):
        with (
            patch.object(block_program, "BLOCK_ELEMENTS", 64),
            patch.object(block_program, "MAX_WHOLE_BYTES", most),
        ):
            tested = program()
            assert max(largest_block(tested, array) for _ in range(3 * ROUNDS)) == largest


def test_a_chain_of_results_needs_no_memory_besides_its_output() -> None:
    assert scheduled(1, CHAIN, [len(CHAIN)]).scratch == ()


def test_a_result_that_is_used_twice_does_not_share_the_memory_of_the_output() -> None:
    width = Width(F32)
    instructions = [
        Instruction(np.add, np.add, (0, 0), width),  # 1, used by 2 and 3
        Instruction(np.multiply, np.multiply, (1, 0), width),
        Instruction(np.subtract, np.subtract, (2, 1), width),
    ]
    schedule = scheduled(1, instructions, [3])
    targets = [step.target for step in schedule.steps]
    assert len(schedule.scratch) == 1
    assert targets[0] != targets[1]


@pytest.mark.parametrize("shape", [(3,), (1000,), (7, 5)])
def test_scratch_memory_begins_at_a_cache_line(shape: tuple[int, ...]) -> None:
    array = block_program._aligned(shape, F32)
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, F32, True)
    assert array.ctypes.data % block_program.CACHE_LINE_BYTES == 0


def test_whole_arrays_are_not_tried_if_they_need_more_than_single_operations_hold() -> None:
    # Both results are outputs and no memory is reused, so nothing is saved or added.
    assert most_held(1, CHAIN[:2], [1, 2]) == 8
    # A chain holds an operand and its result at a time; its program holds one array.
    assert most_held(1, CHAIN, [len(CHAIN)]) == 8
    array = np.ones(SIZE, np.float32)
    for held, largest in ((4, 1000), (3, 125)):
        with (
            patch.object(block_program, "BLOCK_ELEMENTS", 64),
            patch.object(block_program, "most_held", lambda *_, held=held: held),
        ):
            tested = program()
            assert max(largest_block(tested, array) for _ in range(3 * ROUNDS)) == largest
