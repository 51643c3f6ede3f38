"""Common parts of the tests of links."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from burn_remote_protocol.links.interface import (
    NORMAL_CLOSURE,
    BlockingLink,
)
from support.waiting import PATIENCE_SECONDS

__all__ = [
    "SENDERS",
    "SIZES",
    "FarEnd",
    "OpenPair",
    "in_thread",
    "pattern",
    "send_all",
    "take",
]

T = TypeVar("T")

# Lengths around each change of the WebSocket frame header or of the way a frame is read.
SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 131_072, 2**20 - 1, 2**20 + 3)

SENDERS = 8


class FarEnd(Protocol):
    """The other end of a link under test. Every call waits, with a timeout."""

    def send(self, frame: bytes) -> None: ...
    def send_parts(self, head: bytes, payload: memoryview) -> None: ...
    def receive(self) -> bytes | memoryview | None: ...
    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None: ...
    def vanish(self) -> None: ...


class OpenPair(Protocol):
    """Open a link and return its other end; both stay open until the test ends."""

    def __call__(self, max_message_bytes: int = ...) -> tuple[BlockingLink, FarEnd]: ...


def pattern(size: int) -> bytes:
    """Return bytes that reveal shifted, swapped or missing parts."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def in_thread(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call a function in a new thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    # Daemon: a hanging call fails its test and must not keep the interpreter alive.
    threading.Thread(target=run, daemon=True).start()
    return future


def send_all(end: BlockingLink | FarEnd, frames: list[bytes]) -> None:
    for frame in frames:
        end.send(frame)


def take(link: BlockingLink) -> bytes | memoryview:
    """Receive one frame within the timeout of a test."""
    frame = link.receive(PATIENCE_SECONDS)
    assert frame is not None, "no frame came"
    return frame
