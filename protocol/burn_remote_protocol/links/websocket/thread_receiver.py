"""A server's connection while a thread receives from it, and sends the replies.

The event loop lends it to the thread that executes the messages. While that thread works, the
system keeps what arrives. Otherwise each message would wake the event loop's thread, and both
threads would wait for the interpreter's lock.

The thread returns it when nothing arrives for a while, and for everything that is not a whole small
message: a control frame, a long payload, an error, the end of the connection.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Final

from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES, FrameParser
from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, frame_header

__all__ = ["CAN_LEND", "ThreadReceiver"]

# Without ``poll`` (on Windows), a thread cannot wait for a socket that the event loop owns.
CAN_LEND: Final = hasattr(select, "poll")

# Most messages returned at once.
MESSAGES_AT_ONCE: Final = 256

# Most reads for one ``receive``. A peer that sends single bytes must not keep the thread waiting:
# only the event loop notices that a message arrives too slowly.
READS_AT_ONCE: Final = 16


class ThreadReceiver:
    """Receives and sends whole small messages in one thread.

    Other threads call only ``close`` and ``stop``.

    ``messages``, ``received_bytes``, ``sent_bytes``, ``unread`` and ``violation`` are for the
    connection, after ``give_back``: the number of messages and of bytes received, the number of
    bytes sent, the messages that nobody has handled, and the error that the parser raised.
    """

    def __init__(
        self,
        descriptor: int,
        parser: FrameParser,
        unsent_bytes: Callable[[], int],
        write: Callable[[bytes], None],
        returned: Callable[[], None],
    ) -> None:
        """The functions are called in the thread.

        ``unsent_bytes`` returns how many bytes the event loop's transport has not sent yet, and
        ``write`` gives it bytes to send. ``give_back`` calls ``returned``.
        """
        self._descriptor: Final = descriptor
        self._parser: Final = parser
        self._unsent_bytes: Final = unsent_bytes
        self._write: Final = write
        self._returned: Final = returned
        self._poll: Final = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        # Held for reads that do not wait, and to close: the system may give the descriptor of a
        # closed connection to another one.
        self._lock: Final = threading.Lock()
        self._is_over = False  # the event loop must continue
        self.is_returned = False  # the thread has called ``give_back``
        self._is_full = False  # the system did not take all bytes of a frame
        self.messages = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.unread: Sequence[bytes] = ()
        self.violation: ProtocolViolation | None = None

    def receive(self, timeout_seconds: float) -> list[bytes]:
        """Return the messages that have arrived; wait for the first one.

        Returns none if none arrives in time, or if the event loop must continue.
        """
        parser = self._parser
        is_empty = parser.is_empty
        for _ in range(READS_AT_ONCE):
            if self._is_over:
                break
            if not is_empty:
                messages = self._parsed()
                if messages:
                    self.messages += len(messages)
                    return messages
                if self._is_over:
                    break
            # Not after an attempt to read: if nothing has arrived, that raises an exception, which
            # takes longer than the call that saves it.
            if not self._poll.poll(timeout_seconds * 1000):
                break
            data = self._read()
            if not data:
                break  # the event loop's own read finds the end as well
            self.received_bytes += len(data)
            if is_empty:
                # Most small messages arrive alone, and the general way takes twice as long.
                message = parser.take_alone(data)
                if message is not None:
                    self.messages += 1
                    return [message]
                is_empty = False
            parser.received.append(data)
        return []

    def give_back(self, unread: Sequence[bytes] = ()) -> None:
        """Return the connection's receiving side; ``unread`` are messages not handled yet."""
        self.unread = unread
        self._is_over = True
        self.is_returned = True  # before the call, which may fail for lack of memory
        self._returned()

    def stop(self) -> None:
        """Make the thread return the receiving side after its current work, and send no more."""
        with self._lock:
            self._is_over = True

    def close(self) -> None:
        """Read nothing more, because the descriptor is about to be closed."""
        with self._lock:
            self._is_over = True

    def send(self, frame: bytes) -> bool:
        """Send a small frame unless that would have to wait; return whether it is on its way."""
        data = frame_header(FINAL_BIT | BINARY, len(frame)) + frame
        with self._lock:
            if self._is_over or self._is_full or self._unsent_bytes():
                return False
            try:
                count = os.write(self._descriptor, data)
            except OSError:  # the system has no room, or the connection has ended
                return False
            self.sent_bytes += len(data)
            if count < len(data):
                self._is_full = True
                self._write(data[count:])
        return True

    def _parsed(self) -> list[bytes]:
        """Return whole messages; note what the event loop must continue."""
        parser = self._parser
        messages: list[bytes] = []
        try:
            while len(messages) < MESSAGES_AT_ONCE:
                messages += parser.take_whole(MESSAGES_AT_ONCE - len(messages))
                if len(messages) == MESSAGES_AT_ONCE:
                    break
                if not parser.ready():
                    if parser.is_within_long_frame:
                        self._is_over = True
                    break
                message = parser.take(1)
                if message is None:  # a control frame, or one fragment of several
                    self._is_over = True
                    break
                messages.append(message)
        except ProtocolViolation as error:
            self.violation = error
            self._is_over = True
        return messages

    def _read(self) -> bytes:
        """Return bytes that have arrived; none at the end."""
        with self._lock:
            if self._is_over:
                return b""
            try:
                return os.read(self._descriptor, READ_BYTES)
            except OSError:  # the connection has ended, or another reader was faster
                return b""
