"""An operation's line is in the user's program, whichever package the call passed through."""

from __future__ import annotations

import _thread
import collections
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import burn_remote
import burn_remote as br
from burn_remote.sessions import source_locations


def test_the_list_of_our_packages_has_every_package_of_the_client() -> None:
    # Read from the files: burn_remote.torch cannot be imported without PyTorch.
    (root,) = burn_remote.__path__
    packages = {
        ".".join(file.parent.relative_to(Path(root).parent).parts)
        for file in Path(root).rglob("__init__.py")
    }
    assert packages == source_locations.PACKAGES


def test_only_the_latest_tensors_are_recorded() -> None:
    recorded = source_locations.Locations()
    for tensor in (1, 2):
        recorded.note(tensor)
    recorded.note(1 + source_locations.RING_LENGTH)
    assert recorded.find(1) == recorded.find(3) == recorded.find(None) == ""
    assert recorded.find(2)
    assert recorded.position(1) is recorded.position(3) is None
    assert recorded.position(2)
    assert recorded.find(1 + source_locations.RING_LENGTH)


def line_of(fail: Callable[[br.Device], br.Tensor]) -> str:
    with br.LocalDevice() as device, pytest.raises(br.OperationFailed) as caught:
        fail(device).numpy()
    return caught.value.location


def bad_index(device: br.Device) -> br.Tensor:
    return br.tensor([99], device=device)


WAYS: dict[str, Callable[[br.Device], br.Tensor]] = {
    "function": lambda device: br.take(br.ones((4,), device=device), bad_index(device), axis=0),
    "method": lambda device: br.ones((4,), device=device).take(bad_index(device), axis=0),
    "operator": lambda device: br.ones((4,), device=device)[bad_index(device)],
    "functional": lambda device: br.functional.embedding(
        bad_index(device), br.ones((4, 2), device=device)
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_line_is_in_the_program_however_it_calls(way: str) -> None:
    file, line = line_of(WAYS[way]).rsplit(":", 1)
    code = WAYS[way].__code__
    assert file == __file__
    assert int(line) in {place[2] for place in code.co_lines()}


def test_the_line_of_a_call_over_several_lines_is_within_it() -> None:
    def fail(device: br.Device) -> br.Tensor:
        return br.take(
            br.ones((4,), device=device),
            bad_index(device),
            axis=0,
        )

    first = fail.__code__.co_firstlineno
    line = int(line_of(fail).rsplit(":", 1)[1])
    assert first < line <= first + 5


def test_code_without_a_file_has_a_line_too() -> None:
    names: dict[str, Any] = {"br": br, "bad_index": bad_index}
    exec(  # as a notebook does
        "def fail(device):\n    x = br.ones((4,), device=device)\n"
        "    return x.take(bad_index(device), axis=0)\n",
        names,
    )
    assert line_of(names["fail"]) == "<string>:3"


@pytest.mark.parametrize("automatic_graphs", [False, True])
def test_a_thread_may_consist_of_an_operator_alone(automatic_graphs: bool) -> None:
    made: queue.SimpleQueue[br.Tensor] = queue.SimpleQueue()
    with br.LocalDevice(automatic_graphs=automatic_graphs) as device:
        x = br.ones((4,), device=device)
        for method in 3 * [x.__add__]:
            # No Python code calls the method, nor the queue's: ``map`` and ``deque`` are C code.
            made_by_thread = map(made.put, map(method, [x]))
            _thread.start_new_thread(collections.deque, (made_by_thread,))
            assert made.get(timeout=30).tolist() == 4 * [2.0]
