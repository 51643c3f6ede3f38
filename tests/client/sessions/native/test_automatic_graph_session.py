"""A session that follows repeated operations has the results of one that does not."""

from __future__ import annotations

import contextlib
import gc
import inspect
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from types import CodeType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional
from burn_remote.runner.pending import Pending
from burn_remote.sessions.lifetime import Flusher
from burn_remote.sessions.native import automatic_graph_session, patterns
from burn_remote.sessions.native.automatic_graph_session import AutomaticGraphSession
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.native.patterns import (
    MAX_DEFINED_STEPS,
    MAX_PATTERNS,
    MAX_SEEN,
    MAX_STEPS,
    MIN_STEPS,
)
from burn_remote_protocol.errors import ClosedDevice, ConnectionLost
from support.faults import bytes_to_open, faulty_proxy, random_cuts
from support.interrupts import InterruptAt, Walk
from support.servers import server
from support.waiting import PATIENCE_SECONDS

ROUNDS = 7


@pytest.fixture(autouse=True)
def untraced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions follow although a tracer measures the coverage or interrupts them.

    Tests of tracers, which have the parameter ``how``, are left as they are.
    """
    if "how" not in request.fixturenames:
        monkeypatch.setattr(automatic_graph_session, "is_traced", lambda: False)


@pytest.fixture
def no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing sent by the flush timer, so that a test decides when operations are sent."""
    monkeypatch.setattr(Flusher, "advance", lambda self: None)


@pytest.fixture
def device(no_timer: None) -> Iterator[br.Device]:
    with br.LocalDevice(automatic_graphs=True) as device:
        yield device


def codes_of(*owners: Any) -> frozenset[CodeType]:
    """Return the code of all functions of classes."""
    functions = [
        function
        for owner in owners
        for _, function in inspect.getmembers(owner, inspect.isfunction)
    ]
    return frozenset(function.__code__ for function in functions)


def interpreter_of(device: br.Device) -> Any:
    return device.session._connection._link._interpreter


def held(device: br.Device, expected: int = 0) -> int:
    """Return how many tensors the device holds, after all drops."""
    quota = interpreter_of(device).quota
    for _ in range(2):
        device.session.flush()  # drops of the same batch would come after the request of ``sync``
        device.sync()
        if quota.tensors == expected:
            break
        gc.collect()  # reference cycles, if there are any
    count: int = quota.tensors
    return count


def step(
    x: br.Tensor, weight: br.Tensor, count: int = 24, tenth: Callable[[], None] = lambda: None
) -> br.Tensor:
    """Compute so many operations, of four kinds and lines in turn; call ``tenth`` after ten."""
    for place in range(count):
        if place == 10:
            tenth()
        if place % 4 == 0:
            x = x + weight
        elif place % 4 == 1:
            x = x * 0.5
        elif place % 4 == 2:
            x = x - weight
        else:
            x = x.tanh()
    return x


def followed(device: br.Device) -> int:
    count: int = device.traffic.followed
    return count


def test_a_repeated_sequence_becomes_one_task(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        x = step(x, weight)
        x.numpy()
    before = device.traffic
    graph_calls = interpreter_of(device).counts.graph_calls
    for _ in range(10):
        x = step(x, weight)
        x.numpy()
    section = device.traffic - before
    assert section.operations == section.followed == 240
    assert interpreter_of(device).counts.graph_calls == graph_calls + 10
    # Without graphs, 24 operations take 240 bytes and more.
    assert section.bytes_sent < 10 * 60


def test_a_loop_without_a_wait_is_followed(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(20):
        x = step(x, weight)
    x.numpy()
    assert followed(device) >= 24 * 16


@pytest.fixture
def hand_overs(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Count the patterns that are handed over without beginning the next one in the same step."""
    hand_over = AutomaticGraphSession._hand_over
    counted = Mock()

    def counting(session: AutomaticGraphSession, **options: Any) -> None:
        if session._expected is not None:
            counted()
        hand_over(session, **options)

    monkeypatch.setattr(AutomaticGraphSession, "_hand_over", counting)
    return counted


def test_a_loop_hands_its_sequence_over_and_begins_it_again_in_one_step(
    device: br.Device, hand_overs: Mock
) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(8):
        x = step(x, weight)
    hand_overs.reset_mock()
    before = followed(device)
    for _ in range(10):
        x = step(x, weight)
    assert hand_overs.call_count == 0
    assert followed(device) == before + 240
    pattern = device.session._pattern
    assert pattern is not None
    assert pattern.is_recent, "other sequences would displace it"


def test_two_sequences_in_turn_have_the_results_of_single_operations(
    device: br.Device, hand_overs: Mock
) -> None:
    rounds = 20

    def alternate(device: br.Device) -> list[Any]:
        x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
        y = x
        for _ in range(rounds):
            x = step(x, weight)
            for _ in range(12):
                y = (y * weight).exp()
            x, y = y, x
        return [x.tolist(), y.tolist()]

    with br.LocalDevice(automatic_graphs=False) as plain:
        expected = alternate(plain)
    assert alternate(device) == expected
    assert hand_overs.call_count < rounds // 2  # otherwise, at least one in each followed round


@pytest.mark.parametrize("change", ["order of drops", "a kept tensor", "an input", "large"])
def test_a_change_while_sequences_are_joined_changes_no_result(
    device: br.Device, hand_overs: Mock, change: str
) -> None:
    def run(device: br.Device) -> tuple[list[Any], int]:
        x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
        kept: list[br.Tensor] = []
        for number in range(24):
            changes = number % 8 == 7
            if changes and change == "an input":
                weight = device.tensor([0.5, 0.25])
            first = x + weight
            second = first * 0.5
            for _ in range(11):
                second = (second - weight).tanh()
            if changes and change == "order of drops":
                del first
                x = second + weight
            else:
                x = second + weight
                if changes and change == "a kept tensor":
                    kept.append(first)
                del first
            del second
            if changes and change == "large":
                kept.append(br.zeros((2**20,), device=device) + 1.0)
        results = [x.tolist(), *[each.sum().item() for each in kept]]
        kept.clear()
        del x, weight
        return results, held(device)

    with br.LocalDevice(automatic_graphs=False) as plain:
        expected = run(plain)
    assert run(device) == expected
    # Of the sequences, of 25 operations each, some were handed over where the next one began.
    assert hand_overs.call_count < followed(device) // 25


def test_nothing_is_followed_without_the_setting() -> None:
    with br.LocalDevice() as device:
        x = device.tensor([1.0])
        for _ in range(10):
            x = step(x, x)
            x.numpy()
        assert not isinstance(device.session, AutomaticGraphSession)
        assert followed(device) == 0


def test_the_environment_turns_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "True"):
        monkeypatch.setenv("BURN_REMOTE_AUTOMATIC_GRAPHS", value)
        with br.LocalDevice() as device:
            assert isinstance(device.session, AutomaticGraphSession)
    with br.LocalDevice(automatic_graphs=False) as device:
        assert not isinstance(device.session, AutomaticGraphSession)
    monkeypatch.setenv("BURN_REMOTE_AUTOMATIC_GRAPHS", "perhaps")
    with pytest.raises(br.UsageError, match="must be 1 or 0, not 'perhaps'"):
        br.LocalDevice()
    with pytest.raises(br.UsageError, match="True or False"):
        br.LocalDevice(automatic_graphs="yes")  # type: ignore[arg-type]


# -- the same results as one by one ---------------------------------------------------------------

Outcome = Any


def outcome(call: Callable[[], Any]) -> Outcome:
    """Return the elements that a call reads, or its error with the line and the notes."""
    try:
        value = call()
    except br.BurnRemoteError as error:
        others = [str(other) for other in getattr(error, "others", ())]
        return type(error).__name__, str(error), others, getattr(error, "__notes__", None)
    return None if value is None else (value.dtype.name, value.tobytes())


class Deviation:
    """What a program does differently in one round, at one of its places."""

    def __init__(self, round_number: int, place: int, kind: str) -> None:
        self.round = round_number
        self.place = place
        self.kind = kind

    def is_at(self, round_number: int, place: int) -> bool:
        return (round_number, place) == (self.round, self.place)


KINDS = (
    "none", "shape", "number", "alias", "swap", "early drop", "kept", "read", "sync", "upload",
    "random", "seed", "error", "failure", "other line", "extra", "less", "move", "pending",
    "flush", "graph", "collect",
)  # fmt: skip


class Program:
    """A random program that repeats a sequence of operations, with one deviation."""

    def __init__(self, seed: int, deviation: Deviation) -> None:
        random = Random(seed)
        self.choices = [random.randrange(10) for _ in range(random.randrange(16, 40))]
        self.sources = [(random.random(), random.random()) for _ in self.choices]
        self.kept_places = {random.randrange(len(self.choices)) for _ in range(3)}
        self.reads_each = random.choice([1, 2, 3, 100])
        self.deviation = deviation

    def run(self, device: br.Device) -> list[Outcome]:
        """Run on a device; return everything that the program sees."""
        device.seed(5)
        data = np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)
        carried = [device.tensor(data), device.tensor(data.T.copy())]
        weight, bad = device.tensor(data * 0.5), device.tensor(np.array([9]))
        seen: list[Outcome] = []
        self.stored: list[br.Tensor] = []
        for number in range(ROUNDS):
            values = [*carried, weight]
            for place, choice in enumerate(self.choices):
                first, second = (int(one * len(values)) for one in self.sources[place])
                x, y = values[first], values[second]
                if self.deviation.is_at(number, place):
                    x, y = self._deviate(device, seen, values, x, y, bad)
                values.append(self._computed(choice, x, y))
                if len(values) > 8 and place not in self.kept_places:
                    del values[3]
            carried = [values[-1].tanh(), values[-2].tanh()]
            del x, y, values
            if number % self.reads_each == 0:
                seen.append(outcome(carried[0].numpy))
        seen += [outcome(tensor.numpy) for tensor in [*carried, *self.stored]]
        seen.append(outcome(device.sync))
        return seen

    def _computed(self, choice: int, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        match choice:
            case 0:
                return x + y
            case 1:
                return x * y
            case 2:
                return x - y
            case 3:
                return x * 0.75
            case 4:
                return (x + 0.125).tanh()
            case 5:
                return x.T.tanh()
            case 6:
                return (x @ y).tanh()
            case 7:
                return x.sum(axis=0, keepdims=True) * y
            case 8:
                return functional.dropout(x, 0.25)
            case _:
                return br.where(x > y, x, y)

    def _deviate(  # noqa: C901
        self,
        device: br.Device,
        seen: list[Outcome],
        values: list[br.Tensor],
        x: br.Tensor,
        y: br.Tensor,
        bad: br.Tensor,
    ) -> tuple[br.Tensor, br.Tensor]:
        match self.deviation.kind:
            case "shape":
                seen.append(outcome((x[:2] + y[:2]).numpy))
            case "number":
                return x * 0.8125, y
            case "alias":
                return x, x
            case "swap":
                return y, x
            case "early drop":
                values[3:4] = []
            case "kept":
                self.stored += values
            case "read":
                seen.append(outcome(x.numpy))
            case "pending":
                self.stored.append(x + y)
                return self.stored[-1], y
            case "sync":
                seen.append(outcome(device.sync))
            case "upload":
                return device.tensor(np.full((4, 4), 0.5, np.float32)), y
            case "random":
                return br.random.normal((4, 4), device=device), y
            case "seed":
                device.seed(11)
            case "error":
                seen.append(outcome(lambda: x + device.tensor([1.0, 2.0, 3.0])))
            case "failure":
                return x.take(bad, axis=0) + x, y
            case "other line":
                return x + y, y
            case "extra":
                x.tanh()
            case "less":
                values.pop()
            case "move":
                with br.LocalDevice() as other:
                    return x.to(other).to(device), y
            case "flush":
                device.session.flush()
            case "graph":
                return _compiled(x, y), y
            case "collect":
                cycle: list[Any] = [x + y]
                cycle.append(cycle)
        return x, y


@br.compile
def _compiled(x: br.Tensor, y: br.Tensor) -> br.Tensor:
    return x * y + x


@pytest.mark.parametrize("kind", KINDS)
def test_a_deviation_at_any_place_changes_nothing(
    kind: str, no_timer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic_graph_session, "START_BALANCE", 10**9)
    total = 0
    for seed in range(2):
        length = len(Program(seed, Deviation(-1, 0, "none")).choices)
        for place in range(len(kind) % 11, length, 11):
            program = Program(seed, Deviation(4 + place % 2, place, kind))
            with br.LocalDevice(automatic_graphs=False) as device:
                expected = program.run(device)
                program.stored.clear()
                expected_held = held(device)
            with br.LocalDevice(automatic_graphs=True) as device:
                assert program.run(device) == expected, (seed, place)
                program.stored.clear()
                assert held(device) == expected_held, (seed, place)
                total += followed(device)
    assert total > 100


@pytest.mark.parametrize("place", range(24))
def test_a_failure_at_any_place_names_its_line_and_poisons_the_same(
    device: br.Device, place: int
) -> None:
    good, bad = (device.tensor(np.array([index])) for index in (1, 9))

    def run(x: br.Tensor, places: br.Tensor) -> list[br.Tensor]:
        results = []
        for number in range(24):
            x = x.take(places if number == place else good, axis=0) + x
            results.append(x if number % 5 else x * 2.0)
        return results

    x = device.tensor(np.ones((2, 3), np.float32))
    for _ in range(4):
        tensors = run(x, good)
        device.sync()
    del tensors
    before = followed(device)
    seen = [outcome(tensor.numpy) for tensor in run(x, bad)]
    assert followed(device) > before
    with br.LocalDevice(automatic_graphs=False) as plain:
        good, bad = (plain.tensor(np.array([index])) for index in (1, 9))
        expected = run(plain.tensor(np.ones((2, 3), np.float32)), bad)
        assert seen == [outcome(tensor.numpy) for tensor in expected]
        assert [one for one in seen if "test_automatic_graph_session.py" in str(one)]


def test_failures_that_nobody_read_are_all_reported(device: br.Device) -> None:
    def run(device: br.Device, index: int) -> Outcome:
        x, places = device.tensor(np.ones((2, 3), np.float32)), device.tensor(np.array([[index]]))
        for _ in range(20):
            x.gather(0, places)  # one operation
        return outcome(device.sync)

    for _ in range(3):
        run(device, 1)
    before = followed(device)
    seen = run(device, 9)
    assert followed(device) == before + 20
    with br.LocalDevice(automatic_graphs=False) as plain:
        assert seen == run(plain, 9)
    assert len(seen[2]) == 19


# -- the flush timer ------------------------------------------------------------------------------


def test_the_timer_sends_the_operations_of_an_incomplete_sequence(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()
    interpreter = interpreter_of(device)
    device.session._flusher.armed = None
    y = step(x, weight, 1)  # a second one would drop a tensor, which starts the timer too
    assert device.session._expected is not None
    assert device.session._flusher.armed is device.session
    executed = interpreter.executed
    device.session._flusher.armed = None  # as ``Flusher.advance`` does
    device.session.flush_waiting()
    assert interpreter.executed == executed + 1
    assert y.tolist() == [1.25, 2.5]


@pytest.mark.parametrize(
    "wait",
    [lambda session: session.wait(Pending(session), 0.0), lambda session: session.attend()],
    ids=["wait", "attend"],
)
def test_waiting_for_an_earlier_reply_sends_what_was_followed(
    device: br.Device, wait: Callable[[Any], None]
) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()
    executed = interpreter_of(device).executed
    y = step(x, weight, 2)
    wait(device.session)
    assert interpreter_of(device).executed == executed + 2
    assert y.tolist() == [0.625, 1.25]


def test_operations_that_are_followed_count_at_once(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()
    before = device.traffic
    y = step(x, weight, 5)
    for _ in range(2):
        assert (device.traffic - before).operations == 5
    y.numpy()
    assert (device.traffic - before).operations == 5


def test_calls_of_graphs_fill_batches_as_operations_do(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic_graph_session, "BATCH_TASKS", 8)
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()
    for _ in range(20):
        x = step(x, weight)
        assert len(device.session._tasks) < 8


def test_a_server_whose_graphs_are_too_short_gets_single_operations(
    no_timer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic_graph_session, "MAX_STEPS", 10**9)
    with br.LocalDevice(automatic_graphs=True) as device:
        x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
        for _ in range(10):
            x = step(x, weight)
            x.numpy()
        assert followed(device) == 0


def test_an_own_result_in_the_place_of_an_outer_tensor_is_used(device: br.Device) -> None:
    def subtract(x: br.Tensor, late: br.Tensor | None) -> br.Tensor:
        for _ in range(20):
            x = x * 0.5
            first = x + 1.0
        return x - (first if late is None else late)

    x, late = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    expected = [1 / 2**20 - 0.25, 2 / 2**20 - 0.5]
    for _ in range(5):
        assert subtract(x, late).tolist() == expected
    assert followed(device) > 0
    assert subtract(x, None).tolist() == [-1.0, -1.0]
    assert subtract(x, late).tolist() == expected


def test_after_the_timer_the_next_sequence_is_followed(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        x = step(x, weight)
        x.numpy()
    before = followed(device)
    x = step(x, weight, tenth=device.session.flush_waiting)
    assert followed(device) == before
    x = step(x, weight)
    x.numpy()
    assert followed(device) == before + 24


# -- threads --------------------------------------------------------------------------------------


def test_threads_that_use_one_session_get_their_own_results(no_timer: None) -> None:
    def worker(device: br.Device, number: int, results: list[Any]) -> None:
        x, weight = device.tensor([1.0, float(number)]), device.tensor([0.25, 0.5])
        for count in range(60):
            x = step(x, weight)
            if count % (3 + number) == 0:
                x.numpy()
        results[number] = x.numpy().tobytes()

    def run(device: br.Device, together: bool) -> list[Any]:
        results: list[Any] = [None] * 3
        threads = [
            threading.Thread(target=worker, args=(device, number, results)) for number in range(3)
        ]
        for thread in threads:
            thread.start()
            if not together:
                thread.join(PATIENCE_SECONDS)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        return results

    with br.LocalDevice() as plain, br.LocalDevice(automatic_graphs=True) as device:
        expected = run(plain, together=False)
        for _ in range(3):
            assert run(device, together=True) == expected
        assert held(device) == 0
        assert run(device, together=False) == expected
        assert followed(device) > 0


def test_an_expected_operation_does_not_wait_for_the_sessions_lock(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        x = step(x, weight)
        x.numpy()
    is_held, has_followed = threading.Event(), threading.Event()
    in_time = []

    def hold() -> None:
        with device.session._lock:
            is_held.set()
            in_time.append(has_followed.wait(PATIENCE_SECONDS))

    thread = threading.Thread(target=hold)

    def start() -> None:
        thread.start()
        assert is_held.wait(PATIENCE_SECONDS)

    before = followed(device)
    x = step(x, weight, tenth=start)
    has_followed.set()
    thread.join(PATIENCE_SECONDS)
    x.numpy()
    assert in_time == [True]
    assert followed(device) == before + 24


def test_tensors_that_other_threads_drop_meanwhile_are_freed(device: br.Device) -> None:
    weight = device.tensor([0.25, 0.5])
    for count in range(12):
        x = device.tensor([1.0, 2.0])
        kept = []
        for _ in range(6):
            x = x + weight
            x = x * 0.5
            x = x - weight
            x = x.tanh()
            kept.append(x)
        thread = threading.Thread(target=kept.clear)
        thread.start()
        if count % 2:
            thread.join(PATIENCE_SECONDS)
        x.numpy()
        thread.join(PATIENCE_SECONDS)
    del x
    assert held(device, 1) == 1


# -- bounds ---------------------------------------------------------------------------------------


def test_memory_is_bounded_for_ever_new_sequences(device: br.Device) -> None:
    session: Any = device.session
    random = Random(1)
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(300):
        choices = [random.randrange(3) for _ in range(MIN_STEPS)]
        for _ in range(3):
            y = x
            for choice in choices:
                y = (y + weight, y * weight, y - weight)[choice] if choice < 0 else [
                    y.__add__, y.__mul__, y.__sub__
                ][choice](weight)  # fmt: skip
            y.numpy()
    store = session._store
    assert len(store) <= MAX_PATTERNS
    assert len(store._seen) <= MAX_SEEN
    assert len(session._segment) <= MAX_STEPS
    assert len(session._recent_drops) <= automatic_graph_session.REMEMBERED_DROPS
    assert interpreter_of(device).counts.graphs * MIN_STEPS <= MAX_DEFINED_STEPS
    alike = sum(map(len, store._by_start.values()))
    assert alike == len(store)


def test_new_sequences_do_not_displace_one_in_use(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "MAX_PATTERNS", 2)

    def followed_steps(size: int) -> int:
        x, weight = device.tensor([1.0] * size), device.tensor([0.25] * size)
        before = followed(device)
        step(x, weight).numpy()
        return followed(device) - before

    assert [followed_steps(2) for _ in range(4)][-1] == 24
    for size in range(3, 8):
        assert [followed_steps(size) for _ in range(4)][-1] == 24
        assert followed_steps(2) == 24


def test_a_session_that_gains_nothing_stops_looking(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = device.session
    session._balance = 200
    monkeypatch.setattr(automatic_graph_session, "NEXT_BALANCE", 5_000)
    session._pause = 400
    x = device.tensor([1.0, 2.0])
    for number in range(300):
        x = x * float(number)
    assert session._is_paused
    assert session._segment == []
    for number in range(400):
        x = x * float(number)
    session.flush()
    assert not session._is_paused
    weight = device.tensor([0.25, 0.5])
    for _ in range(4):
        x = step(x, weight)
        x.numpy()
    assert followed(device) > 0


def test_sequences_of_large_tensors_are_not_followed(device: br.Device) -> None:
    x = br.ones((1200, 1200), device=device)  # 5.5 MiB
    for _ in range(40):
        x = x + x
    x.numpy()
    assert followed(device) == 0


def test_a_pattern_whose_results_are_kept_gets_more_outputs(device: br.Device) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])

    def run(count: int) -> list[br.Tensor]:
        y, kept = x, []
        for _ in range(6):
            y = ((y + weight) * 0.5 - weight).tanh()
            kept.append(y)
        return kept[:count]

    for _ in range(3):
        run(1)
        device.sync()
    expected = [tensor.tolist() for tensor in run(6)]
    for _ in range(2 * patterns.MAX_ALIVE):
        results = run(6)
        device.sync()
    before = followed(device)
    del results
    results = run(6)
    device.sync()
    assert followed(device) == before + 24
    assert [tensor.tolist() for tensor in results] == expected


# -- tracers: debuggers, coverage and profilers ---------------------------------------------------


class Meanwhile:
    """A tracer that has another thread do something when a thread is about to follow."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._is_acting = False

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "follower.step, out" in line and not self._is_acting:
            self._is_acting = True
            thread = threading.Thread(target=self._act)
            thread.start()
            thread.join(PATIENCE_SECONDS)
            self._is_acting = False
        return self


@contextlib.contextmanager
def tracing(tracer: Meanwhile, how: str) -> Iterator[None]:
    if how == "settrace":
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            yield
        finally:
            sys.settrace(before)
        return
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool = monitoring.DEBUGGER_ID
    monitoring.use_tool_id(tool, "test")
    monitoring.register_callback(
        tool, monitoring.events.LINE, lambda *_: tracer(sys._getframe(1), "line", None)
    )
    monitoring.set_events(tool, monitoring.events.LINE)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


needs_monitoring = pytest.mark.skipif(
    not hasattr(sys, "monitoring"), reason="Python 3.12 introduced sys.monitoring"
)


@pytest.mark.skipif(sys.gettrace() is not None, reason="the tests run under a tracer")
@pytest.mark.parametrize("how", ["settrace", pytest.param("monitoring", marks=needs_monitoring)])
@pytest.mark.parametrize("by", ["flush", "follow"])
def test_operations_of_another_thread_between_two_traced_lines_change_nothing(
    device: br.Device, how: str, by: str
) -> None:
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    expected = step(x, weight).tolist()
    for _ in range(5):
        assert step(x, weight).tolist() == expected
    before = followed(device)
    assert step(x, weight).tolist() == expected
    assert followed(device) > before  # without a tracer
    others: list[br.Tensor] = []

    def act() -> None:
        if by == "flush":
            device.session.flush()
        else:  # the same operation of the same line
            others.append(step(x, weight, 1))

    before = followed(device)
    with tracing(Meanwhile(act), how):
        results = [step(x, weight) for _ in range(3)]
        device.session.flush()
    assert followed(device) == before
    assert [result.tolist() for result in results] == [expected] * 3
    first = (x + weight).tolist()
    assert all(other.tolist() == first for other in others)


@pytest.mark.skipif(sys.gettrace() is not None, reason="the tests run under a tracer")
@pytest.mark.parametrize("how", ["settrace", pytest.param("monitoring", marks=needs_monitoring)])
def test_a_loop_is_followed_no_further_than_its_sequence_when_a_tracer_begins(
    device: br.Device, how: str
) -> None:
    def run(device: br.Device, tenth: Callable[[], None]) -> Any:
        x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
        for _ in range(8):
            x = step(x, weight)
        x = step(x, weight, tenth=tenth)
        for _ in range(5):
            x = step(x, weight)
        return x.tolist()

    with br.LocalDevice(automatic_graphs=False) as plain:
        expected = run(plain, lambda: None)
    before: list[int] = []
    with contextlib.ExitStack() as traced:

        def trace() -> None:
            before.append(followed(device))
            traced.enter_context(tracing(Meanwhile(lambda: None), how))

        assert run(device, trace) == expected
    assert before[0] > 24
    # The sequence that began without a tracer, which counts when it ends.
    assert followed(device) == before[0] + 24


# -- Ctrl-C and broken connections ----------------------------------------------------------------

FOLLOWING = codes_of(AutomaticGraphSession, NativeSession, patterns.PatternStore, Flusher)
OPERATOR = frozenset({br.Tensor.__add__.__code__})


@pytest.mark.parametrize("length", [4, 12])
def test_ctrl_c_at_any_line_neither_loses_nor_repeats_nor_leaks_operations(
    device: br.Device, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(automatic_graph_session, "MIN_STEPS", 3)
    monkeypatch.setattr(automatic_graph_session, "LOOP_STEPS", 4)
    values = [device.tensor(np.zeros(2, np.float32))]

    def issue(rounds: int) -> None:
        for _ in range(rounds):
            for _ in range(length):
                values[0] = values[0] + 1.0
            device.session.flush()

    walk = Walk()
    for place in walk:
        issue(3)
        before = values[0].tolist()[0]
        interrupt = InterruptAt(place, FOLLOWING | OPERATOR)
        with interrupt.watching():
            issue(1)
        where = interrupt.place
        del interrupt  # it keeps frames
        count = values[0].tolist()[0] - before
        assert 0 <= count <= length, where
        issue(1)
        assert values[0].tolist() == [before + count + length] * 2, where
        values[0] = values[0] + 0.0
        assert held(device, 1) == 1, where
    walk.check(
        br.Tensor.__add__,
        AutomaticGraphSession.execute,
        AutomaticGraphSession._execute_in_turn,
        AutomaticGraphSession._fill,
        AutomaticGraphSession._hand_over,
        *((AutomaticGraphSession._begin_successor,) if length > 4 else ()),
    )
    assert followed(device) > length * walk.count


def test_a_stream_through_cuts_runs_each_operation_once() -> None:
    def run(device: br.Device, *, is_checked: bool) -> list[Any]:
        device.seed(7)
        x, noise = device.tensor([0.0]), device.tensor(np.zeros(8, np.float32))
        for number in range(400):
            for _ in range(8):
                x = x + 1
                noise = noise * 0.5 + functional.dropout(noise + 1.0, 0.5)
            if number % 25 == 0 and is_checked:
                assert x.item() == 8 * number + 8
        return [x.tolist(), noise.numpy().tobytes()]

    with server() as running:
        with br.RemoteDevice(running.address, automatic_graphs=False) as device:
            expected = run(device, is_checked=False)
        with (
            faulty_proxy(
                running.port,
                random_cuts(20, 100, 2_500, after_bytes=bytes_to_open(running.port)),
            ) as proxy,
            br.RemoteDevice(proxy.address, automatic_graphs=True) as device,
        ):
            assert run(device, is_checked=True) == expected
            assert proxy.cuts >= 3
            assert followed(device) > 5_000


# -- the end of a session -------------------------------------------------------------------------


def test_a_closed_session_refuses_the_expected_operation(no_timer: None) -> None:
    device = br.LocalDevice(automatic_graphs=True)
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()
    y = step(x, weight, 1)
    assert device.session._expected is not None
    device.close()
    with pytest.raises((ClosedDevice, ConnectionLost)):
        y * 0.5


def test_a_session_that_ended_refuses_the_expected_operation(no_timer: None) -> None:
    device = br.LocalDevice(automatic_graphs=True)
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()

    def end() -> None:
        device.session._connection.end(ConnectionLost("the server ended"))
        assert device.session._expected is not None

    with pytest.raises(ConnectionLost, match="the server ended"):
        step(x, weight, 11, end)


def test_closing_sends_what_was_followed(no_timer: None) -> None:
    device = br.LocalDevice(automatic_graphs=True)
    x, weight = device.tensor([1.0, 2.0]), device.tensor([0.25, 0.5])
    for _ in range(3):
        step(x, weight).numpy()
    y = step(x, weight, 1)
    interpreter = interpreter_of(device)
    executed = interpreter.executed
    device.close()
    assert interpreter.executed == executed + 1
    del y
