"""Bulk data over a WebSocket: sent by a thread of a server, received into the caller's memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from burn_remote_protocol.errors import ConnectionLost, GarbledBytes, LimitExceeded
from burn_remote_protocol.links.checksummed_links import (
    CheckedAsyncLink,
    CheckedLink,
    bulk_link,
    frame_sender,
)
from burn_remote_protocol.links.interface import AsyncLink, FrameSender
from burn_remote_protocol.links.transport_interface import Request
from burn_remote_protocol.links.transport_registry import connect, listen
from burn_remote_protocol.links.websocket.frame_sender import LoopSender
from support.waiting import PATIENCE_SECONDS, wait_until

HEAD = 5


def nothing() -> None:
    """Raise nothing: the sender or receiver that calls this check goes on waiting."""


class Source:
    """A server whose only connection is sent to by the test's thread."""

    def __init__(self, *, is_checked: bool, tls: ssl.SSLContext | None = None) -> None:
        self._is_checked = is_checked
        self._tls = tls
        self._ready = threading.Event()
        self._found: list[Any] = []
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Source:
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        self._ready.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)

    def sender(self) -> FrameSender:
        assert self._ready.wait(PATIENCE_SECONDS)
        (found,) = self._found
        return found  # type: ignore[no-any-return]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        scheme = "ws" if self._tls is None else "wss"
        async with listen(scheme, "127.0.0.1", 0, self._handle, tls=self._tls) as listener:
            self.address = f"{scheme}://127.0.0.1:{listener.port}"
            self._ready.set()
            await self._stop.wait()

    async def _handle(self, plain: AsyncLink, _: Request) -> None:
        link = CheckedAsyncLink(plain) if self._is_checked else plain
        self._found.append(await frame_sender(link, nothing))
        self._ready.set()
        with contextlib.suppress(ConnectionLost):
            await link.receive()


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS contexts of a server and of a client that trusts it."""
    authority = trustme.CA()
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    authority.configure_trust(trusting)
    return serving, trusting


@pytest.fixture(params=["plain", "checked", "tls"])
def ends(
    request: pytest.FixtureRequest, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> Iterator[tuple[FrameSender, Any, Any]]:
    """A sender, and the link and the source that receive from it."""
    is_checked = request.param == "checked"
    serving, trusting = contexts if request.param == "tls" else (None, None)
    with Source(is_checked=is_checked, tls=serving) as source:
        plain = connect(source.address, tls=trusting)
        link = CheckedLink(plain) if is_checked else plain
        sender = source.sender()
        yield sender, link, bulk_link(link).bulk_reader(0.05)
        sender.close()
        link.close()


def into(memory: bytearray) -> Callable[[bytes, int], memoryview]:
    return lambda head, size: memoryview(memory)[:size]


@pytest.mark.parametrize("size", [0, 1, 37, 38, 100, 120, 126, 65_000, 65_536, 524_288, 3_000_001])
def test_the_rest_of_a_message_is_stored_where_the_receiver_wants(ends: Any, size: int) -> None:
    sender, _, source = ends
    payload = bytes(range(256)) * (size // 256 + 1)
    view = memoryview(payload)[:size]

    def send() -> None:
        for place in range(3):
            sender.send_parts(b"head%d" % place, view)

    sending = threading.Thread(target=send)
    sending.start()
    for place in range(3):
        memory = bytearray(size)
        head, rest = source.receive(HEAD, into(memory), nothing)
        assert head == b"head%d" % place
        assert len(rest) == size
        assert bytes(memory) == payload[:size]
    sending.join(PATIENCE_SECONDS)


def test_small_and_large_messages_keep_their_order(ends: Any) -> None:
    sender, _, source = ends
    payload = memoryview(bytes(200_000))

    def send() -> None:
        for place in range(20):
            sender.send_parts(b"%05d" % (2 * place), payload)
            sender.send(b"%05d" % (2 * place + 1))

    sending = threading.Thread(target=send)
    sending.start()
    received = [
        source.receive(HEAD, lambda _, size: memoryview(bytearray(size)), nothing)
        for _ in range(40)
    ]
    sending.join(PATIENCE_SECONDS)
    assert [head for head, _ in received] == [b"%05d" % place for place in range(40)]
    assert [len(rest) for _, rest in received] == 20 * [200_000, 0]


def test_small_messages_that_arrive_together_are_separate(ends: Any) -> None:
    sender, _, source = ends
    for place in range(50):
        sender.send(b"%d" % place)
    assert [source.receive(HEAD, into(bytearray()), nothing)[0] for _ in range(50)] == [
        b"%d" % place for place in range(50)
    ]


def test_more_messages_than_one_system_call_takes_can_be_begun_together(ends: Any) -> None:
    sender, _, source = ends
    count = 2 * os.sysconf("SC_IOV_MAX") + 3
    sender.begin([(b"%05d" % place, memoryview(b"rest")) for place in range(count)])
    sender.finish()
    for place in range(count):
        head, rest = source.receive(HEAD, into(bytearray(4)), nothing)
        assert (head, bytes(rest)) == (b"%05d" % place, b"rest")


def test_a_system_without_sysconf_can_import_clients() -> None:
    program = "import os; del os.sysconf; import burn_remote.aio"  # as on Windows
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_message_that_does_not_fit_is_refused(ends: Any) -> None:
    sender, _, source = ends
    sender.send(b"head." + bytes(100))
    with pytest.raises((LimitExceeded, GarbledBytes)):
        source.receive(HEAD, lambda head, size: memoryview(bytearray(99)), nothing)


def test_a_silent_end_is_checked_again_and_again(ends: Any) -> None:
    _, _, source = ends
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ConnectionLost("long enough")

    with pytest.raises(ConnectionLost, match="long enough"):
        source.receive(HEAD, into(bytearray()), check)


def test_the_end_of_the_stream_follows_what_was_sent(ends: Any) -> None:
    sender, _, source = ends
    sender.send(b"last")
    sender.close()
    assert source.receive(HEAD, into(bytearray()), nothing)[0] == b"last"
    with pytest.raises(ConnectionLost):
        source.receive(HEAD, into(bytearray()), nothing)


def test_a_wait_ends_when_a_message_comes_or_another_thread_wakes_it(ends: Any) -> None:
    sender, _, source = ends
    source.wake()
    assert not source.wait(PATIENCE_SECONDS)
    sender.send(b"now")
    assert source.wait(PATIENCE_SECONDS)
    assert source.receive(HEAD, into(bytearray()), nothing)[0] == b"now"


def test_a_sender_stops_when_the_receiver_is_gone(ends: Any) -> None:
    sender, link, _ = ends
    link.close()
    with pytest.raises(ConnectionLost):
        for _ in range(1000):
            sender.send(bytes(100_000))


def test_the_receiver_can_still_be_heard(ends: Any) -> None:
    sender, link, source = ends
    link.send(b"heard")  # ends the server's handler, and with it the connection
    with pytest.raises(ConnectionLost):
        source.receive(HEAD, into(bytearray()), nothing)
    assert sender is not None


def test_frames_that_were_begun_come_before_later_ones(ends: Any) -> None:
    sender, _, source = ends
    large = memoryview(bytes(range(256)) * (40 * 2**20 // 256))  # more than the system buffers
    assert sender.accepts
    is_all = sender.begin([(b"head0", memoryview(b"")), (b"head1", large)])

    def send() -> None:
        sender.send_parts(b"head2", large)
        sender.send(b"head3")

    sending = threading.Thread(target=send)
    sending.start()
    received = [
        source.receive(HEAD, lambda _, size: memoryview(bytearray(size)), nothing) for _ in range(4)
    ]
    sending.join(PATIENCE_SECONDS)
    assert [head for head, _ in received] == [b"head%d" % place for place in range(4)]
    assert [rest == large for _, rest in received] == [False, True, True, False]
    assert is_all == isinstance(sender, LoopSender)


def test_a_begun_frame_is_finished_while_the_receiver_reads(ends: Any) -> None:
    sender, _, source = ends
    large = memoryview(bytes(40 * 2**20))
    is_all = sender.begin([(b"begun", large)])
    assert is_all == isinstance(sender, LoopSender)  # the event loop sends the rest itself
    assert not sender.accepts
    finishing = threading.Thread(target=sender.finish)
    finishing.start()
    head, rest = source.receive(HEAD, lambda _, size: memoryview(bytearray(size)), nothing)
    finishing.join(PATIENCE_SECONDS)
    wait_until(lambda: sender.accepts)
    assert (head, rest == large) == (b"begun", True)


def test_each_call_reports_that_the_rest_of_a_frame_is_lost(ends: Any) -> None:
    sender, link, _ = ends
    link.close()
    large = memoryview(bytes(40 * 2**20))
    with pytest.raises(ConnectionLost):
        for _ in range(1000):
            sender.begin([(b"begun", large)])
            sender.send(b"next")
    with pytest.raises(ConnectionLost):
        sender.send(b"another")
