"""A session's thread receives frames itself, with the results of the event loop's way."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_21 import encode_close, encode_tasks
from burn_remote_protocol.dialects.burn_0_21_responses import decode_reply
from burn_remote_protocol.dialects.burn_0_22_recognition import KnownFrame, MessageRecognizer
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ConnectionLost, SessionLost
from burn_remote_protocol.messages import Execute, Read, Sync, Upload
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.dialects.burn_0_21.thread_intake import (
    TwoSocketReceiver,
    receive_in_thread,
)
from burn_remote_server.dialects.burn_0_22.frame_batch import decoded_frames
from burn_remote_server.execution.decoding_turns import LARGE_FRAME_BYTES
from burn_remote_server.execution.interpreter_turns import InterpreterTurn
from burn_remote_server.execution.sessions import MAX_WAITING_REPLIES
from burn_remote_server.execution.time_slices import LONG_SLICE_SECONDS, lengthen_slice
from burn_remote_server.telemetry.counters import Counters
from support.kernels import signature
from support.servers import RunningServer, server
from support.socket_replay import Sockets
from support.socket_replay_0_22 import STREAM, Socket22, unpacked
from support.waiting import PATIENCE_SECONDS, wait_until

THREAD_BATCHES = "burn_remote_thread_batches_total"
CLOSE = {"Close": [1]}
SPEC = TensorSpec((2,), F32)


def sync(request: int) -> Any:
    return {"Task": {"SyncBackend": [request, STREAM]}}


class Receiver:
    """A link whose frames are given, and which takes a number of replies."""

    def __init__(self, *batches: Sequence[bytes], takes: int = 2**62) -> None:
        self.batches = deque(batches)
        self.takes = takes
        self.sent: list[bytes] = []
        self.given_back: Sequence[bytes] | None = None

    def receive(self, timeout_seconds: float) -> list[bytes]:
        assert 0 < timeout_seconds < 0.1
        return [*self.batches.popleft()] if self.batches else []

    def send(self, frame: bytes) -> bool:
        if len(self.sent) == self.takes:
            return False
        self.sent.append(frame)
        return True

    def give_back(self, unread: Sequence[bytes] = ()) -> None:
        assert self.given_back is None
        self.given_back = unread


class Working:
    """A session that executes nothing: each sync adds a reply."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.error: Exception | None = None
        self.must_yield = False
        self.executed: list[Any] = []
        self.held: list[int] = []
        self.woken = 0
        self.no_room_for = 2**30  # the size of a frame
        self.send: Callable[[], None] | None = None
        self.outbox = SimpleNamespace(frames=deque[list[bytes]]())
        self.session = self.frame_memory = self
        self.turn = InterpreterTurn()

    def run_in_thread(self, call: Callable[[], None], held_bytes: int) -> None:
        self.held.append(held_bytes)
        call()

    def send_during_tasks(self, send: Callable[[], None] | None) -> None:
        self.send = send

    def lacks_room(self, frame: bytes) -> bool:
        return len(frame) >= self.no_room_for

    @contextlib.contextmanager
    def counted(self, frame: bytes) -> Iterator[None]:
        yield

    def decode_in_thread(self, decode: Callable[[], Any]) -> Any:
        return decode()

    def execute(self, tasks: Sequence[Any]) -> None:
        for task in tasks:
            messages = task.messages() if type(task) is KnownFrame else [task]
            self.executed += messages
            self.outbox.frames.extend([[b"reply"] for one in messages if type(one) is Sync])

    def send_in_thread(self, send: Callable[[bytes], bool]) -> bool:
        while self.outbox.frames and send(self.outbox.frames[0][0]):
            self.outbox.frames.popleft()
        return bool(self.outbox.frames)

    def wake_event_loop(self) -> None:
        self.woken += 1


def received(receiver: Receiver, session: Any, *, is_draining: bool = False) -> list[Any]:
    """Let the thread receive; return the tasks that it has executed."""
    decode = partial(decoded_frames, recognizer=MessageRecognizer(), work=session)
    receive_in_thread(receiver, session, decode, lambda: is_draining)
    executed: list[Any] = session.executed
    return executed


def frame(*messages: Any) -> bytes:
    packed: bytes = msgpack.packb(messages)
    return packed


def test_all_frames_are_executed_and_answered_until_none_arrives() -> None:
    receiver, session = Receiver([frame(sync(1)), frame(sync(2))], [frame(sync(3))]), Working()
    assert received(receiver, session) == [Sync(1), Sync(2), Sync(3)]
    assert receiver.given_back == ()
    assert len(receiver.sent) == 3
    assert session.woken == 0  # the thread sends the replies itself
    assert (session.counters.batches, session.counters.thread_batches) == (2, 2)
    assert session.counters.client_received_bytes == 3 * len(frame(sync(1)))
    assert all(size > 0 for size in session.held)


def test_frames_that_repeat_are_executed_as_wholes_when_they_arrive_alone() -> None:
    frames = [[frame(sync(request), sync(request + 1))] for request in range(0, 12, 2)]
    receiver, session = Receiver(*frames), Working()
    assert received(receiver, session) == [Sync(request) for request in range(12)]
    assert len(receiver.sent) == 12
    assert session.counters.client_received_bytes == 6 * len(frames[0][0])
    assert (session.counters.batches, session.counters.thread_batches) == (6, 6)
    assert session.held[0] > 0
    assert session.held[-1] == 0  # of a known frame alone, too little to count


def test_the_reply_to_a_read_leaves_before_the_tasks_that_do_not_concern_it_are_executed() -> None:
    class Reading(Working):
        def execute(self, tasks: Sequence[Any]) -> None:
            super().execute(tasks)
            self.executed.append(len(receiver.sent))
            self.outbox.frames.extend([[b"reply"] for one in tasks if type(one) is Read])

    frames = [frame(added(1, 1, 5)), frame(added(1, 1, 6)), frame(read(0, 5))]
    receiver, session = Receiver(frames), Reading()
    executed = received(receiver, session)
    assert [type(one) for one in executed] == [Operation, Read, int, Operation, int]
    assert (executed[2], executed[4]) == (0, 1)  # replies that were sent before each part


def test_replies_may_leave_during_a_task_while_the_thread_receives() -> None:
    class Sending(Working):
        def execute(self, tasks: Sequence[Any]) -> None:
            assert self.send is not None
            self.outbox.frames.append([b"early"])
            self.send()
            assert receiver.sent == [b"early"]
            super().execute(tasks)

    receiver, session = Receiver([frame(sync(1))]), Sending()
    received(receiver, session)
    assert len(receiver.sent) == 2
    assert session.send is None


def test_replies_that_the_link_does_not_take_are_left_to_the_event_loop() -> None:
    receiver, session = Receiver([frame(sync(1)), frame(sync(2))], takes=1), Working()
    received(receiver, session)
    assert len(receiver.sent) == 1
    assert len(session.outbox.frames) == 1
    assert session.woken == 1


def test_a_client_that_does_not_read_its_replies_is_not_read_further() -> None:
    syncs = [frame(*map(sync, range(15))) for _ in range(MAX_WAITING_REPLIES // 15 + 1)]
    receiver, session = Receiver(syncs, [frame(sync(99))], takes=0), Working()
    received(receiver, session)
    assert len(receiver.batches) == 1
    assert receiver.given_back == ()


@pytest.mark.parametrize("closing", [(CLOSE,), (sync(2), CLOSE)])
def test_the_end_of_the_session_is_left_to_the_event_loop(closing: tuple[Any, ...]) -> None:
    frames = [frame(sync(1)), frame(*closing), frame(sync(3))]
    receiver, session = Receiver(frames), Working()
    assert received(receiver, session) == [Sync(1)]
    assert receiver.given_back == frames[1:]


def test_a_long_frame_is_left_to_the_event_loop_and_a_shorter_one_is_not() -> None:
    frames = [
        frame(*[sync(1)] * (size // len(frame(sync(1))))) for size in (8192, 2 * LARGE_FRAME_BYTES)
    ]
    assert len(frames[0]) < LARGE_FRAME_BYTES < len(frames[1])
    receiver, session = Receiver(frames), Working()
    assert len(received(receiver, session)) == 8192 // len(frame(sync(1)))
    assert receiver.given_back == frames[1:]


@pytest.mark.parametrize("reason", ["yields", "drains"])
def test_nothing_is_received_if_the_thread_is_needed_elsewhere(reason: str) -> None:
    receiver, session = Receiver([frame(sync(1))]), Working()
    session.must_yield = reason == "yields"
    assert received(receiver, session, is_draining=reason == "drains") == []
    assert receiver.given_back == ()


def test_a_session_that_fails_wakes_the_event_loop() -> None:
    receiver, session = Receiver([frame(sync(1))]), Working()
    session.error = SessionLost("a reason")
    received(receiver, session)
    assert session.woken == 1


def test_the_connection_is_given_back_if_executing_raises() -> None:
    class Failing(Working):
        def execute(self, tasks: Sequence[Any]) -> None:
            raise KeyboardInterrupt

    receiver = Receiver([frame(sync(1))])
    with pytest.raises(KeyboardInterrupt):
        received(receiver, Failing())
    assert receiver.given_back == ()


def test_a_frame_that_memory_has_no_room_for_is_left_to_the_event_loop() -> None:
    frames = [frame(sync(1)), frame(*[sync(2)] * 100), frame(sync(3))]
    receiver, session = Receiver(frames), Working()
    session.no_room_for = len(frames[1])
    received(receiver, session)
    assert session.executed == [Sync(1)]
    assert receiver.given_back == frames[1:]


# -- two sockets of Burn 0.21 ---------------------------------------------------------------------


def test_requests_come_from_one_socket_and_replies_leave_on_the_other() -> None:
    requests, responses = Receiver([b"frame"]), Receiver()
    both = TwoSocketReceiver.lent(lambda: requests, lambda: responses)
    assert both is not None
    assert both.receive(0.01) == [b"frame"]
    assert both.send(b"reply")
    both.give_back([b"unread"])
    assert (requests.sent, responses.sent) == ([], [b"reply"])
    assert (requests.given_back, responses.given_back) == ([b"unread"], ())


def test_the_socket_for_requests_is_given_back_if_the_other_cannot_be_lent() -> None:
    requests = Receiver()
    assert TwoSocketReceiver.lent(lambda: requests, lambda: None) is None
    assert requests.given_back == ()


def test_the_socket_for_requests_is_given_back_if_lending_the_other_fails() -> None:
    def lacking() -> None:
        raise MemoryError

    requests = Receiver()
    with pytest.raises(MemoryError):
        TwoSocketReceiver.lent(lambda: requests, lacking)
    assert requests.given_back == ()


def test_the_socket_for_requests_is_given_back_if_giving_back_the_other_fails() -> None:
    class Lacking(Receiver):
        def give_back(self, unread: Sequence[bytes] = ()) -> None:
            raise MemoryError

    requests = Receiver()
    with pytest.raises(MemoryError):
        TwoSocketReceiver(requests, Lacking()).give_back([b"unread"])
    assert requests.given_back == [b"unread"]


def slices(running: RunningServer) -> list[float]:
    """Return the time slices of a server's threads, in nanoseconds, as far as they are known."""
    found = []
    for path in Path(f"/proc/{running.process.pid}/task").glob("*/sched"):
        with contextlib.suppress(OSError):  # the thread has ended
            lines = path.read_text().splitlines()
            found += [float(line.split()[-1]) for line in lines if line.startswith("se.slice")]
    return found


def sets_slices() -> bool:
    """Return whether a thread can be given a slice that others can see."""

    def lengthened() -> None:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/sched")
        is_set = lengthen_slice() and path.exists()
        wanted = f"{round(LONG_SLICE_SECONDS * 1e9)}"
        lines = path.read_text().splitlines() if is_set else []
        found.extend(each for each in lines if each.startswith("se.slice") and wanted in each)

    found: list[str] = []
    thread = threading.Thread(target=lengthened)
    thread.start()
    thread.join()
    return bool(found)


# -- on a server ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    # No batch runs on the event loop, so the threads of sessions receive.
    with server("--inline-cost-limit", "0") as started:
        yield started


@pytest.fixture
def socket(running: RunningServer) -> Iterator[Socket22]:
    opened = Socket22.opened(running.address)
    yield opened
    opened.close()


def tensor(number: int, size: int = 2, status: str = "ReadOnly") -> Any:
    return [[number], [[size]], status, "F32"]


def upload(number: int, values: Any) -> Any:
    elements = np.asarray(values, np.float32)
    data = [elements.tobytes(), [elements.size], "F32"]
    return {"Task": {"RegisterTensor": [STREAM, [number], data]}}


def added(first: int, second: int, out: int) -> Any:
    operation = {"Add": [tensor(first), tensor(second), tensor(out, status="NotInit")]}
    body = {"NumericFloat": ["F32", operation]}
    return {"Task": {"RegisterOperation": [STREAM, body]}}


def read(request: int, number: int, size: int = 2) -> Any:
    return {"Task": {"ReadTensor": [request, STREAM, tensor(number, size)]}}


def elements(answer: Any) -> list[float]:
    found: list[float] = np.frombuffer(answer["ReadTensor"]["Ok"][0], np.float32).tolist()
    return found


def test_a_program_that_reads_each_step_gets_its_results(
    running: RunningServer, socket: Socket22
) -> None:
    socket.send(upload(1, [1, 2]))
    for step in range(200):
        socket.send(added(1, 1, 10 + step), added(10 + step, 1, 1000 + step))
        socket.send(read(step + 1, 1000 + step))
        assert elements(socket.answer(step + 1)) == [3, 6]
    assert running.metric(THREAD_BATCHES) > 100


@pytest.mark.skipif(not sets_slices(), reason="the system has no slices of single threads")
def test_only_threads_of_sessions_without_graphs_have_long_slices() -> None:
    with server("--inline-cost-limit", "0") as own:
        client = Socket22.opened(own.address)
        client.send(upload(1, [1, 2]))

        def has_long_slice(operation: Any) -> bool:
            client.send(operation)
            client.send(read(next(requests), 1))
            return LONG_SLICE_SECONDS * 1e9 in slices(own)

        requests = count(1)
        wait_until(lambda: has_long_slice(added(1, 1, 5)))
        use, out = [[0], [[0]], "ReadOnly", "F32"], [[1], [[0]], "NotInit", "F32"]
        graph = [{"NumericFloat": ["F32", {"Add": [use, use, out]}]}]
        values = [[[[0], [1]], [[1], [6]]], [2], [], []]
        client.send({"Task": {"RegisterAndExecuteGraph": [STREAM, 0, graph, values]}})
        wait_until(lambda: not has_long_slice(added(1, 1, 5)))
        client.close()


def test_replies_come_in_the_order_of_requests_also_after_long_ones(socket: Socket22) -> None:
    large = np.arange(2**18, dtype=np.float32)
    socket.send(upload(1, [1, 2]))
    socket.send(upload(2, large))
    order = []
    for request in range(1, 40):
        size, number = (2**18, 2) if request % 7 == 0 else (2, 1)
        socket.send(read(request, number, size))
    for _ in range(1, 40):
        answer = socket.link.receive(PATIENCE_SECONDS)
        assert answer is not None
        content, request = unpacked(answer)
        order.append(request)
        expected = large.tolist() if request % 7 == 0 else [1, 2]
        assert elements(content) == expected
    assert order == [*range(1, 40)]


def test_an_upload_of_several_megabytes_arrives_between_small_frames(socket: Socket22) -> None:
    large = np.arange(2**20, dtype=np.float32)
    socket.send(upload(1, [1, 2]))
    for number in range(2, 6):
        socket.send(added(1, 1, 100 + number))
        socket.send(upload(number, large + number))
        socket.send(added(1, 1, 200 + number))
    for number in range(2, 6):
        socket.send(read(number, number, 2**20))
        assert elements(socket.answer(number)) == (large + number).tolist()


def test_a_session_ends_while_its_thread_receives(running: RunningServer, socket: Socket22) -> None:
    before = running.metric("burn_remote_sessions_closed_total")
    socket.send(upload(1, [1, 2]))
    socket.send(read(1, 1))
    assert elements(socket.answer(1)) == [1, 2]
    socket.send(CLOSE)
    with pytest.raises(ConnectionLost):
        socket.link.receive(PATIENCE_SECONDS)
    assert running.metric("burn_remote_sessions_closed_total") == before + 1


def test_the_tensors_of_a_client_that_vanishes_while_the_thread_receives_are_freed(
    running: RunningServer,
) -> None:
    client = Socket22.opened(running.address)
    for number in range(50):
        client.send(upload(number, [1, 2]))
    client.send(read(1, 1))
    client.answer(1)
    client.close()
    # Those of other tests too: their sessions may have ended a moment ago.
    wait_until(lambda: running.metric("burn_remote_tensors") == 0)


# -- on a server, with two sockets of Burn 0.21 ---------------------------------------------------


@pytest.fixture
def sockets(running: RunningServer) -> Iterator[Sockets]:
    opened = Sockets(running.address)
    yield opened
    opened.close()


ADD = signature("Numeric.Add", SPEC, SPEC)


def sent(sockets: Sockets, request: int, *tasks: Any) -> None:
    """Send a frame for each task; their requests, if they have any, are ``request``."""
    for task in tasks:
        sockets.requests.send(encode_tasks([task], request))


def adds(first: int, second: int, out: int) -> Any:
    return Execute(Operation(ADD, (first, second, out)))


def values_read(
    sockets: Sockets, request: int, tensor: int, spec: TensorSpec = SPEC
) -> list[float]:
    sent(sockets, request, Read(request, tensor, spec))
    frame = sockets.responses.receive(PATIENCE_SECONDS)
    assert frame is not None
    reply = decode_reply(frame)
    assert reply.request == request
    assert isinstance(reply.value, TensorData)
    found: list[float] = np.frombuffer(reply.value.bytes, np.float32).tolist()
    return found


def of_two(*values: float) -> TensorData:
    return TensorData(np.array(values, np.float32).tobytes(), SPEC.shape, SPEC.dtype)


def test_a_program_of_burn_0_21_that_reads_each_step_gets_its_results(
    running: RunningServer, sockets: Sockets
) -> None:
    before = running.metric(THREAD_BATCHES)
    sent(sockets, 0, Upload(1, of_two(1, 2)))
    for step in range(200):
        sent(sockets, 0, adds(1, 1, 10 + step), adds(10 + step, 1, 1000 + step))
        assert values_read(sockets, step + 1, 1000 + step) == [3, 6]
    assert running.metric(THREAD_BATCHES) > before + 100


def test_long_uploads_of_burn_0_21_arrive_between_small_frames(sockets: Sockets) -> None:
    large = TensorSpec((2**18,), SPEC.dtype)
    sent(sockets, 0, Upload(1, of_two(1, 2)))
    for number in range(2, 6):
        elements = np.full(large.shape, number, np.float32)
        sent(sockets, 0, adds(1, 1, 100 + number))
        sent(sockets, 0, Upload(number, TensorData(elements.tobytes(), large.shape, large.dtype)))
        sent(sockets, 0, adds(1, 100 + number, 200 + number))
    for number in range(2, 6):
        assert set(values_read(sockets, number, number, large)) == {number}
        assert values_read(sockets, 100 + number, 200 + number) == [3, 6]


@pytest.mark.parametrize("end", ["a message", "both sockets", "/request", "/response"])
def test_the_tensors_of_a_client_of_burn_0_21_are_freed_when_it_ends(
    running: RunningServer, end: str
) -> None:
    client = Sockets(running.address)
    for number in range(50):
        sent(client, 0, Upload(number, of_two(1, 2)))
    assert values_read(client, 1, 1) == [1, 2]
    if end == "a message":
        client.requests.send(encode_close(1))
    else:
        links = {"/request": client.requests, "/response": client.responses}
        for link in links.values() if end == "both sockets" else [links[end]]:
            link.close()
    # Those of other tests too: their sessions may have ended a moment ago.
    wait_until(lambda: running.metric("burn_remote_tensors") == 0)
    client.close()
