"""The fuzz target for the transport Iroh: a listener over streams in memory.

The bytes of an input arrive in pieces on one stream. The listener reads the opening, and its link
reads the frames. What the link delivers is compared with a parser that has all bytes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.iroh import listening, stream_link
from burn_remote_protocol.links.iroh.endpoints import BURN_ALPN, NATIVE_ALPN
from burn_remote_protocol.links.iroh.framing import (
    HEADER_BYTES,
    MAX_CONTROL_BYTES,
    Kind,
    close_payload,
    frame_header,
)
from burn_remote_protocol.links.iroh.library import iroh
from burn_remote_protocol.links.iroh.listening import IrohListener
from burn_remote_protocol.links.iroh.opening import (
    MAX_OPENING_BYTES,
    burn_header,
    read_burn_header,
    read_request,
    request,
)
from burn_remote_protocol.links.transport_interface import Request

__all__ = ["iroh_seeds", "iroh_stream"]

MAX_MESSAGE_BYTES: Final = 1024
# More than the listener and its link need for an input of 4 KiB; only a hang takes as long.
PATIENCE_SECONDS: Final = 20.0

_NATIVE: Final = 1  # the bit of an input's first byte that selects native connections


class _Broken(iroh.IrohError):  # type: ignore[misc]  # the package has no types
    """The connection has ended."""

    def __init__(self) -> None:
        Exception.__init__(self, "closed")

    def message(self) -> str:
        return "closed"


class _Incoming:
    """A connection of one stream, whose bytes arrive in pieces, with all parts of its library."""

    def __init__(self, alpn: bytes, pieces: Iterator[bytes]) -> None:
        self._alpn: Final = alpn
        self._pieces: Final = pieces
        self._left = b""
        self._is_opened = False
        self.written = bytearray()
        self.is_closed = asyncio.Event()

    # The handshake.
    async def remote_addr_validated(self) -> bool:
        return True

    async def remote_addr(self) -> Any:
        return iroh.IncomingAddr.IP("127.0.0.1:7")

    async def accept(self) -> _Incoming:
        return self

    async def connect(self) -> _Incoming:
        return self

    # The connection.
    def alpn(self) -> bytes:
        return self._alpn

    def remote_id(self) -> str:
        return "a client"

    def close(self, code: int, reason: bytes) -> None:
        self.is_closed.set()

    def close_reason(self) -> str | None:
        return "closed" if self.is_closed.is_set() else None

    async def closed(self) -> None:
        await self.is_closed.wait()

    async def accept_uni(self) -> None:
        await self.is_closed.wait()
        raise _Broken

    async def accept_bi(self) -> _Incoming:
        if self._is_opened:
            await self.is_closed.wait()
            raise _Broken
        self._is_opened = True
        return self

    # The stream, and both of its directions.
    def send(self) -> _Incoming:
        return self

    def recv(self) -> _Incoming:
        return self

    async def read(self, size: int) -> bytes:
        await asyncio.sleep(0)
        if self.is_closed.is_set():
            raise _Broken
        if not self._left:
            self._left = next(self._pieces, b"")
        read, self._left = self._left[:size], self._left[size:]
        return read

    async def read_exact(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            more = await self.read(size - len(read))
            if not more:
                raise _Broken
            read += more
        return read

    async def finish(self) -> None:
        await asyncio.sleep(0)

    async def stopped(self) -> None:
        await asyncio.sleep(0)

    async def reset(self, code: int) -> None:
        await asyncio.sleep(0)

    async def stop(self, code: int) -> None:
        await asyncio.sleep(0)
        self.is_closed.set()  # the client leaves when the server has given up its only stream


async def _write_all(stream: _Incoming, buffers: Sequence[bytes | memoryview]) -> None:
    await asyncio.sleep(0)
    if stream.is_closed.is_set():
        raise _Broken
    stream.written += b"".join(buffers)


class _Endpoint:
    """An endpoint that accepts one connection."""

    def __init__(self, incoming: _Incoming) -> None:
        self._waiting: Final = [incoming]

    async def accept_next(self) -> _Incoming | None:
        return self._waiting.pop() if self._waiting else None


class _Gate:
    """Counts what is open."""

    def __init__(self) -> None:
        self.open = 0

    def enter(self, address: str) -> tuple[bool, str]:
        self.open += 1
        return True, ""

    def leave(self, address: str) -> None:
        self.open -= 1

    def record_rejection(self, reason: str, now_seconds: float) -> None:
        raise AssertionError("nothing is rejected")


def iroh_stream(data: bytes) -> None:
    """Serve one stream: its messages are delivered whatever the pieces, and nothing is left."""
    if len(data) < 2:
        return
    is_native = bool(data[0] & _NATIVE)
    asyncio.run(_serve(is_native, 1 + data[1] % 64, data[2:]))


async def _serve(is_native: bool, piece_bytes: int, sent: bytes) -> None:
    pieces = (sent[at : at + piece_bytes] for at in range(0, len(sent), piece_bytes))
    incoming = _Incoming(NATIVE_ALPN if is_native else BURN_ALPN, pieces)
    seen: list[str] = []
    messages: list[bytes] = []
    gate = _Gate()

    async def handle(link: AsyncLink, asked: Request) -> None:
        seen.append(asked.path)
        with contextlib.suppress(ConnectionLost, ProtocolViolation):
            while True:
                messages.append(await link.receive())

    with (
        patch.object(stream_link, "write_all", _write_all),
        patch.object(listening, "write_all", _write_all),
    ):
        async with asyncio.timeout(PATIENCE_SECONDS):
            listener = IrohListener(
                _Endpoint(incoming), handle, None, gate, None, MAX_MESSAGE_BYTES
            )
            others = asyncio.all_tasks() - {asyncio.current_task()}
            while others:  # the tasks of the listener and of its link
                await asyncio.wait(others)
                others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not listener._tasks
    assert gate.open == 0, f"{gate.open} connections still count"
    assert incoming.is_closed.is_set()
    opened, expected = _expected(is_native, sent)
    assert len(seen) == opened, f"{len(seen)} links were opened, expected {opened}"
    assert messages == expected, f"{messages} were delivered, expected {expected}"
    assert len(incoming.written) <= 2 * len(sent) + 1024, "the answers are longer than the input"


def _expected(is_native: bool, sent: bytes) -> tuple[int, list[bytes]]:
    """Return the number of links that the bytes open, and the messages that they contain."""
    size = int.from_bytes(sent[:HEADER_BYTES], "little")
    place = HEADER_BYTES + size
    if size > MAX_OPENING_BYTES or place > len(sent):
        return 0, []
    read: Callable[[bytes], Request] = read_request if is_native else read_burn_header
    try:
        read(sent[HEADER_BYTES:place])
    except ProtocolViolation:
        return 0, []
    found = []
    while place + HEADER_BYTES <= len(sent):
        header = int.from_bytes(sent[place : place + HEADER_BYTES], "little")
        size, kind = (header & (1 << 56) - 1, header >> 56) if is_native else (header, 0)
        allowed = MAX_CONTROL_BYTES if kind else MAX_MESSAGE_BYTES
        place += HEADER_BYTES + size
        if kind > Kind.CLOSE or size > allowed or place > len(sent) or kind == Kind.CLOSE:
            break
        if kind == Kind.MESSAGE:
            found.append(sent[place - size : place])
    return 1, found


def iroh_seeds() -> Iterator[bytes]:
    """Yield connections with all kinds of frames, in pieces of several sizes."""
    frames = [
        frame_header(len(payload), kind) + payload
        for kind, payload in (
            (Kind.MESSAGE, b"first"),
            (Kind.PING, b"sign"),
            (Kind.MESSAGE, b""),
            (Kind.PONG, b""),
            (Kind.MESSAGE, bytes(MAX_MESSAGE_BYTES)),
            (Kind.PING, bytes(MAX_CONTROL_BYTES)),
            (Kind.CLOSE, close_payload(4000, "bye")),
            (Kind.MESSAGE, b"too late"),
        )
    ]
    native = request("/session", {"name": "value"})
    burn = burn_header("/session")
    for piece in (0, 6, 63):
        yield bytes((_NATIVE, piece)) + native + b"".join(frames)
        yield bytes((0, piece)) + burn + frames[0] + frames[2] + frames[4]
    yield bytes((_NATIVE, 63)) + native + bytes(7) + b"\7"
    yield bytes((0, 63)) + burn + frame_header(2**63)
    yield bytes((_NATIVE, 63)) + native + frame_header(MAX_CONTROL_BYTES + 1, Kind.PING)
    yield bytes((0, 63)) + burn_header("/tensor") + frames[0][:-1]
    yield bytes((_NATIVE, 9)) + frame_header(MAX_OPENING_BYTES + 1)
