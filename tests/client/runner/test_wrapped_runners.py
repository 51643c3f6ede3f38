"""Runners around a device or around some tensors see every operation and event exactly once.

The tests run calls that issue every row of the IR, and a call of every public function and method.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
from burn_remote.runner.interface import RunnerClient
from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.tensors import TensorSpec
from support.calls import CALLS, WITHOUT_A_DEVICE, calling_on, public_call, public_functions
from support.decorators import Recorder, SubtractingAdder, Tracker
from support.public_programs import ISSUING_NOTHING, PROGRAMS, TESTED_ELSEWHERE, public_names
from support.runners import RecordingDevice

Events = Sequence[tuple[Any, ...]]
Decorator = Callable[[RunnerClient], RunnerClient]

TABLE_CALLS: Final = {".".join(key): call for key, call in CALLS.items()}
NAMES: Final = [
    *TABLE_CALLS,
    *sorted(set(public_functions()) - WITHOUT_A_DEVICE - {*PROGRAMS}),
    *sorted(PROGRAMS),
]


def program(name: str) -> Callable[[], object]:
    """Return the program of this name, after checking that it succeeds."""
    if name in TABLE_CALLS:
        return TABLE_CALLS[name]
    if name in PROGRAMS:
        run_once(PROGRAMS[name])  # its compiled functions are recorded in their first call
        return PROGRAMS[name]
    with calling_on(answering()):
        return public_call(name)


def run_once(call: Callable[[], object]) -> list[tuple[Any, ...]]:
    """Run a program on a device of its own; return the calls of the device's session."""
    device = answering()
    with calling_on(device):
        call()
    return device.runner.events


def answering() -> RecordingDevice:
    device = RecordingDevice()
    device.runner.answers_reads = True
    return device


def run(name: str, device: RecordingDevice, *decorators: Decorator) -> list[Any]:
    """Run a program on a device with runners around it, innermost first; return the runners."""
    call = program(name)
    runners = []
    for decorate in decorators:
        device.client = runner = decorate(device.client)
        runners.append(runner)
    gc.disable()  # else a collection meanwhile could move a cycle with tensors out of generation 0
    try:
        with calling_on(device):
            call()
        gc.collect(0)
    finally:
        gc.enable()
    return runners


def of_session(events: Events) -> list[tuple[Any, ...]]:
    """Return a runner's events as its session sees them: a move exposes the tensor."""
    return [("expose", *rest) if kind == "move" else (kind, *rest) for kind, *rest in events]


def renumbered(events: Events) -> list[tuple[Any, ...]]:
    """Replace the tensor ids in events by numbers in the order of appearance."""
    places = {"operation": 1, "upload": 1, "fetch": 1, "read": 0, "move": 0, "drop": 0}
    places |= {"expose": 0, "collective": 1}
    numbers: dict[int, int] = {}
    renamed = []
    for kind, *rest in events:
        if kind in places:
            place = places[kind]
            ids = rest[place] if isinstance(rest[place], tuple) else (rest[place],)
            rest[place] = tuple(numbers.setdefault(one, len(numbers)) for one in ids)
        renamed.append((kind, *rest))
    return renamed


@pytest.mark.parametrize("name", NAMES)
def test_stacked_runners_see_each_session_event_once_and_in_order(name: str) -> None:
    bare, decorated = answering(), answering()
    run(name, bare)
    inner, outer = run(name, decorated, Recorder, Recorder)
    assert decorated.runner.events == bare.runner.events
    assert inner.events == outer.events
    assert of_session(outer.events) == decorated.runner.events
    assert sorted(outer.dropped) == sorted(outer.made)


@pytest.mark.parametrize("name", NAMES)
def test_only_inner_runners_see_rewritten_operations(name: str) -> None:
    bare, decorated = answering(), answering()
    run(name, bare)
    inner, _, outer = run(name, decorated, Recorder, SubtractingAdder, Recorder)
    assert of_session(inner.events) == decorated.runner.events
    assert not any(event[:2] == ("operation", "Add") for event in inner.events)
    assert renumbered(of_session(outer.events)) == renumbered(bare.runner.events)
    assert sorted(outer.dropped) == sorted(outer.made)
    assert sorted(inner.dropped) == sorted(inner.made)


def test_every_public_name_is_called_or_listed_with_a_reason() -> None:
    listed = WITHOUT_A_DEVICE | ISSUING_NOTHING | TESTED_ELSEWHERE
    moves = {"move to another device", "move from another device"}
    names = public_names()
    assert names - {*NAMES} - listed == set()
    assert listed - names == set()
    assert {*PROGRAMS} - moves - names == set()
    assert {*NAMES} & listed == set()
    assert len(names) > 700


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_issues_something(name: str) -> None:
    assert run_once(PROGRAMS[name])


def test_calls_that_are_not_operations_pass_through_the_devices_runners() -> None:
    source, target = answering(), answering()
    source.client = sender = Recorder(source.client)
    target.client = receiver = Recorder(target.client)
    x = br.zeros((2,), device=source)
    source.seed(5)
    source.dtype_usage(br.float32)
    source.memory_cleanup()
    source.sync()
    y = x.to(target)
    br.read([x, x])
    assert [event[0] for event in sender.events] == [
        *("operation", "seed", "dtype_usage", "memory_cleanup", "sync", "move", "read", "read")
    ]
    assert receiver.events == [("fetch", y.handle.spec, y.handle.id)]
    assert [event[0] for event in source.runner.events] == [
        *("operation", "seed", "dtype_usage", "memory_cleanup", "sync", "expose", "read", "read")
    ]
    del y
    assert receiver.dropped == receiver.made


GROUP: Final = GroupSpec(bytes(32), 1, ("ws://a:1", "ws://b:1"), 5.0)
SUM: Final = CollectiveCall(CollectiveKind.ALL_REDUCE, (TensorSpec((2,), br.float32),))


def test_collectives_pass_through_all_runners() -> None:
    device = answering()
    device.client = inner = Recorder(device.client)
    device.client = outer = Recorder(device.client)
    x = br.zeros((2,), device=device)
    group = device.runners.join_group(GROUP)
    (y,) = device.runners.collective(group, SUM, [x.handle])
    device.runners.leave_group(group)
    assert y.spec == x.handle.spec
    assert y.client is device.runners
    assert inner.events == outer.events == device.runner.events
    assert [event[0] for event in outer.events] == [
        *("operation", "join_group", "collective", "leave_group")
    ]
    del x, y
    assert sorted(outer.dropped) == sorted(outer.made)


def test_a_collective_of_other_tensors_than_its_call_describes_is_refused() -> None:
    device = answering()
    group = device.runners.join_group(GROUP)
    with pytest.raises(br.UsageError, match=r"takes the tensors \(.+\) from member 1, not \("):
        device.runners.collective(group, SUM, [br.zeros((3,), device=device).handle])
    with pytest.raises(br.DeviceMismatch):
        device.runners.collective(group, SUM, [br.zeros((2,), device=answering()).handle])


def test_a_new_runner_sees_operations_on_earlier_tensors() -> None:
    device = answering()
    x = br.zeros((2,), device=device)
    device.client = recorder = Recorder(device.client)
    y = x + 1
    del x
    assert [event[0] for event in recorder.events] == ["operation", "drop"]
    device.client = recorder.inner
    z = y * 2
    del y, z
    assert len(recorder.events) == 2
    assert len(device.runner.dropped) == 3


def test_without_a_runner_the_client_of_handles_calls_the_innermost_one() -> None:
    device = RecordingDevice()
    bare = device.runners.register_op
    device.client = Recorder(device.client)
    assert device.runners.register_op != bare
    device.client = device.client.runner.inner  # type: ignore[attr-defined]
    assert device.runners.register_op == bare


def operations(recorder: Recorder) -> list[str]:
    return [event[1] for event in recorder.events if event[0] == "operation"]


def tracked(tracker: Tracker, x: br.Tensor) -> br.Tensor:
    return br.Tensor(tracker.track(x.handle))


def test_a_tracker_sees_operations_on_its_tensors_and_no_others() -> None:
    device = answering()
    x, y = (br.zeros((2,), device=device) for _ in range(2))
    tracker = Tracker(x.handle.client)
    t = tracked(tracker, x)
    plain = x + y
    both = t + y
    turned = y * t
    several = br.concat([y, both, x])
    assert plain.handle.client is device.runners
    assert {one.handle.client for one in (both, turned, several)} == {tracker}
    assert operations(tracker) == ["Add", "Mul", "Cat"]
    assert [each.signature.row.name for each in device.runner.operations[-4:]] == [
        *("Add", "Add", "Mul", "Cat")
    ]


def test_a_runner_around_the_device_sees_operations_on_tracked_tensors() -> None:
    device = answering()
    x, y = (br.zeros((2,), device=device) for _ in range(2))
    x.requires_grad_()
    assert device.runners.execute is not None  # nothing is around the innermost runner
    device.client = recorder = Recorder(device.client)
    assert device.runners.execute is None
    results = [x + y, y * x, br.exp(x), br.concat([x, y])]
    assert all(result.requires_grad for result in results)
    assert operations(recorder) == ["Add", "Mul", "Exp", "Cat"]
    del results
    assert [event[0] for event in recorder.events].count("drop") == 4


def test_an_operation_on_tensors_of_two_trackers_goes_to_the_outer_then_the_inner() -> None:
    device = answering()
    device.client = around = Recorder(device.client)
    x = br.zeros((2,), device=device)
    inner = Tracker(x.handle.client)
    first = tracked(inner, x)
    outer = Tracker(first.handle.client)
    second = tracked(outer, first)
    for y in (second + first, first + second):
        assert y.handle.client is outer
    z = second + x
    assert z.handle.client is outer
    assert operations(outer) == operations(inner) == ["Add"] * 3
    assert operations(around) == ["Zeros", *["Add"] * 3]
    assert len(device.runner.operations) == 4


def test_tensors_of_unrelated_trackers_cannot_be_combined() -> None:
    device = answering()
    x = br.zeros((2,), device=device)
    first, second = (tracked(Tracker(x.handle.client), x) for _ in range(2))
    with pytest.raises(br.DeviceMismatch):
        first + second


def test_a_tracked_tensor_can_be_read_and_moved() -> None:
    device, target = answering(), answering()
    x = br.tensor(np.zeros(2, np.float32), device=device)
    tracker = Tracker(x.handle.client)
    t = tracked(tracker, x)
    assert t.tolist() == [0, 0]
    assert t.device == device
    assert t.to(target).device == target
    assert t.to(device) is t
    assert [event[0] for event in tracker.events] == ["read", "move"]


def test_tensors_created_by_a_tracker_are_dropped_once() -> None:
    device = answering()
    x = br.zeros((2,), device=device)
    t = tracked(Tracker(x.handle.client), x)
    y = (t + 1) * t
    del x, t, y
    gc.collect()
    assert sorted(device.runner.dropped) == sorted(device.runner.specs)
