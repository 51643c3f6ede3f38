"""A connection keeps its session: the handshake, resuming, the replay window and the end."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from burn_remote.sessions.ending import Ending, _failure_of
from burn_remote.sessions.native import native_connection as module
from burn_remote.sessions.native import resume_attempts
from burn_remote.sessions.native.link_opening import send_closing
from burn_remote.sessions.native.native_connection import Connection
from burn_remote.sessions.receiver import READER
from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    LARGE_CHUNK_BYTES,
    UPLOAD_CHUNK_BYTES,
    VERSIONS,
    decode_frame,
    encode_frame,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionFailed,
    ConnectionLost,
    HandshakeRefused,
    LimitExceeded,
    ProtocolViolation,
    SessionLost,
    VersionMismatch,
)
from burn_remote_protocol.links.checksummed_links import HEADER_BYTES
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import Acknowledged, Closing, Refused, Resume, Welcome
from burn_remote_protocol.session_states import SessionEnd
from support.interrupts import InterruptAfterCall, Walk
from support.link_ends import in_thread
from support.memory_links import MemoryLink, memory_pair
from support.waiting import PATIENCE_SECONDS, wait_until


def test_pauses_between_resumes_are_random_up_to_a_bound_that_doubles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds: list[float] = []

    def drawn(low: float, high: float) -> float:
        assert low == 0
        bounds.append(high)
        return 0.0

    monkeypatch.setattr("burn_remote.sessions.native.resume_attempts.random.uniform", drawn)
    client, server = memory_pair()
    welcome = Welcome(VERSIONS[0], 1, b"secret", 60.0, {}, {}, "")
    server.send(encode_frame(welcome))
    attempts: Iterator[BlockingLink | BurnRemoteError] = iter(
        [client, *[ConnectionFailed("not yet")] * 8, HandshakeRefused("enough")]
    )

    def dial(timeout_seconds: float) -> BlockingLink:
        attempt = next(attempts)
        if isinstance(attempt, BurnRemoteError):
            raise attempt
        return attempt

    lost: list[BurnRemoteError] = []
    ended = threading.Event()

    def note(error: BurnRemoteError) -> None:
        lost.append(error)
        ended.set()

    connection = Connection(dial, None, 5, lambda frame, link: None, note)
    connection.receiver.start()
    server.close()
    assert ended.wait(PATIENCE_SECONDS)
    assert bounds == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert isinstance(lost[0], SessionLost)
    assert "enough" in str(lost[0])


@pytest.mark.parametrize("lease_seconds", [2.0, 7.0, 11.0, 60.0, 61.0])
@pytest.mark.parametrize("swallows_packets", [False, True], ids=["failing", "silent"])
def test_a_server_that_is_back_a_second_before_the_lease_ends_is_found(
    lease_seconds: float, swallows_packets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def wait(_: object, seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(resume_attempts, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(f"{resume_attempts.__name__}.random.uniform", lambda low, high: high)
    monkeypatch.setattr(Connection, "_pause", wait)
    first, second = memory_pair(), memory_pair()
    for _, far in (first, second):
        far.send(encode_frame(welcome(lease_seconds=lease_seconds)))
    resumed_at: list[float] = []

    def dial(timeout_seconds: float) -> BlockingLink:
        if not resumed_at:
            resumed_at.append(now)
            return first[0]
        if now < lease_seconds - 1:
            if swallows_packets:
                wait(None, timeout_seconds)
            raise ConnectionFailed("not yet")
        if now >= lease_seconds:
            raise SessionLost("the lease is over")
        resumed_at.append(now)
        return second[0]

    lost: queue.SimpleQueue[BurnRemoteError] = queue.SimpleQueue()
    connection = Connection(dial, None, 5, lambda frame, link: None, lost.put)
    connection._break(first[0], ConnectionLost("cut"))
    resume = decode_frame(second[1].receive(PATIENCE_SECONDS) or b"")
    assert resume.resume == Resume(1, b"secret", 0)
    assert lost.empty()
    connection.close()


# -- one link ---------------------------------------------------------------------------------


def welcome(*, lease_seconds: float = 60.0, received: int = 0) -> Welcome:
    return Welcome(VERSIONS[0], 1, b"secret", lease_seconds, {}, {}, "", received)


def test_a_frame_longer_than_the_server_accepts_ends_the_session_and_is_never_sent() -> None:
    near, far = memory_pair()
    limited = Welcome(VERSIONS[0], 1, b"secret", 60.0, {}, {"message_bytes": 1000}, "")
    far.send(encode_frame(limited))
    lost: queue.SimpleQueue[BurnRemoteError] = queue.SimpleQueue()
    connection = Connection(lambda _: near, None, 5, lambda frame, link: None, lost.put)
    far.receive(PATIENCE_SECONDS)  # Hello
    connection.send(bytes(1000 - HEADER_BYTES))
    with pytest.raises(LimitExceeded, match=r"max_message_bytes.*seen 1,001, allowed 1,000"):
        connection.send(b"head", memoryview(bytes(1001 - HEADER_BYTES - 4)))
    assert isinstance(lost.get(timeout=PATIENCE_SECONDS), LimitExceeded)
    assert len(far.receive(PATIENCE_SECONDS) or b"") == 1000 - HEADER_BYTES
    with pytest.raises(ConnectionLost):
        far.receive(PATIENCE_SECONDS)
    with pytest.raises(LimitExceeded):
        connection.send(b"short")


class Ends:
    """A connection over links in memory, and the server's end of each."""

    def __init__(self, *answers: object) -> None:
        self.answers = deque(answers)
        self.links: deque[tuple[MemoryLink, MemoryLink]] = deque()
        self.dialled = threading.Semaphore(0)
        self.lost: queue.SimpleQueue[BurnRemoteError] = queue.SimpleQueue()

    def dial(self, timeout_seconds: float) -> BlockingLink:
        if not self.answers:
            raise HandshakeRefused("no more links")
        near, far = memory_pair()
        answer = self.answers.popleft()
        if isinstance(answer, bytes):
            far.send(answer)
        elif answer is not None:
            far.send(encode_frame(answer))
        self.links.append((near, far))
        self.dialled.release()
        return near

    def open(self, timeout_seconds: float = PATIENCE_SECONDS) -> Connection:
        return Connection(
            self.dial, "token", timeout_seconds, lambda frame, link: None, self.lost.put
        )


def frames_at(far: MemoryLink, count: int) -> list[Any]:
    """Receive frames; decode those that have a kind of their own."""
    frames = [far.receive(PATIENCE_SECONDS) for _ in range(count)]
    return [frame if frame in FRAMES else decode_frame(frame) for frame in frames if frame]


FRAMES = [b"first", b"second", b"third"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, ConnectionLost),
        (Refused(HandshakeRefused("unknown token")), HandshakeRefused),
        (Closing(SessionLost("restarted")), SessionLost),
        (Acknowledged(0), ProtocolViolation),
        (b"\xff garbage", ProtocolViolation),
        (b"", ProtocolViolation),
        (Welcome(VERSIONS[0] + 1000, 1, b"", 60.0, {}, {}, "", 0), VersionMismatch),
    ],
    ids=["silence", "refusal", "closing", "other message", "garbage", "nothing", "version"],
)
def test_a_failed_handshake_raises_its_reason_and_closes_the_link(
    answer: object, error: type[BurnRemoteError]
) -> None:
    ends = Ends(answer)
    with pytest.raises(error):
        ends.open(PATIENCE_SECONDS if answer is not None else 0.01)
    assert ends.links[0][0].closed
    assert ends.lost.empty()


def test_a_server_that_answers_too_late_learns_that_nobody_wants_the_session() -> None:
    ends = Ends(None)
    with pytest.raises(ConnectionLost, match="handshake"):
        ends.open(timeout_seconds=0.01)
    _, closing = frames_at(ends.links[0][1], 2)
    assert isinstance(closing, Closing)


def test_an_attempt_to_resume_that_gets_no_answer_does_not_end_the_session() -> None:
    ends = Ends(welcome(), None)
    connection = ends.open()
    with pytest.raises(ConnectionLost, match="handshake"):
        connection._resume(0)
    (hello,) = frames_at(ends.links[1][1], 1)
    assert hello.resume == Resume(1, b"secret", 0)
    with pytest.raises(ConnectionLost):
        ends.links[1][1].receive(PATIENCE_SECONDS)
    connection.close()


def test_frames_that_the_server_lacks_are_sent_again_after_a_break() -> None:
    ends = Ends(welcome(), welcome(received=1))
    connection = ends.open()
    connection.receiver.start()
    for frame in FRAMES[:2]:
        connection.send(frame)
    first = ends.links[0][1]
    assert frames_at(first, 3)[1:] == FRAMES[:2]
    first.close()
    for _ in range(2):
        assert ends.dialled.acquire(timeout=PATIENCE_SECONDS)
    hello, again = frames_at(ends.links[1][1], 2)
    assert hello.resume == Resume(1, b"secret", 0)
    assert again == FRAMES[1]
    connection.send(FRAMES[2])
    assert frames_at(ends.links[1][1], 1) == [FRAMES[2]]
    connection.close()


def test_a_break_that_another_thread_is_about_to_read_is_not_settled() -> None:
    ends = Ends(welcome(), welcome())
    connection = ends.open()
    assert connection._is_settled()
    reader = connection.receiver._reader
    reader[READER] = [0]  # no thread has this number
    ends.links[0][1].close()
    connection.receiver.poll()
    assert not connection._is_settled()
    del reader[READER]
    connection.settle(PATIENCE_SECONDS)
    assert connection._is_settled()
    assert len(ends.links) == 2
    connection.close()


def test_a_chunk_that_is_sent_again_has_the_elements_of_the_time_when_it_was_sent() -> None:
    ends = Ends(welcome(), welcome(received=1))
    connection = ends.open()
    connection.receiver.start()
    first = ends.links[0][1]
    first.receive(PATIENCE_SECONDS)  # Hello
    elements = bytearray(CHUNK_BYTES)
    for number in b"12":
        elements[:] = bytes([number]) * CHUNK_BYTES
        connection.send(b"head", memoryview(elements))
        first.receive(PATIENCE_SECONDS)
    elements[:] = b"3" * CHUNK_BYTES
    first.close()
    for _ in range(2):
        assert ends.dialled.acquire(timeout=PATIENCE_SECONDS)
    far = ends.links[1][1]
    far.receive(PATIENCE_SECONDS)  # Hello
    assert far.receive(PATIENCE_SECONDS) == b"head" + b"2" * CHUNK_BYTES
    connection.close()


@pytest.mark.parametrize(
    ("limits", "expected", "large"),
    [
        ({}, CHUNK_BYTES, CHUNK_BYTES),
        ({"chunk_bytes": 5}, 5, 5),
        ({"chunk_bytes": 0}, 1, 1),
        ({"chunk_bytes": 2**30}, UPLOAD_CHUNK_BYTES, LARGE_CHUNK_BYTES),
        ({"chunk_bytes": 2**21}, UPLOAD_CHUNK_BYTES, 2 * UPLOAD_CHUNK_BYTES),
    ],
)
def test_chunks_are_no_longer_than_the_server_announces(
    limits: dict[str, int], expected: int, large: int
) -> None:
    connection = Ends(Welcome(VERSIONS[0], 1, b"secret", 60.0, {}, limits, "")).open()
    assert (connection.chunk_bytes, connection.large_chunk_bytes) == (expected, large)
    connection.close()


def test_the_copy_of_a_chunk_reuses_memory_once_the_server_has_acknowledged_another() -> None:
    ends = Ends(welcome())
    connection = ends.open()
    far = ends.links[0][1]
    far.receive(PATIENCE_SECONDS)  # Hello
    chunk = memoryview(bytes(CHUNK_BYTES))
    for _ in range(2):
        connection.send(b"head", chunk)
        far.receive(PATIENCE_SECONDS)
    assert connection.copies.kept_bytes == 0
    connection.note_acknowledged(1)
    assert connection.copies.kept_bytes == CHUNK_BYTES
    connection.send(b"head", chunk)
    assert connection.copies.kept_bytes == 0
    connection.close()


def test_a_server_that_acknowledges_more_than_was_sent_violates_the_protocol() -> None:
    connection = Ends(welcome()).open()
    connection.send(FRAMES[0])
    connection.note_acknowledged(1)
    with pytest.raises(ProtocolViolation, match="acknowledges 2 frames"):
        connection.note_acknowledged(2)
    connection.close()


@pytest.mark.parametrize("is_acknowledged", [True, False], ids=["acknowledged", "ended"])
def test_a_full_window_holds_the_sender_until_it_has_room_or_the_session_ends(
    is_acknowledged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLAY_BYTES", 8)
    ends = Ends(welcome())
    connection = ends.open()
    for frame in FRAMES[:2]:
        connection.send(frame)
    is_held = threading.Event()
    has_room = connection._has_room

    def noted() -> bool:
        is_held.set()
        return has_room()

    monkeypatch.setattr(connection, "_has_room", noted)
    sending = in_thread(connection.send, FRAMES[2])
    assert is_held.wait(PATIENCE_SECONDS)
    assert not sending.done()
    if is_acknowledged:
        connection.note_acknowledged(1)
        sending.result(PATIENCE_SECONDS)
        assert frames_at(ends.links[0][1], 4)[1:] == FRAMES
    else:
        connection.end(SessionLost("over"))
        with pytest.raises(SessionLost, match="over"):
            sending.result(PATIENCE_SECONDS)
    connection.close()


def test_the_first_end_counts_and_each_later_use_raises_a_copy_of_it() -> None:
    ends = Ends(welcome())
    connection = ends.open()
    connection.end(SessionLost("over"))
    connection.end(ConnectionLost("later"))
    connection.close()
    assert str(ends.lost.get_nowait()) == "over"
    assert ends.lost.empty()
    errors = []
    for _ in range(2):
        with pytest.raises(SessionLost, match="over") as caught:
            connection.send(FRAMES[0])
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_closing_is_announced_on_the_link_and_ends_the_session() -> None:
    ends = Ends(welcome())
    connection = ends.open()
    connection.close()
    connection.close()
    hello, closing = frames_at(ends.links[0][1], 2)
    assert (hello.token, hello.resume) == ("token", None)
    assert isinstance(closing, Closing)
    assert isinstance(ends.lost.get_nowait(), ClosedDevice)
    assert ends.lost.empty()
    assert ends.links[0][0].closed


def test_a_link_that_the_server_closes_on_closing_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = Ends(welcome(), welcome())
    connection = ends.open()

    def answered(link: Any) -> None:
        send_closing(link)
        # As the receiving thread does, before this one goes on.
        connection._break(link, ConnectionLost("the server closed it"))
        # Not ``join``: the receiving thread may just start the thread that reconnects.
        wait_until(
            lambda: all(thread.name != "burn-remote-reconnect" for thread in threading.enumerate())
        )

    monkeypatch.setattr(module, "send_closing", answered)
    connection.close()
    assert len(ends.links) == 1
    assert isinstance(ends.lost.get(timeout=PATIENCE_SECONDS), ClosedDevice)


class Alarm(Exception):
    """An exception of a signal handler."""


# CPython 3.11 loses a thread if ``start`` raises an ``Exception`` after the thread was created.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("raises", [KeyboardInterrupt, Alarm])
def test_a_session_whose_break_is_interrupted_anywhere_is_resumed(
    raises: type[BaseException],
) -> None:
    starting: Any = (
        Connection._break,
        Connection._start_resuming,
        SessionEnd.broke,
        SessionEnd.fire,
        threading.Thread.start,
        threading.Event.wait,
        threading.Condition.__enter__,
        threading.Condition.__exit__,
    )
    codes = frozenset(function.__code__ for function in starting)
    walk = Walk()
    for place in walk:
        ends = Ends(welcome(), welcome())
        connection = ends.open()
        link = connection._link
        interrupt = InterruptAfterCall(place, codes, raises)
        with contextlib.suppress(KeyError), interrupt.watching():  # of ``Thread.start``
            connection._break(link, ConnectionLost("cut"))
        # As the next call does, if the interrupt came before the break.
        connection._break(link, ConnectionLost("cut"))
        connection.settle(PATIENCE_SECONDS)
        assert connection._link is not link, interrupt.place
        assert len(ends.links) == 2, interrupt.place
        connection.close()
    walk.check(Connection._break, Connection._start_resuming, SessionEnd.fire, *starting[4:6])


def test_a_session_whose_end_is_interrupted_anywhere_fails_what_other_threads_wait_for() -> None:
    steps: Any = (Connection.end, Connection._complete_end, Ending.complete, _failure_of)
    codes = frozenset(function.__code__ for function in steps)
    walk = Walk()
    for place in walk:
        connection = Ends(welcome()).open()
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            connection.end(SessionLost("gone"))
        assert connection.error is None or connection._ending_steps.is_complete, interrupt.place
        connection.close()
    walk.check(*steps)


def test_an_unexpected_error_while_resuming_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends = Ends(welcome())
    connection = ends.open()

    def fail(timeout_seconds: float) -> BlockingLink:
        raise RuntimeError("a defect")

    monkeypatch.setattr(connection, "_dial", fail)
    connection._break(connection._link, ConnectionLost("cut"))
    error = ends.lost.get(timeout=PATIENCE_SECONDS)
    assert isinstance(error, SessionLost)
    assert "cut; resuming failed with RuntimeError: a defect" in str(error)
    assert "resuming a session failed unexpectedly" in caplog.text


def test_a_frame_of_an_older_link_is_not_counted() -> None:
    ends = Ends(welcome(), welcome())
    connection = ends.open()
    connection.receiver.start()
    assert connection.note_received(1)
    ends.links[0][1].close()
    for _ in range(2):
        assert ends.dialled.acquire(timeout=PATIENCE_SECONDS)
    assert not connection.note_received(1)
    assert connection.note_received(2)
    assert connection.received == 2
    connection.close()
