"""Which inputs of a captured graph are copied, and which memory its outputs get."""

from __future__ import annotations

from typing import Any

from burn_remote_server.backends.cupy.graph_memory import (
    KEPT_BYTES,
    KEPT_LAUNCHES,
    KEPT_OUTPUT_BYTES,
    MAX_CHANGES,
    InputMemory,
    OutputMemory,
)


class Array:
    """Stands for an array, of which only the identity matters here."""


def launch(memory: InputMemory, inputs: list[Any], outputs: int) -> tuple[set[int], list[Any]]:
    """Note a launch; return the places that needed no copy, and the new outputs."""
    held = memory.held(inputs)
    memory.learn(inputs, held)
    memory.copied(inputs, held)
    memory.forwarding()
    made = [Array() for _ in range(outputs)]
    memory.launched(made)
    return held, made


def test_an_input_of_the_launch_before_needs_no_copy() -> None:
    memory = InputMemory(["a", "b"], ["c"])
    weight, other = Array(), Array()
    assert launch(memory, [weight, Array()], 1)[0] == set()
    assert launch(memory, [weight, other], 1)[0] == {0}
    assert launch(memory, [other, other], 1)[0] == {1}


def test_the_outputs_of_a_training_step_are_forwarded_from_the_third_launch_on() -> None:
    memory = InputMemory(["x", "w", "b"], ["w", "b"])
    state: list[Any] = [Array(), Array()]
    copied = []
    for _ in range(4):
        held, state = launch(memory, [Array(), *state], 2)
        copied.append({0, 1, 2} - held)
    assert copied == [{0, 1, 2}, {0, 1, 2}, {0}, {0}]
    assert memory.forwarded == ((0, 1), (1, 2))


def test_a_forwarded_output_that_does_not_come_back_is_copied_and_forgotten() -> None:
    memory = InputMemory(["w"], ["w"])
    state = [Array()]
    for _ in range(3):
        _, state = launch(memory, state, 1)
    other = [Array()]
    assert launch(memory, other, 1)[0] == set()
    assert memory.forwarded == ()
    assert launch(memory, other, 1)[0] == {0}


def test_an_array_that_was_overwritten_by_a_forwarded_output_is_copied_again() -> None:
    memory = InputMemory(["w"], ["w"])
    first = state = [Array()]
    for _ in range(3):
        _, state = launch(memory, state, 1)
    assert memory.forwarded
    assert launch(memory, first, 1)[0] == set()


def test_an_output_of_another_layout_is_not_forwarded() -> None:
    memory = InputMemory(["w"], ["transposed w"])
    state = [Array()]
    for _ in range(3):
        held, state = launch(memory, state, 1)
        assert held == set()
    assert memory.forwarded == ()


def test_outputs_that_share_memory_with_inputs_are_never_forwarded() -> None:
    memory = InputMemory(["w"], [])
    state = [Array()]
    for _ in range(3):
        held, state = launch(memory, state, 1)
        assert held == set()
    assert memory.forwarded == ()


def test_a_program_that_keeps_changing_what_it_passes_on_is_no_longer_followed() -> None:
    memory = InputMemory(["w"], ["w"])
    for _ in range(MAX_CHANGES):
        _, state = launch(memory, [Array()], 1)
        launch(memory, state, 1)
    assert memory.forwarded == ()
    held = memory.held(state)
    assert not memory.learn(state, held)


class Pointer:
    """Stands for CuPy's pointer to memory."""

    def __init__(self, mem: object) -> None:
        self.mem = mem


class Output:
    """Stands for an array in the memory at a pointer."""

    def __init__(self, data: Pointer) -> None:
        self.data = data


class OutputLayout:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def empty(self) -> Output:
        return Output(Pointer(object()))

    def over(self, pointer: Pointer) -> Output:
        return Output(pointer)


def places(arrays: list[Output]) -> list[int]:
    return [id(array.data.mem) for array in arrays]


def test_an_output_that_is_dropped_before_the_next_launch_gives_it_its_memory() -> None:
    memory = OutputMemory([OutputLayout(8), OutputLayout(8)])
    first, second = places(memory.arrays())
    assert first != second
    assert [places(memory.arrays()) for _ in range(3)] == [[first, second]] * 3


def test_a_training_step_alternates_between_two_memories() -> None:
    memory = OutputMemory([OutputLayout(8)])
    seen, state = [], memory.arrays()
    for _ in range(6):
        state = memory.arrays()  # the outputs of the launch before are its inputs until here
        seen += places(state)
    assert len({*seen}) == 2


def test_memory_to_which_anything_refers_is_not_reused() -> None:
    memory = OutputMemory([OutputLayout(8)])
    held: list[object] = [memory.arrays()[0] for _ in range(4)]  # arrays
    held += [memory.arrays()[0].data for _ in range(4)]  # pointers, as those of some views
    held += [memory.arrays()[0].data.mem for _ in range(4)]  # memory, as of pointers into it
    found = {
        id(one.data.mem if isinstance(one, Output) else getattr(one, "mem", one)) for one in held
    }
    assert len(found) == len(held)
    assert places(memory.arrays())[0] not in found


def test_only_small_outputs_keep_memory_and_all_of_it_is_counted() -> None:
    sizes = [0, 8, KEPT_OUTPUT_BYTES + 1, *[KEPT_OUTPUT_BYTES] * 8]
    memory = OutputMemory([*map(OutputLayout, sizes)])
    assert memory.nbytes == KEPT_LAUNCHES * (8 + 3 * KEPT_OUTPUT_BYTES)
    assert memory.nbytes <= KEPT_LAUNCHES * KEPT_BYTES
    before = memory.arrays()
    kept = [array.data for array in before]
    del before
    again = memory.arrays()
    # ``kept`` refers to all memory, so each output has new memory.
    assert {*map(id, kept)}.isdisjoint({id(array.data) for array in again})


def test_memory_that_is_cleared_is_kept_no_longer() -> None:
    memory = OutputMemory([OutputLayout(8)])
    first = memory.arrays()[0].data
    memory.clear()
    pointer = memory.arrays()[0].data
    assert pointer is not first
    assert memory.arrays()[0].data is not pointer
