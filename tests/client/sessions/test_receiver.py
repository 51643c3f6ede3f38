"""The receiver passes each frame on once, whichever thread reads it."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from burn_remote.runner.pending import Pending
from burn_remote.sessions import receiver
from burn_remote.sessions.receiver import Receiver
from burn_remote_protocol.errors import BurnRemoteError, ConnectionLost, SessionLost
from support.interrupts import InterruptAfterCall, InterruptAt, Walk
from support.link_ends import in_thread
from support.memory_links import memory_pair
from support.waiting import PATIENCE_SECONDS


class Ends:
    """A receiver, the far end of its link, and records of its frames and errors."""

    def __init__(self) -> None:
        near, self.far = memory_pair()
        self.handled: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[BurnRemoteError] = queue.SimpleQueue()
        self.pending: dict[bytes, Pending[bytes]] = {}
        self.receiver = Receiver(near, self.handle, lambda link, error: self.lost.put(error))

    def handle(self, frame: bytes) -> None:
        self.handled.put(frame)
        if frame in self.pending:
            self.pending[frame].complete(frame)

    def expect(self, frame: bytes) -> Pending[bytes]:
        self.pending[frame] = Pending()
        return self.pending[frame]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.receiver.close()


def test_a_waiting_thread_reads_the_link_itself(ends: Ends) -> None:
    pending = ends.expect(b"answer")
    ends.far.send(b"before")
    ends.far.send(b"answer")
    ends.receiver.wait(pending, PATIENCE_SECONDS)  # the attendant was not started
    assert pending.result(0) == b"answer"
    assert [ends.handled.get_nowait() for _ in range(2)] == [b"before", b"answer"]


@pytest.mark.parametrize(("address", "notes"), [("ws://host:3000", 1), ("local:numpy", 0)])
def test_ctrl_c_says_that_the_server_goes_on(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, address: str, notes: int
) -> None:
    def receive(timeout_seconds: float | None) -> None:
        raise KeyboardInterrupt

    link = ends.receiver._source[0]
    monkeypatch.setattr(type(link), "address", address)
    monkeypatch.setattr(link, "receive", receive)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        ends.receiver.wait(Pending(), PATIENCE_SECONDS)
    found = getattr(interrupted.value, "__notes__", [])
    assert ["device.close(timeout_seconds=0) abandons them" in note for note in found] == (
        [True] * notes
    )


def test_frames_after_the_awaited_reply_are_handled_too(ends: Ends) -> None:
    pending = ends.expect(b"answer")
    for frame in (b"answer", b"behind"):
        ends.far.send(frame)
    ends.receiver.wait(pending, PATIENCE_SECONDS)
    assert [ends.handled.get_nowait() for _ in range(2)] == [b"answer", b"behind"]


def test_a_wait_ends_although_each_frame_brings_another(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a process whose finalizers request values while replies are handled.
    monkeypatch.setattr(receiver, "MAX_FURTHER_FRAMES", 5)
    count = 0

    def handle(frame: bytes) -> None:
        nonlocal count
        count += 1
        if count < 100:
            ends.far.send(b"%d" % count)
        ends.handle(frame)

    ends.receiver.use(ends.receiver._source[0], handle)
    ends.far.send(b"answer")
    ends.receiver.wait(ends.expect(b"answer"), PATIENCE_SECONDS)
    assert count == 6
    last = ends.expect(b"99")
    ends.receiver.start()
    assert last.wait(PATIENCE_SECONDS)  # the attendant handles the others
    assert count == 100


def test_a_finalizer_inside_of_a_wake_up_may_wake_the_attendant_again(ends: Ends) -> None:
    wake_ups = 0

    def again(frame: FrameType, event: str, argument: object) -> None:
        nonlocal wake_ups
        if event in ("call", "return") and wake_ups < 50:
            wake_ups += 1
            ends.receiver.attend()

    def wake() -> None:
        sys.setprofile(again)
        try:
            ends.receiver.attend()
        finally:
            sys.setprofile(None)

    in_thread(wake).result(PATIENCE_SECONDS)
    assert wake_ups
    ends.receiver.start()
    ends.far.send(b"frame")
    assert ends.handled.get(timeout=PATIENCE_SECONDS) == b"frame"


def test_a_wait_does_not_look_for_frames_behind_its_reply_on_the_network(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ends.receiver._source[0]
    monkeypatch.setattr(link, "has_buffered", lambda: False)  # the next frame is still on its way
    ends.far.send(b"answer")
    ends.far.send(b"behind")
    ends.receiver.wait(ends.expect(b"answer"), PATIENCE_SECONDS)
    assert ends.handled.get_nowait() == b"answer"
    assert ends.handled.empty()


def test_waiting_ends_at_its_timeout(ends: Ends) -> None:
    pending = ends.expect(b"never")
    ends.receiver.wait(pending, 0.01)
    assert not pending.done()


def test_the_attendant_reads_while_nobody_waits(ends: Ends) -> None:
    ends.receiver.start()
    ends.far.send(b"unasked")
    assert ends.handled.get(timeout=PATIENCE_SECONDS) == b"unasked"


def test_concurrently_waiting_threads_all_get_their_replies(ends: Ends) -> None:
    ends.receiver.start()
    frames = [b"%d" % number for number in range(8)]
    pending = [ends.expect(frame) for frame in frames]
    waiting = [in_thread(ends.receiver.wait, each, PATIENCE_SECONDS) for each in pending]
    for frame in reversed(frames):
        ends.far.send(frame)
    for each in waiting:
        each.result(PATIENCE_SECONDS)
    assert [each.result(0) for each in pending] == frames


def test_the_end_of_a_link_is_reported_and_another_link_is_read(ends: Ends) -> None:
    ends.receiver.start()
    ends.far.close()
    assert isinstance(ends.lost.get(timeout=PATIENCE_SECONDS), ConnectionLost)
    near, far = memory_pair()
    ends.receiver.use(near, ends.handle)
    far.send(b"again")
    assert ends.handled.get(timeout=PATIENCE_SECONDS) == b"again"


def test_closing_releases_a_thread_that_waits_for_another_link(ends: Ends) -> None:
    pending = ends.expect(b"never")
    ends.far.close()
    waiting = in_thread(ends.receiver.wait, pending, None)
    ends.lost.get(timeout=PATIENCE_SECONDS)
    ends.receiver.close()
    waiting.result(PATIENCE_SECONDS)


def test_no_thread_is_left_after_closing(ends: Ends) -> None:
    before = set(threading.enumerate())
    ends.receiver.start()
    (attendant,) = set(threading.enumerate()) - before
    ends.receiver.close()
    assert not attendant.is_alive()


def test_ctrl_c_as_a_thread_stops_reading_lets_others_read(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    pending, later = ends.expect(b"first"), ends.expect(b"second")
    ends.far.send(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(receiver, "time", SimpleNamespace(monotonic=interrupted))
        with pytest.raises(KeyboardInterrupt):
            ends.receiver.wait(pending, None)
    ends.far.send(b"second")
    ends.receiver.wait(later, PATIENCE_SECONDS)
    assert later.done()


def test_ctrl_c_at_any_line_loses_no_frame(ends: Ends) -> None:
    reading = (Receiver._read_until, Receiver._read_frame)
    codes = frozenset(function.__code__ for function in reading)
    walk = Walk()
    for run, place in enumerate(walk):
        frame = b"%d" % run
        pending: Any = ends.expect(frame)
        ends.far.send(frame)
        interrupt = InterruptAt(place, codes)
        with interrupt.watching():
            ends.receiver.wait(pending, PATIENCE_SECONDS)
        ends.receiver.wait(pending, PATIENCE_SECONDS)
        assert pending.done(), interrupt.place
    walk.check(*reading)


def test_ctrl_c_after_any_call_of_a_wait_lets_others_read(ends: Ends) -> None:
    codes = frozenset(function.__code__ for function in (Receiver.wait, Receiver._read_alone))
    walk = Walk()
    for run, place in enumerate(walk):
        first, later = ends.expect(b"first %d" % run), ends.expect(b"later %d" % run)
        ends.far.send(b"first %d" % run)
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            ends.receiver.wait(first, PATIENCE_SECONDS)
        ends.far.send(b"later %d" % run)
        in_thread(ends.receiver.wait, later, PATIENCE_SECONDS).result(2 * PATIENCE_SECONDS)
        assert later.done(), interrupt.place
        assert first.done(), interrupt.place
        assert not ends.receiver._waiters, interrupt.place
    walk.check(Receiver.wait, Receiver._read_alone)


# -- unexpected exceptions --------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyError("a"), SystemExit(1)], ids=repr)
def test_an_exception_in_the_attendant_ends_the_session_with_its_text(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def handle(frame: bytes) -> None:
        raise error

    ends.receiver.use(ends.receiver._source[0], handle)
    ends.receiver.start()
    ends.far.send(b"any")
    lost = ends.lost.get(timeout=PATIENCE_SECONDS)
    assert isinstance(lost, SessionLost)
    assert f"receiving failed with {type(error).__name__}: " in str(lost)


def test_an_exception_for_which_there_is_no_memory_ends_the_session_a_little_later() -> None:
    ends = Ends()
    errors = [MemoryError("no room")] * 3
    near, far = memory_pair()

    def handle(frame: bytes) -> None:
        raise KeyError("a defect")

    def lost(link: object, error: BurnRemoteError) -> None:
        if errors:
            raise errors.pop()
        ends.lost.put(error)

    receiver = Receiver(near, handle, lost)
    receiver.start()
    far.send(b"any")
    assert "receiving failed with KeyError" in str(ends.lost.get(timeout=PATIENCE_SECONDS))
    receiver.close()


def test_an_exception_in_a_waiting_thread_leaves_the_frame_to_the_attendant(ends: Ends) -> None:
    errors = [MemoryError("no room")]

    def handle(frame: bytes) -> None:
        if errors:
            raise errors.pop()
        ends.handle(frame)

    ends.receiver.use(ends.receiver._source[0], handle)
    pending = ends.expect(b"answer")
    ends.far.send(b"answer")
    with pytest.raises(MemoryError, match="no room"):
        ends.receiver.wait(pending, None)
    ends.receiver.start()
    assert ends.handled.get(timeout=PATIENCE_SECONDS) == b"answer"
    assert ends.lost.empty()


def test_a_frame_that_cannot_be_handled_ends_the_session_after_its_first_reader(
    ends: Ends,
) -> None:
    def handle(frame: bytes) -> None:
        raise MemoryError("no room")

    ends.receiver.use(ends.receiver._source[0], handle)
    ends.far.send(b"answer")
    with pytest.raises(MemoryError, match="no room"):
        ends.receiver.wait(ends.expect(b"answer"), None)
    ends.receiver.start()
    assert isinstance(ends.lost.get(timeout=PATIENCE_SECONDS), SessionLost)


def test_a_link_without_memory_for_a_message_counts_as_broken(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(timeout_seconds: float | None) -> bytes:
        raise MemoryError

    monkeypatch.setattr(ends.receiver._source[0], "receive", receive)
    waiting = in_thread(ends.receiver.wait, ends.expect(b"answer"), None)
    lost = ends.lost.get(timeout=PATIENCE_SECONDS)
    assert isinstance(lost, ConnectionLost)
    assert "no memory for a message" in str(lost)
    ends.receiver.close()
    waiting.result(PATIENCE_SECONDS)
