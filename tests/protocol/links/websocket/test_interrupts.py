"""A ``KeyboardInterrupt`` at any time leaves a link intact."""

from __future__ import annotations

import contextlib
import signal
import struct
from collections.abc import Iterator
from types import FrameType

import pytest

from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.links.websocket import blocking_link
from burn_remote_protocol.links.websocket.blocking_link import BACKGROUND_BYTES
from burn_remote_protocol.links.websocket.frame_writer import MAX_DETACHMENTS, OutgoingBuffer
from support.link_ends import in_thread, pattern, send_all
from support.link_servers import link_server
from support.waiting import PATIENCE_SECONDS

LINKS = "burn_remote_protocol.links.websocket"


class Interrupted(BaseException):
    """Takes the place of KeyboardInterrupt, which would end the test run if it escaped."""


@contextlib.contextmanager
def frequent_interrupts(interval_seconds: float) -> Iterator[None]:
    """Raise ``Interrupted`` repeatedly in this thread while a link's code is running."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame and frame.f_globals.get("__package__") == LINKS:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, interval_seconds, interval_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interrupts_while_receiving_lose_nothing() -> None:
    frames = [pattern(size) for size in (10, 1_000_000, 70_000, 3, 2_000_000) * 20]
    with link_server() as server:
        link = connect(server.address)
        end = server.accept()
        sending = in_thread(send_all, end, frames)
        received: list[bytes | memoryview | None] = []
        with frequent_interrupts(0.001):
            while len(received) < len(frames):
                with contextlib.suppress(Interrupted):
                    received.append(link.receive(None))
        assert received == frames
        sending.result(PATIENCE_SECONDS)
        link.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_interrupts_while_sending_leave_each_frame_whole_or_unsent(
    monkeypatch: pytest.MonkeyPatch, in_background: bool
) -> None:
    monkeypatch.setattr(blocking_link, "has_spare_core", lambda: in_background)
    with link_server() as server:
        link = connect(server.address)
        end = server.accept()

        def receive_all() -> list[bytes]:
            found = [end.receive()]
            while found[-1][4:] != b"last":
                found.append(end.receive())
            return found

        receiving = in_thread(receive_all)
        sent = set()
        content = pattern(BACKGROUND_BYTES)
        payload = bytearray(content)
        constant = memoryview(content)
        with frequent_interrupts(0.001):
            for number in range(300):
                payload[:] = content
                with contextlib.suppress(Interrupted):
                    head = struct.pack("!I", number)
                    if in_background:
                        link.send_parts(head, constant, is_constant=True)
                    else:
                        link.send_parts(head, memoryview(payload))
                    sent.add(number)
                payload[:] = bytes(len(content))
        link.send(struct.pack("!I", 300) + b"last")
        found = receiving.result(2 * PATIENCE_SECONDS)
        numbers = [struct.unpack("!I", frame[:4])[0] for frame in found]
        assert all(frame[4:] == content for frame in found[:-1])
        assert numbers == sorted(set(numbers))
        assert sent <= set(numbers)
        link.close()


def test_copying_gets_on_although_interrupts_come_faster_than_it_copies() -> None:
    content = pattern(64 * 2**20)  # takes several milliseconds
    memory = bytearray(content)
    buffer = OutgoingBuffer(memoryview(memory), bytes(4))
    with frequent_interrupts(0.001):
        for _ in range(MAX_DETACHMENTS):
            with contextlib.suppress(Interrupted):
                buffer.detach()
    assert not buffer.borrows
    memory[:] = bytes(len(memory))
    assert buffer.unsent() == content
