"""A device that a signal handler closes while its thread is inside of a call of the device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.devices.shared_sessions import SharedSessions
from burn_remote.runner.session_runner import SessionRunner
from burn_remote.sessions.burn.burn_connection import BurnConnection
from burn_remote.sessions.burn.burn_response_router import BurnResponseRouter
from burn_remote.sessions.burn.burn_session import BurnSession
from burn_remote.sessions.burn.flush_policy import FlushPolicy
from burn_remote.sessions.ending import Ending
from burn_remote.sessions.lifetime import Flusher
from burn_remote.sessions.native.link_opening import open_link
from burn_remote.sessions.native.native_connection import Connection
from burn_remote.sessions.native.native_response_router import ResponseRouter
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.receiver import Receiver
from burn_remote_protocol.links.checksummed_links import CheckedLink
from burn_remote_protocol.links.websocket.blocking_link import BlockingWebSocket
from burn_remote_protocol.links.websocket.frame_writer import FrameWriter
from burn_remote_protocol.links.websocket.socket_streams import PlainStream
from support.interrupts import CallAt, Walk
from support.servers import RunningServer
from support.waiting import PATIENCE_SECONDS, wait_until

CALLED: Any = (
    NativeSession._ask,
    NativeSession._flush,
    NativeSession._handle,
    NativeSession.upload,
    BurnSession._ask,
    BurnSession._handle,
    BurnSession.upload,
    FlushPolicy.added,
    FlushPolicy.send_now,
    BurnConnection.send,
    BurnConnection.close,
    BurnConnection.end,
    Connection.send,
    Connection._send_if_room,
    Connection.close,
    Connection.end,
    Connection._complete_end,
    Ending.complete,
    ResponseRouter.take,
    ResponseRouter.fail,
    BurnResponseRouter.take,
    Receiver.wait,
    Receiver._read_alone,
    Receiver._read_until,
    Receiver._read_frame,
    Receiver.close,
    Flusher.call,
    SessionRunner.finish,
    SharedSessions.give_back,
    CheckedLink.send,
    BlockingWebSocket.send,
    BlockingWebSocket.receive,
    BlockingWebSocket.close,
    BlockingWebSocket._advance,
    FrameWriter.send,
    FrameWriter.send_control,
    PlainStream.write,
    PlainStream.read,
)
ELEMENTS = np.arange(100_000, dtype=np.float32)
CALLS: dict[str, Callable[[br.Tensor], object]] = {
    "read": lambda x: (x + 1).numpy(),
    "upload": lambda x: br.tensor(ELEMENTS, device=x.device),
    "close": lambda x: x.device.close(),
}


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
@pytest.mark.parametrize("call", CALLS)
def test_a_signal_handler_closes_the_device_of_the_call_that_it_interrupts(
    first_server: RunningServer, caplog: pytest.LogCaptureFixture, dialect: str, call: str
) -> None:
    codes = frozenset(function.__code__ for function in CALLED)
    walk = Walk()
    caplog.set_level(logging.WARNING, "burn_remote")
    for place in walk:
        device = br.RemoteDevice(first_server.address, dialect=dialect)
        session = device.session
        x = br.ones((4,), device=device)
        x.numpy()
        handler = CallAt(place, codes, device.close)
        with handler.watching():
            try:
                CALLS[call](x)
            except br.ClosedDevice:
                pass
            except br.BurnRemoteError as error:
                pytest.fail(f"{handler.place}: {error!r}")
        device.close()
        for thread in threading.enumerate():
            if thread.name == "burn-remote-close":
                thread.join(PATIENCE_SECONDS)
        assert session.closed, handler.place
        # Not "the server skips what was left": nothing waited for its own thread.
        assert not caplog.records, f"{handler.place}: {caplog.records}"
    walk.check(PlainStream.write)


def test_a_signal_handler_cannot_open_the_device_that_its_thread_is_opening(
    first_server: RunningServer,
) -> None:
    errors: list[br.BurnRemoteError] = []

    def open_another() -> None:
        try:
            br.RemoteDevice(first_server.address, automatic_graphs=True)
        except br.UsageError as error:
            errors.append(error)

    handler = CallAt(0, frozenset({open_link.__code__}), open_another)
    with handler.watching(), br.RemoteDevice(first_server.address, automatic_graphs=True):
        pass
    assert [str(error) for error in errors] == [
        "a finalizer, a signal handler or a callback of the garbage collector opened a device "
        "that its own thread is opening"
    ]


def test_a_device_that_moves_to_a_device_in_use_is_closed_by_another_thread(
    first_server: RunningServer, second_server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "burn_remote")
    with (
        br.RemoteDevice(first_server.address) as source,
        br.RemoteDevice(second_server.address) as target,
    ):
        moved = br.ones((4,), device=source).to(target)
        session = source.session
        was_closed: list[bool] = []

        def close() -> None:
            source.close()
            # Closing waits for the move, whose target answers when this thread receives again.
            was_closed.append(session.closed)

        codes = frozenset({Receiver._read_frame.__code__})
        handler = CallAt(0, codes, close)
        with handler.watching():
            assert moved.tolist() == [1] * 4
        assert was_closed == [False]
        wait_until(lambda: session.closed)
    assert not caplog.records
