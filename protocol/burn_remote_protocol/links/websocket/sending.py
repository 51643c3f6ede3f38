"""What waits to be written to a connection, and which thread writes it?"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from burn_remote_protocol.links.websocket.frame_writer import Piece, data_pieces, joined_pieces
from burn_remote_protocol.links.websocket.socket_streams import Channel

__all__ = ["Sender"]


class Sender:
    """Writes messages whole and one after the other, whoever sends them."""

    def __init__(self, channel: Channel, fragment_bytes: int | None) -> None:
        self._channel: Final = channel
        self._fragment_bytes: Final = fragment_bytes
        self._keys: Final[list[bytes]] = []
        # The message that is being sent, or what an interrupt left of it. Guarded by ``lock``.
        self._unsent: collections.deque[Piece] = collections.deque()
        # Control frames that came up while a message is being sent. They wait here, because a
        # receiver must not wait for a sender: neither side might ever read again.
        self._control: collections.deque[Piece] = collections.deque()
        self.lock: Final = threading.Lock()

    def send(self, head: bytes, payload: memoryview) -> None:
        """Send one message; return when the operating system took it. The lock is held.

        After an interrupt, the rest goes out before the next message. Raises ``OSError``.
        """
        self._send(lambda: data_pieces(head, payload, self._keys, self._fragment_bytes))

    def send_together(self, frames: Sequence[bytes]) -> None:
        """Send several messages, as ``send`` sends one, in as few system calls as may be."""
        self._send(lambda: joined_pieces(frames, self._keys, self._fragment_bytes))

    def _send(self, pieces: Callable[[], list[Piece]]) -> None:
        try:
            self._flush()
            self._unsent.extend(pieces())
            self._flush()
        except BaseException:
            for piece in self._unsent:
                piece.keep()
            raise

    def send_control(self, frames: Iterable[bytes] = (), timeout_seconds: float = 0) -> None:
        """Send control frames, or leave them to the sender that is busy. Raises ``OSError``.

        Call it without frames after each message, and whenever a chance should be taken to send
        what could not be sent at once.
        """
        self._control.extend(map(Piece, frames))
        while (self._control or self._unsent) and self.lock.acquire(timeout=timeout_seconds):
            try:
                while self._control:
                    self._unsent.append(self._control.popleft())
                if not self._flush(timeout_seconds):
                    return
            finally:
                self.lock.release()

    def _flush(self, timeout_seconds: float | None = None) -> bool:
        while self._unsent:
            piece = self._unsent[0]
            if not piece.done() and not self._channel.write(piece, timeout_seconds):
                return False
            if piece.done():
                self._unsent.popleft()
        return True
