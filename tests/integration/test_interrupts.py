"""Ctrl-C at any line of a read, and during an operation, loses that and nothing else."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.autodiff.tracking import Autodiff
from burn_remote.distributed import Group
from burn_remote.distributed.gradient_buckets import GradientExchange
from burn_remote.distributed.server_engines import RingEngine, RingReduction
from burn_remote.functions.shared_uploads import MIN_BYTES, send_shared
from burn_remote.functions.tensor_value import _Arriving
from burn_remote.runner.interface import OwningHandle
from burn_remote.runner.pending import Pending
from burn_remote.runner.session_runner import SessionRunner
from burn_remote.sessions.burn.burn_connection import BurnConnection
from burn_remote.sessions.burn.burn_response_router import BurnResponseRouter
from burn_remote.sessions.burn.burn_session import BurnSession
from burn_remote.sessions.burn.burn_version_differences import Burn021, Burn022
from burn_remote.sessions.burn.flush_policy import FlushPolicy
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote.sessions.ending import Ending
from burn_remote.sessions.lifetime import Flusher
from burn_remote.sessions.native.automatic_graph_session import AutomaticGraphSession
from burn_remote.sessions.native.link_opening import open_link
from burn_remote.sessions.native.native_connection import Connection
from burn_remote.sessions.native.native_response_router import ResponseRouter
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.receiver import Receiver
from burn_remote_protocol import interrupted_finalizers
from burn_remote_protocol.dialects.bounded_unpacking import unpack_lists
from burn_remote_protocol.dialects.native import decode_frame
from burn_remote_protocol.links.websocket.blocking_link import BlockingWebSocket
from burn_remote_protocol.links.websocket.frame_writer import FrameWriter
from burn_remote_protocol.links.websocket.socket_streams import PlainStream, _Waker
from burn_remote_protocol.session_states import ReplayWindow
from burn_remote_protocol.timed_queue import TimedQueue
from burn_remote_protocol.waiters import Waiters
from burn_remote_server.custom import custom_operation
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.fusion.cpu.block_program import BlockProgram
from burn_remote_server.hosting.local import LocalLink
from support.interrupts import InterruptAfterCall, InterruptAt, NewPlace, Walk
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until

LARGE = (3, 1024, 128)  # 1.5 MiB: several chunks

RECEIVING = frozenset(
    function.__code__
    for function in (
        Receiver._read_frame,
        NativeSession._handle,
        BurnSession._handle,
        ResponseRouter.take,
        ResponseRouter._take_reply,
        ResponseRouter._take_chunk,
        ResponseRouter._complete,
        BurnResponseRouter.take,
        BurnResponseRouter._finish_sync,
        Pending._finish,
        Pending._call_back,
    )
)


@pytest.fixture
def unattended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the thread that waits for a reply read the socket, because interrupts come to it."""
    monkeypatch.setattr(Receiver, "start", lambda receiver: None)


def tensors_of_one_session(running: RunningServer) -> float:
    """Return the number of a server's tensors when all sessions but one have ended."""
    wait_until(lambda: running.metric("burn_remote_sessions") == 1)
    return running.metric("burn_remote_tensors")


@pytest.mark.usefixtures("unattended")
def test_an_interrupt_at_any_line_of_a_large_read_leaves_the_session_alive(
    device: br.Device,
) -> None:
    array = np.arange(np.prod(LARGE), dtype=np.float32).reshape(LARGE)
    x, small = br.tensor(array, device=device), br.ones((3,), device=device)
    device.sync()
    walk = Walk()
    for run, place in enumerate(walk):
        interrupt = InterruptAt(place, RECEIVING)
        other = (small + run).read()  # of another thread, for example
        with interrupt.watching():
            x.numpy()
        assert other.result(PATIENCE_SECONDS).tolist() == [1 + run] * 3, interrupt.place
    np.testing.assert_array_equal(x.numpy(), array)
    walk.check(Receiver._read_frame, Pending._finish, Pending._call_back)
    device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


# What ``threading`` does in Python code while it holds a lock, or is about to release it.
LOCKING = frozenset(
    function.__code__
    for function in (
        threading.Condition.__enter__,
        threading.Condition.__exit__,
        threading.Condition.wait,
        threading.Condition.notify,
        threading.Event.set,
        threading.Event.wait,
    )
)


def _result_of_another_thread(read: Callable[[], Any]) -> Any:
    """Return what a function returns in another thread.

    Raises ``queue.Empty`` if it waits for a lock.
    """
    results = queue.SimpleQueue[Any]()
    threading.Thread(target=lambda: results.put(read()), daemon=True).start()
    return results.get(timeout=PATIENCE_SECONDS)


@pytest.mark.usefixtures("unattended")
@pytest.mark.parametrize("kind", ["local", "remote"])
def test_ctrl_c_leaves_no_lock_taken_that_other_threads_need(
    kind: str, first_server: RunningServer
) -> None:
    opened = br.LocalDevice() if kind == "local" else br.RemoteDevice(first_server.address)
    with opened as device:
        x = br.ones((3,), device=device)
        large = br.ones((300_000,), device=device)
        device.sync()
        connection = device.session._connection
        acknowledging = (Connection.note_acknowledged, Waiters.wake)
        codes = LOCKING | {function.__code__ for function in acknowledging}
        walk = Walk()
        for run, place in enumerate(walk):
            pending = (x * run).read()
            interrupt = InterruptAfterCall(place, codes)
            with interrupt.watching():
                pending.result(PATIENCE_SECONDS)
                connection.settle(0)
                connection.note_acknowledged(0)  # as when a frame acknowledges an upload
                large.numpy()
            other = _result_of_another_thread((x + run).numpy)
            assert other.tolist() == [1 + run] * 3, interrupt.place
            assert pending.result(PATIENCE_SECONDS).tolist() == [run] * 3, interrupt.place
        walk.check(Waiters.wake if kind == "local" else Connection.note_acknowledged)
        device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


def test_an_interrupt_during_a_local_operation_fails_only_that_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with br.LocalDevice() as device:
        keep = br.ones((4,), device=device)
        device.sync()
        interpreter = device.session._connection._link._interpreter
        execute = interpreter.invoke_simple

        def interrupted(plan: Any, *arguments: Any) -> None:
            if plan.signature.row.name == "MulScalar":
                raise KeyboardInterrupt
            execute(plan, *arguments)

        with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
            patch.setattr(type(device.session), "flush_waiting", lambda session: None)
            patch.setattr(interpreter, "invoke_simple", interrupted)
            stopped = keep * 3
            after, new = keep + 1, keep.tanh()  # a signature that is new in this batch
            keep.numpy()
        with pytest.raises(br.OperationFailed, match="interrupted"):
            stopped.numpy()
        assert after.tolist() == [2] * 4
        np.testing.assert_allclose(new.numpy(), np.tanh(np.ones(4, np.float32)))
        assert keep.tolist() == [1] * 4


@pytest.mark.usefixtures("unattended")
def test_ctrl_c_while_a_local_device_delivers_replies_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NativeSession, "flush_waiting", lambda session: None)
    with br.LocalDevice(automatic_graphs=False) as device:
        x = br.ones((4,), device=device)
        large = br.ones((200_000,), device=device)  # its elements are chunks
        device.sync()
        link = device.session._connection._link
        delivering = (type(link)._deliver, type(link).receive, type(link._outbox).move_to)
        codes = frozenset(one.__code__ for one in delivering)
        walk = Walk()
        for run, place in enumerate(walk):
            pending, many = (x + run).read(), (large * run).read()
            interrupt = InterruptAfterCall(place, codes)
            with interrupt.watching():
                pending.result(PATIENCE_SECONDS)
                many.result(PATIENCE_SECONDS)
            assert pending.result(PATIENCE_SECONDS).tolist() == [1 + run] * 4, interrupt.place
            assert many.result(PATIENCE_SECONDS).sum() == run * 200_000, interrupt.place
        walk.check(*delivering)
        device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_an_interrupted_upload_leaves_nothing_on_the_server(
    dialect: str, first_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with br.RemoteDevice(first_server.address, dialect=dialect) as device:
        device.sync()
        held = first_server.metric("burn_remote_tensor_bytes")
        connection = device.session._connection
        send = connection.send
        sent = []

        def interrupted(*frame: Any, **options: Any) -> None:
            send(*frame, **options)
            sent.append(frame)
            # Once: later frames may be those of the flush thread.
            if len(sent) == (3 if dialect == "native" else 1):
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(connection, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                br.tensor(np.zeros(2**22, np.float32), device=device)
        device.sync()
        assert first_server.metric("burn_remote_tensor_bytes") == held
        assert br.ones((3,), device=device).tolist() == [1] * 3


DROPPING: Any = (
    OwningHandle.__del__,
    NativeSession.drop,
    BurnSession.drop,
    Outgoing.drop,
    FlushPolicy.send_soon,
    Flusher.schedule,
    TimedQueue.put,
)


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_in_a_drop_leaves_no_tensor_and_reaches_the_program(
    first_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
    kind: type[InterruptAt],
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    codes = frozenset(function.__code__ for function in DROPPING)
    with br.RemoteDevice(first_server.address, dialect=dialect) as device:
        device.sync()
        held = tensors_of_one_session(first_server)
        seen = 0
        walk = Walk()
        for place in walk:
            made = [br.zeros((4,), device=device)]
            device.sync()
            interrupt = kind(place, codes)
            with interrupt.watching():
                try:
                    made.clear()
                except KeyboardInterrupt:
                    seen += 1
            device.sync()
            assert first_server.metric("burn_remote_tensors") == held, interrupt.place
        walk.check(OwningHandle.__del__, Flusher.schedule)
    assert seen == walk.count
    assert not ignored


def test_ctrl_c_during_a_thousand_drops_leaves_no_tensor(first_server: RunningServer) -> None:
    codes = frozenset({OwningHandle.__del__.__code__})
    with br.RemoteDevice(first_server.address) as device:
        made = [br.zeros((4,), device=device) for _ in range(1000)]
        device.sync()
        held = tensors_of_one_session(first_server)
        interrupt = InterruptAfterCall(0, codes)
        with interrupt.watching(), pytest.raises(KeyboardInterrupt):
            made.clear()
        device.sync()
        assert first_server.metric("burn_remote_tensors") == held - 1000


def test_a_forgotten_device_ends_its_session_although_ctrl_c_came_in_the_finalizer() -> None:
    codes = frozenset({interrupted_finalizers._freed.__code__, Flusher.stop.__code__})
    walk = Walk()

    # A server of its own: on a shared one, sessions of other tests may wait to be resumed.
    with server() as running:

        def are_closed() -> bool:
            seen, name = running.metrics(), "burn_remote_sessions_{}_total"
            return seen[name.format("opened")] == seen[name.format("closed")]

        for place in walk:
            made = [br.RemoteDevice(running.address)]
            session = weakref.ref(made[0].session)
            gc.collect()
            interrupt = InterruptAfterCall(place, codes)
            with interrupt.watching():
                made.clear()
                while session() is not None:
                    gc.collect()
            wait_until(are_closed)
    walk.check(interrupted_finalizers._freed, Flusher.stop)


OPENING = (
    open_link,
    Connection._handler,
    NativeSession.__init__,
    Receiver.start,
    Flusher.start,
    interrupted_finalizers.call_when_freed,
    BlockingWebSocket.send,
    BlockingWebSocket.receive,
    FrameWriter.send,
    PlainStream.write,
)


@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_a_device_is_opened_leaves_no_session_and_no_thread(
    kind: type[InterruptAt],
) -> None:
    opening: Any = OPENING
    codes = frozenset(function.__code__ for function in opening)
    walk = Walk()
    others = {*threading.enumerate()}
    with server() as running:
        for place in walk:
            interrupt = kind(place, codes)
            with interrupt.watching(), contextlib.suppress(br.ClosedDevice):
                br.RemoteDevice(running.address, dialect="native").close()
            gc.collect()
            for thread in {*threading.enumerate()} - others:
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive(), f"{interrupt.place}: {thread.name}"
            wait_until(lambda: running.metric("burn_remote_sessions") == 0)
    walk.check(*OPENING)


CLOSING = (
    Connection.close,
    Connection.end,
    Connection._complete_end,
    Connection._steps_of_end,
    Connection.discard,
    NativeSession.close,
    NativeSession.flush,
    BurnConnection.close,
    BurnConnection._steps_of_end,
    Ending.complete,
    BurnConnection._close_links,
    BurnSession.close,
    FlushPolicy.flush,
    ResponseRouter.fail,
    BurnResponseRouter.fail,
    Receiver.close,
    Flusher.stop,
    BlockingWebSocket.send,
    BlockingWebSocket.close,
    BlockingWebSocket._send_close,
    BlockingWebSocket._drain,
    BlockingWebSocket._release_socket,
    FrameWriter.send,
    PlainStream.write,
    PlainStream.close,
    _Waker.wake,
    _Waker.close,
)
# Of these, no other thread can relieve the one that closes the session.
OWN_STEPS_OF_CLOSING: dict[str, Any] = {
    "native": (NativeSession.close, Connection.close, Connection.end, Flusher.stop),
    "burn-0.21": (BurnSession.close, BurnConnection.close, BurnConnection.end, Flusher.stop),
}


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_a_device_is_closed_ends_its_session_and_what_waits_for_it(
    dialect: str, kind: type[InterruptAt]
) -> None:
    closing: Any = CLOSING
    codes = frozenset(function.__code__ for function in closing)
    walk = Walk()
    with server() as running:
        for place in walk:
            device = br.RemoteDevice(running.address, dialect=dialect)
            session = device.session
            threads = (session._flusher._thread, session._connection.receiver._attendant)
            # Never answered, because the server does not know the request.
            waiting: Pending[Any] = Pending()
            if dialect == "native":
                session._router.expect(1_000_000, waiting, None, reports_failures=False)
            else:
                session._replies.expect(1_000_000, waiting, reports_failures=False)
            interrupt = kind(place, codes)
            with interrupt.watching():
                session.close()
            del device, session  # after Ctrl-C before its first line, the finalizer closes it
            gc.collect()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive(), interrupt.place
            assert waiting.done(), interrupt.place
            with pytest.raises(br.ClosedDevice):
                waiting.result()
            wait_until(lambda: running.metric("burn_remote_sessions") == 0)
    walk.check(*OWN_STEPS_OF_CLOSING[dialect])


@br.compile
def added(x: br.Tensor, y: br.Tensor) -> br.Tensor:
    return x + y * y


@br.compile
def added_and_multiplied(x: br.Tensor, y: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
    return x + y, x * y


def tracked(x: br.Tensor, y: br.Tensor) -> br.Tensor:
    return br.exp(x.requires_grad_()) + y


ISSUING = (
    br.Tensor.__add__,
    Autodiff.register_op,
    SessionRunner.register_op,
    SessionRunner.register_graph,
    SessionRunner.register_tensor_data,
    SessionRunner.create_empty_handles,
    SessionRunner._without_ids,
    NativeSession.execute,
    NativeSession.execute_graph,
    NativeSession.reserve,
    NativeSession.upload,
    NativeSession._assign_ids,
    NativeSession._append,
    AutomaticGraphSession.execute,
    AutomaticGraphSession.execute_graph,
    AutomaticGraphSession.reserve,
    BurnSession.execute,
    BurnSession.reserve,
    BurnSession.upload,
    Outgoing.operation,
    Outgoing.task,
)
CALLS: dict[str, Callable[[br.Tensor, br.Tensor], object]] = {
    "operator": lambda x, y: x + y,
    "operator with a number": lambda x, y: x * 2.0,
    "function": lambda x, y: br.exp(x),
    "function with several outputs": lambda x, y: br.max_with_indices(x, axis=0),
    "tracked": tracked,
    "upload": lambda x, y: br.tensor(np.ones(5, np.float32), device=x.device),
}
GRAPHS: dict[str, Callable[[br.Tensor, br.Tensor], object]] = {
    "compiled function": added,
    "compiled function with several outputs": added_and_multiplied,
}


@pytest.mark.parametrize(
    ("dialect", "name"),
    [("native", name) for name in (*CALLS, *GRAPHS)] + [("burn-0.21", name) for name in CALLS],
)
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_an_operation_is_issued_leaves_no_tensor(
    first_server: RunningServer, dialect: str, name: str, kind: type[InterruptAt]
) -> None:
    issuing: Any = ISSUING
    codes = frozenset(function.__code__ for function in issuing)
    issue = (CALLS | GRAPHS)[name]
    with br.RemoteDevice(first_server.address, dialect=dialect) as device:
        x, y = (br.ones((4,), device=device) for _ in range(2))
        for _ in range(3):
            issue(x, y)
        device.sync()
        held = tensors_of_one_session(first_server)
        walk = Walk()
        for place in walk:
            interrupt = kind(place, codes)
            with interrupt.watching():
                issue(x, y)
            device.sync()
            assert first_server.metric("burn_remote_tensors") == held, interrupt.place
        session: Any = NativeSession if dialect == "native" else BurnSession
        issued_by = {"upload": session.upload} | dict.fromkeys(GRAPHS, session.execute_graph)
        walk.check(issued_by.get(name, session.execute))


# Functions with statements that no signal handler divides, because they call nothing in between.
WITH_JOINED_STATEMENTS: Any = (
    Connection._hand_over,
    LocalLink.send_together,
    LocalLink.receive,
    LocalLink._run_rest,
    Engine.run,
    Engine._read,
    Engine._sync,
    Engine._reply,
    Engine._upload,
    Engine._begin_upload,
    Engine.write_chunk,
    Interpreter.invoke_graph,
    NativeOutbox.reply,
    NativeOutbox.follow,
    NativeOutbox._append,
    NativeOutbox._append_within_quota,
    NativeOutbox.move_to,
    ReplayWindow.append,
    threading.Condition.__enter__,
    threading.Condition.__exit__,
    threading.Condition.notify_all,
    threading.Condition.notify,
)
LOCAL_TASKS: dict[str, Callable[[br.Tensor, br.Tensor], list[tuple[br.Tensor, object]]]] = {
    "read": lambda x, large: [],
    "upload": lambda x, large: [
        (br.tensor(np.full(4, 7, np.float32), device=x.device), 7),
        (br.tensor(np.full(150_000, 7, np.float32), device=x.device), 7),
    ],
    "compiled call": lambda x, large: [(added(x, x), 2), (added(large, large), 2)],
}


@pytest.mark.usefixtures("unattended")
@pytest.mark.parametrize("name", LOCAL_TASKS)
@pytest.mark.parametrize("automatic_graphs", [False, True])
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_on_a_local_device_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    automatic_graphs: bool,
    kind: type[InterruptAt],
) -> None:
    monkeypatch.setattr(NativeSession, "flush_waiting", lambda session: None)
    with br.LocalDevice(automatic_graphs=automatic_graphs) as device:
        x, large = br.ones((4,), device=device), br.ones((200_000,), device=device)
        for _ in range(3):
            LOCAL_TASKS[name](x, large)
        device.sync()
        link = device.session._connection._link
        executing: Any = (
            NativeSession.upload,
            NativeSession._append,
            NativeSession._flush,
            NativeSession._forget_sent,
            Connection.send,
            LocalLink._execute_sent,
            LocalLink._take,
            LocalLink._deliver,
            *(() if kind is InterruptAt else WITH_JOINED_STATEMENTS),
        )
        codes = frozenset(function.__code__ for function in executing)
        tensors = link._interpreter.tensors
        held = len(tensors)
        walk = Walk()
        for place in walk:
            made: list[tuple[br.Tensor, object]] = []
            reads = [x.read(), large.read(), x.read()]
            interrupt = kind(place, codes)
            with interrupt.watching():
                made += LOCAL_TASKS[name](x, large)
                device.session.flush()
                for read in reads:
                    read.result(PATIENCE_SECONDS)
            for read in reads:
                assert (read.result(PATIENCE_SECONDS) == 1).all(), interrupt.place
            while made:
                tensor, expected = made.pop()
                with contextlib.suppress(br.OperationFailed):  # the interrupted one
                    found = tensor.read().result(PATIENCE_SECONDS)
                    assert (found == expected).all(), interrupt.place
                del tensor
            with contextlib.suppress(br.OperationFailed):
                device.sync()
            device.sync()
            assert len(tensors) == held, interrupt.place
        walk.check(
            Connection.send,
            NativeSession._flush,
            NativeSession._forget_sent,
            LocalLink._take,
            LocalLink._deliver,
        )
        device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


@pytest.mark.parametrize("dialect", ["burn-0.21", "burn-0.22"])
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_queued_tasks_of_burn_are_sent_neither_loses_nor_repeats_them(
    first_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
    kind: type[InterruptAt],
) -> None:
    monkeypatch.setattr(
        BurnSession, "flush_waiting", lambda session: None
    )  # only this thread sends
    sending: Any = (
        FlushPolicy.send_now,
        FlushPolicy.flush,
        Outgoing.take,
        Burn021.frames,
        Burn022.frames,
        BurnConnection.send,
        BlockingWebSocket.send_together,
        BlockingWebSocket._send,
        FrameWriter.send_together,
        FrameWriter._flush,
    )
    codes = frozenset(function.__code__ for function in sending)
    with br.RemoteDevice(first_server.address, dialect=dialect) as device:
        x = br.ones((4,), device=device)
        device.sync()
        held = tensors_of_one_session(first_server)
        walk = Walk()
        for run, place in enumerate(walk):
            unused, queued = x + run, x * run
            made = [queued + 1]
            del unused, queued
            interrupt = kind(place, codes)
            with interrupt.watching():
                device.session.flush()
            assert made[0].tolist() == [run + 1] * 4, interrupt.place
            made.clear()
            device.sync()
            assert first_server.metric("burn_remote_tensors") == held, interrupt.place
        walk.check(
            FlushPolicy.flush,
            FlushPolicy.send_now,
            Outgoing.take,
            BurnConnection.send,
            FrameWriter._flush,
        )


@pytest.mark.parametrize(
    ("dialect", "target"),
    [
        ("native", "native"),
        ("burn-0.21", "burn-0.21"),
        ("burn-0.22", "burn-0.22"),
        ("burn-0.21", "native"),
        ("burn-0.22", "native"),
    ],
)
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_a_tensor_is_moved_leaves_no_tensor(
    first_server: RunningServer,
    second_server: RunningServer,
    dialect: str,
    target: str,
    kind: type[InterruptAt],
) -> None:
    issuing: tuple[Any, ...] = ()
    if dialect != "native":
        issuing += (BurnSession.expose, BurnSession._issue, Outgoing.add_request)
    moving: tuple[Any, ...] = (SessionRunner.move, *issuing)
    # From Burn's dialects to a native target, a fetch that is being queued is left alone.
    if dialect == target:
        fetch = NativeSession.fetch if target == "native" else BurnSession.fetch
        issuing += (SessionRunner.fetch, fetch)
        moving += (*issuing, *ISSUING, Outgoing.task)
    codes = frozenset(function.__code__ for function in moving)
    with (
        br.RemoteDevice(first_server.address, dialect=dialect) as a,
        br.RemoteDevice(second_server.address, dialect=target) as b,
    ):
        x = br.ones((4,), device=a)
        x.to(b)
        a.sync()
        b.sync()
        held = second_server.metric("burn_remote_tensors")
        walk = Walk()
        for place in walk:
            interrupt = kind(place, codes)
            with interrupt.watching():
                x.to(b)
            a.sync()
            b.sync()
            # A fetch that is under way when its tensor is dropped ends later.
            wait_until(lambda: second_server.metric("burn_remote_tensors") == held)
            wait_until(lambda: not first_server.metric("burn_remote_transfers_open"))
        walk.check(SessionRunner.move, *issuing)


@pytest.mark.parametrize("is_known", [True, False], ids=["known content", "new content"])
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_an_upload_is_shared_leaves_no_tensor_and_no_wrong_content(
    first_server: RunningServer, is_known: bool, kind: type[InterruptAt]
) -> None:
    sharing: Any = (
        send_shared,
        NativeSession.open_content,
        NativeSession.keep_content,
        NativeSession._ask,
        NativeSession._enqueue,
        *ISSUING,
    )
    codes = frozenset(function.__code__ for function in sharing)
    with br.RemoteDevice(first_server.address, automatic_graphs=False) as device:
        known = np.random.default_rng(0).random(MIN_BYTES // 8)
        br.tensor(known, device=device, share=True)
        device.sync()
        held = tensors_of_one_session(first_server)
        walk = Walk()
        for place in walk:
            array = known if is_known else np.random.default_rng().random(MIN_BYTES // 8)
            interrupt = kind(place, codes)
            with interrupt.watching():
                br.tensor(array, device=device, share=True)
            device.sync()
            assert first_server.metric("burn_remote_tensors") == held, interrupt.place
            assert (br.tensor(array, device=device, share=True).numpy() == array).all()
            device.sync()
        walk.check(send_shared, NativeSession.open_content, NativeSession._ask)


COLLECTIVES: dict[str, Callable[[Group, list[br.Tensor]], object]] = {
    "all_reduce": lambda group, given: group.all_reduce(given),
    "reduce": lambda group, given: group.reduce(given, root=1),
    "reduce_scatter": lambda group, given: group.reduce_scatter(given),
    "all_gather": lambda group, given: group.all_gather([(x, x > 1) for x in given]),
    "all_to_all": lambda group, given: group.all_to_all(given),
    "broadcast": lambda group, given: group.broadcast(given[0]),
    "barrier": lambda group, _: group.barrier(),
    "failure": lambda group, _: group.failure(),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_during_a_collective_does_not_mix_it_with_the_next(
    first_server: RunningServer,
    second_server: RunningServer,
    name: str,
    kind: type[InterruptAt],
) -> None:
    issuing: Any = (
        Group._reduced,
        *(one for one in vars(RingEngine).values() if isinstance(one, FunctionType)),
        *(one for one in vars(RingReduction).values() if isinstance(one, FunctionType)),
        inspect.unwrap(RingEngine.complete),
        SessionRunner.collective,
        NativeSession.collective,
        NativeSession._appended,
    )
    codes = frozenset(function.__code__ for function in issuing)
    collective = COLLECTIVES[name]
    with (
        br.RemoteDevice(first_server.address) as a,
        br.RemoteDevice(second_server.address) as b,
        Group([a, b], timeout_seconds=PATIENCE_SECONDS) as group,
    ):
        given = [br.tensor([1.0, 2.0], device=device) for device in (a, b)]
        collective(group, given)
        walk = Walk()
        for run, place in enumerate(walk):
            interrupt = kind(place, codes)
            with interrupt.watching():
                collective(group, given)
            sent = [br.tensor([float(run), 9.0], device=device) for device in (a, b)]
            for x in group.all_gather(sent):
                found = x.read().result(PATIENCE_SECONDS)
                assert found.tolist() == [run, 9, run, 9], interrupt.place
        walk.check(RingEngine.issue, SessionRunner.collective)


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_two_ctrl_c_in_a_row_during_a_collective_do_not_mix_it_with_the_next(
    first_server: RunningServer,
    second_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[InterruptAt],
) -> None:
    collective = COLLECTIVES[name]
    with (
        br.RemoteDevice(first_server.address) as a,
        br.RemoteDevice(second_server.address) as b,
        Group([a, b], timeout_seconds=PATIENCE_SECONDS) as group,
    ):
        given = [br.tensor([1.0, 2.0], device=device) for device in (a, b)]
        collective(group, given)
        walk = Walk()
        for run, place in enumerate(walk):
            with monkeypatch.context() as patch:
                interrupt = _second_interrupt(place, kind, patch)
                with interrupt.watching(), pytest.raises(KeyboardInterrupt):
                    collective(group, given)
            sent = [br.tensor([float(run), 9.0], device=device) for device in (a, b)]
            for x in group.all_reduce(sent):
                found = x.read().result(PATIENCE_SECONDS)
                assert found.tolist() == [2 * run, 18], interrupt.place
        walk.check(RingEngine.issue, RingEngine.issue_rest, SessionRunner.collective)


def _second_interrupt(
    place: NewPlace, kind: type[InterruptAt], patch: pytest.MonkeyPatch
) -> InterruptAt:
    """Interrupt a collective between its members; return another interrupt of what comes then."""
    issue = RingEngine.issue
    members: list[int] = []

    def interrupted(ring: RingEngine, member: int, parts: Any) -> Any:
        if member == 1 and not members:
            members.append(member)
            raise KeyboardInterrupt
        return issue(ring, member, parts)

    patch.setattr(RingEngine, "issue", interrupted)
    completing: Any = (
        RingReduction.abandon,
        RingEngine.issue_rest,
        RingEngine.issued,
        RingEngine.complete_interrupted,
        issue,
        RingReduction.give,
        SessionRunner.collective,
        NativeSession.collective,
        NativeSession._appended,
    )
    interrupt = kind(place, frozenset(function.__code__ for function in completing))
    count = interrupt._count

    def count_second(frame: Any, event: str, argument: Any) -> Any:
        return count(frame, event, argument) if members else count_second

    patch.setattr(interrupt, "_count", count_second)
    return interrupt


@pytest.mark.parametrize("kind", [InterruptAfterCall, InterruptAt])
def test_ctrl_c_while_a_group_is_made_or_closed_frees_it(
    first_server: RunningServer, second_server: RunningServer, kind: type[InterruptAt]
) -> None:
    making: Any = (
        *(one for one in vars(RingEngine).values() if isinstance(one, FunctionType)),
        SessionRunner.join_group,
        SessionRunner.leave_group,
        AutomaticGraphSession.join_group,
        AutomaticGraphSession.leave_group,
        NativeSession.join_group,
        NativeSession.leave_group,
        NativeSession._append,
        NativeSession._appended,
        Group.close,
    )
    codes = frozenset(function.__code__ for function in making)
    with (
        br.RemoteDevice(first_server.address) as a,
        br.RemoteDevice(second_server.address) as b,
    ):
        walk = Walk()
        for run, place in enumerate(walk):
            interrupt = kind(place, codes)
            with interrupt.watching():
                made = [Group([a, b], timeout_seconds=PATIENCE_SECONDS)]
                made[0].close()
            made = []
            # It leaves the groups of objects that are gone.
            with Group([a, b], timeout_seconds=PATIENCE_SECONDS) as group:
                # A server refuses a number that it still has.
                held = [len(device.session._groups) for device in (a, b)]
                assert held == [1, 1], interrupt.place
                given = [br.tensor([float(run)], device=device) for device in (a, b)]
                for x in group.all_reduce(given):
                    assert x.read().result(PATIENCE_SECONDS).tolist() == [2 * run]
        walk.check(
            RingEngine.__init__,
            RingEngine.close,
            SessionRunner.join_group,
            SessionRunner.leave_group,
        )


def loss_of(params: list[br.Tensor], x: br.Tensor) -> br.Tensor:
    return br.sum(x * params[0] * params[1])


@pytest.mark.parametrize("interrupted", [GradientExchange, RingReduction])
def test_two_ctrl_c_in_a_backward_pass_of_several_members_do_not_disturb_the_next(
    first_server: RunningServer,
    second_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: type,
) -> None:
    params = [np.ones(3, np.float32), np.full(3, 2, np.float32)]
    batch = np.arange(12, dtype=np.float32).reshape(4, 3)
    with (
        br.RemoteDevice(first_server.address) as a,
        br.RemoteDevice(second_server.address) as b,
        br.DataParallel(loss_of, params, [a, b], bucket_bytes=1, reduction="sum") as trainer,
    ):
        expected = [
            float(trainer.backward(batch)),
            [[x.numpy() for x in one] for one in trainer.gradients],
        ]
        trainer.zero_grad()
        for place in range(1, 6):
            issue, calls = RingEngine.issue, itertools.count()

            def first(
                *arguments: Any, calls: Any = calls, last: int = place, issue: Any = issue
            ) -> Any:
                if next(calls) == last:
                    raise KeyboardInterrupt
                return issue(*arguments)

            def second(_: object) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(RingEngine, "issue", first)
                patch.setattr(interrupted, "abandon", second)
                trainer.backward(batch)
            found = [
                float(trainer.backward(batch)),
                [[x.numpy() for x in one] for one in trainer.gradients],
            ]
            assert found[0] == expected[0]
            np.testing.assert_array_equal(found[1], expected[1])
            trainer.zero_grad()


# The first two of these have a part in every frame.
SENDING: Any = (
    BlockingWebSocket.send,
    PlainStream.write,
    BlockingWebSocket._send,
    BlockingWebSocket._post,
    FrameWriter.send_together,
    TimedQueue.put,
)
GETTING: Any = (
    Receiver._read_frame,
    BlockingWebSocket.receive,
    BlockingWebSocket._read,
    PlainStream.read,
    Receiver._read_until,
    NativeSession._handle,
    ResponseRouter.take,
    decode_frame,
    unpack_lists,
    Pending._waking.__wrapped__,  # type: ignore[attr-defined]
    Pending._finish,
    Pending._call_back,
    _Arriving.wait,
    _Arriving.deliver,
)


@pytest.mark.usefixtures("unattended")
@pytest.mark.parametrize("functions", [SENDING, GETTING], ids=["sending", "receiving"])
@pytest.mark.parametrize(
    "error", [TimeoutError, ValueError, RuntimeError], ids=lambda error: error.__name__
)
def test_an_exception_of_a_signal_handler_reaches_the_program_and_not_the_session(
    first_server: RunningServer, error: type[Exception], functions: Any
) -> None:
    codes = frozenset(function.__code__ for function in functions)
    with br.RemoteDevice(first_server.address, automatic_graphs=False) as device:
        x = br.ones((4,), device=device)
        device.sync()
        link = device.session._connection._link
        walk = Walk()
        for run, place in enumerate(walk):
            interrupt = InterruptAfterCall(place, codes, error)
            product = x * run
            with interrupt.watching():
                product.read().result(PATIENCE_SECONDS)
            assert interrupt.has_left == interrupt.has_come, interrupt.place
            assert product.read().result(PATIENCE_SECONDS).tolist() == [run] * 4, interrupt.place
            # A frame that was sent in part makes a new connection necessary.
            if functions is not SENDING:
                assert device.session._connection._link is link, interrupt.place
        walk.check(*functions[:2])
        device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


@custom_operation("late", inputs={"x": "any"}, shapes=lambda x: x)
def late(xp: Any, x: Any) -> Any:
    signal.raise_signal(signal.SIGALRM)
    return x + 1


@pytest.fixture
def alarm() -> Iterator[list[BaseException]]:
    """Exceptions that the handler of ``SIGALRM`` has raised."""
    raised: list[BaseException] = []

    def raise_late(number: int, frame: object) -> None:
        raised.append(TimeoutError("too late"))
        raise raised[-1]

    before = signal.signal(signal.SIGALRM, raise_late)
    yield raised
    signal.signal(signal.SIGALRM, before)


def in_an_operation(x: br.Tensor) -> br.Tensor:
    return br.custom("late", x, outputs=br.TensorSpec(x.shape, x.dtype))


@pytest.mark.parametrize("call", [in_an_operation, br.compile(in_an_operation)])
def test_an_exception_of_a_signal_handler_in_a_kernel_reaches_the_program(
    call: Callable[[br.Tensor], br.Tensor], alarm: list[BaseException], monkeypatch: Any
) -> None:
    # Whatever the flush thread sends is executed there, where no signal handler runs.
    monkeypatch.setattr(NativeSession, "flush_waiting", lambda session: None)
    with br.LocalDevice(custom_operations=[late]) as device:
        x = br.ones((4,), device=device)
        handler = signal.signal(signal.SIGALRM, signal.SIG_IGN)
        assert call(x).tolist() == [2] * 4
        signal.signal(signal.SIGALRM, handler)
        stopped = call(x)
        after = x + 3
        with pytest.raises(TimeoutError, match="too late") as seen:
            after.numpy()
        assert [seen.value] == alarm
        with pytest.raises(br.OperationFailed, match="interrupted"):
            stopped.numpy()
        assert after.tolist() == [4] * 4


def test_an_exception_of_a_signal_handler_in_a_fused_block_reaches_the_program(
    alarm: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativeSession, "flush_waiting", lambda session: None)
    size = 2**18
    with br.LocalDevice(automatic_graphs=False) as device:
        x = br.ones((size,), device=device)
        device.sync()
        run = BlockProgram.run

        def interrupted(program: Any, *arguments: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(BlockProgram, "_run_blocks", lambda *_: signal.raise_signal(14))
                patch.setattr(BlockProgram, "_run_kernels", lambda *_: signal.raise_signal(14))
                return run(program, *arguments)

        def chain() -> br.Tensor:
            y = x
            for _ in range(6):
                y = y * 2 + 1
            return y

        for _ in range(3):
            chain().numpy()
        monkeypatch.setattr(BlockProgram, "run", interrupted)
        stopped = chain()
        with pytest.raises(TimeoutError, match="too late"):
            stopped.numpy()
        assert len(alarm) == 1
        monkeypatch.setattr(BlockProgram, "run", run)
        with pytest.raises(br.OperationFailed, match="interrupted"):
            stopped.numpy()
        assert chain()[0].item() == 2**6 + 2**6 - 1
