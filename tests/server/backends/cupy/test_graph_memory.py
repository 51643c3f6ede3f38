"""Which inputs of a captured graph are copied, and which outputs become inputs."""

from __future__ import annotations

from typing import Any

from burn_remote_server.backends.cupy.graph_memory import MAX_CHANGES, InputMemory


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
