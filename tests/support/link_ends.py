"""What do tests of links say again and again?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from burn_remote_protocol.links.interface import (
    NORMAL_CLOSURE,
    BlockingLink,
)
from support.link_servers import PATIENCE_SECONDS

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

# Around every length at which the header of a WebSocket frame, or the way a frame is read, changes.
SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 131_072, 2**20 - 1, 2**20 + 3)

SENDERS = 8


class FarEnd(Protocol):
    """The other end of a link under test. Every call waits, but not for long."""

    def send(self, frame: bytes) -> None: ...
    def send_parts(self, head: bytes, payload: memoryview) -> None: ...
    def receive(self) -> bytes | None: ...
    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None: ...
    def vanish(self) -> None: ...


class OpenPair(Protocol):
    """Opens a link and gives its other end; both live until the test ends."""

    def __call__(self, max_message_bytes: int = ...) -> tuple[BlockingLink, FarEnd]: ...


def pattern(size: int) -> bytes:
    """Return bytes in which a shift, a swap or a hole shows."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def in_thread(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call a function in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    # Daemon: a call that hangs fails its test, and must not keep the interpreter alive as well.
    threading.Thread(target=run, daemon=True).start()
    return future


def send_all(end: BlockingLink | FarEnd, frames: list[bytes]) -> None:
    for frame in frames:
        end.send(frame)


def take(link: BlockingLink) -> bytes:
    """Receive one frame, within the patience of a test."""
    frame = link.receive(PATIENCE_SECONDS)
    assert frame is not None, "no frame came"
    return frame
