"""A connection of ``websockets.asyncio`` whose data frames bypass the library's parser and queues.

``websockets`` keeps the handshake, control frames, pings and closing. Received bytes go to our own
``FrameParser``, and messages are written directly to the event loop's transport. This halves the
server's time for a small message, and avoids copies of large ones.

How it works: the event loop calls ``data_received``. It passes bytes to the library up to the end
of the HTTP headers, and later bytes to the parser. Parsed messages are queued for
``receive_message``, or for ``on_arrival``, which the connection calls itself: waking the task that
receives takes another iteration of the event loop. Whole control frames go to the library. After a
protocol violation, all bytes go to the library, which discards them.

One read of the socket may hold 40,000 tiny frames, so each iteration of the event loop parses a
bounded number of them. Until the rest is parsed, reading is paused. A connection also pauses after
a bounded number of bytes, and before it parses many bytes while others do. Connections that paused
continue in turns (``ReceiveTurns``). Only the last ping of each iteration gets a response, and none
while the peer does not read, as RFC 6455, section 5.5.3 allows.

While a long payload arrives, a ``_PayloadReader`` is the transport's protocol instead of this
connection, so that the transport stores the bytes directly in the payload's buffer. It stays until
a short frame arrives: the chunks of a tensor follow each other, and what is read together with the
header of a chunk has to be copied.

This module receives; ``async_sending`` has the base class, which sends. A server's connection can
also lend its receiving side to a thread (``server_connection``).

This depends on parts of ``websockets`` that its documentation does not promise: ``Connection`` is
an ``asyncio.Protocol`` whose callbacks may be extended, and it has the attributes ``protocol``,
``transport``, ``loop``, ``send_data`` and ``connection_lost_waiter``. ``pyproject.toml`` therefore
limits the library to versions with which the tests of this folder pass.
"""

from __future__ import annotations

import asyncio
import collections
import math
import sys
from collections.abc import Callable
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.protocol import State

from burn_remote_protocol.errors import (
    BurnRemoteError,
    GarbledBytes,
    ProtocolViolation,
)
from burn_remote_protocol.links.interface import (
    Allocate,
    Memory,
    PlaceFrame,
    Placement,
    close_code,
    short_reason,
)
from burn_remote_protocol.links.receive_limits import (
    UNCOUNTED_BYTES,
    ReceiveBudget,
    ThroughputWatchdog,
)
from burn_remote_protocol.links.websocket.async_sending import SendingConnection
from burn_remote_protocol.links.websocket.frame_parser import FrameParser
from burn_remote_protocol.links.websocket.frames import OPCODE_BITS, PING
from burn_remote_protocol.links.websocket.receive_turns import BYTES_AT_ONCE, receive_turns
from burn_remote_protocol.loop_calls import register

__all__ = ["DirectClientConnection", "DirectConnection"]

# Reading from the socket pauses while more messages than this wait for ``receive_message``. Each of
# them may be as large as the limit of a message.
RECEIVE_QUEUE_LENGTH: Final = 8

# Frames parsed in one iteration of the event loop: about 0.7 ms. ``websockets`` takes as long for
# one control frame as the parser for ``CONTROL_FRAME_COST`` frames.
FRAMES_AT_ONCE: Final = 256
CONTROL_FRAME_COST: Final = 8

# The most bytes of a long payload that are read at once: they must still be in the processor's
# cache when their mask is removed. A chunk of an upload and its headers fit: on 16 cores of a Xeon,
# receiving 256 MiB took 172 ms of processor time with whole chunks, and 200 ms with two reads each.
PAYLOAD_READ_BYTES: Final = 2**20

# The longest header of a frame (two bytes, a length of eight, and a masking key), and the longest
# head of a message for which a place is sought.
MAX_HEADER_BYTES: Final = 14
MAX_HEAD_BYTES: Final = 64

# Bytes accepted between the request and its response; a well-behaved client sends none.
EARLY_BYTES: Final = 2**16

# How often a connection that waits for room in the memory pool tries again.
STARVED_SECONDS: Final = 0.05

# A connection that seems to have lost a callback ends if it does so in this many checks in a row,
# because a check may come between two callbacks.
TORN_CHECKS: Final = 3

_HEADERS_END: Final = b"\r\n\r\n"


class DirectConnection(SendingConnection):
    """The part that a server's and a client's connection share."""

    def __init__(self, *arguments: Any, max_message_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._parser: Final = FrameParser(max_message_bytes, masked=not self._masks)
        # The last bytes of the HTTP headers so far; ``None`` after their end.
        self._handshake_tail: bytes | None = b""
        self._messages: Final[collections.deque[bytes]] = collections.deque()
        self._message_bytes = 0  # of the queued messages and the one taken last
        self._taken_bytes = 0  # of the message taken last, in use until the next is taken
        self._open_message: Callable[[bytes], Any] | None = None
        self._message_count = 0  # messages completed so far
        self._budget: ReceiveBudget | None = None
        self._watchdog: ThroughputWatchdog | None = None
        self._watchdog_timer: asyncio.TimerHandle | None = None
        self._is_starved = False  # reading is paused, because the memory pool has no room
        self._room_timer: asyncio.TimerHandle | None = None
        self.received_bytes = 0  # including those of incomplete messages
        self._pause_at = BYTES_AT_ONCE  # the value of ``received_bytes`` at the next pause
        self._turns: Final = receive_turns(self.loop)
        self._violation: BurnRemoteError | None = None  # not yet raised by ``receive_message``
        self._failed = False  # after a violation; the library discards further bytes
        self._closing = False  # this end called ``close``
        self._closes_at = math.inf  # twice the time that the closing handshake may take
        self._receiver: asyncio.Future[None] | None = None
        # Called when messages have arrived for ``receive_message``, which waits; see
        # ``AsyncLink.call_on_arrival``.
        self.on_arrival: Callable[[], None] | None = None
        # Called first for a small message that arrives alone; returns whether it took the message.
        self.on_lone_arrival: Callable[[Any], bool] | None = None
        # A thread receives in place of the event loop: this class must read nothing meanwhile.
        self._receives_elsewhere = False
        self.reading_paused = False  # the receive queue is full
        # Receives long payloads, and the headers between them, in place of this connection.
        self._payload_reader: _PayloadReader | None = None
        self._header_room: Final = memoryview(bytearray(MAX_HEADER_BYTES + MAX_HEAD_BYTES))
        self._has_unparsed = False  # reading is paused until this connection's next turn
        self._last_ping: bytes | None = None  # without a response so far
        self._has_ended = False  # the library saw the end; it must get no more control frames
        self._is_lost = False  # ``connection_lost`` has returned
        self._torn_checks = 0  # calls of ``recover`` in a row that found a torn connection
        register(self)

    @property
    def is_within_message(self) -> bool:
        """Whether a part of a message has arrived."""
        return self._parser.is_within_message

    async def receive_message(self) -> bytes:
        """Return the next message. Raises ``ConnectionClosed``, ``ProtocolViolation``."""
        if self._parser.received and not self._has_unparsed:  # arrived before the connection opened
            self._parse()
        if not self._messages:
            self._count_taken(b"")
        while not self._messages:
            if self._violation is not None:
                violation, self._violation = self._violation, None
                raise violation
            if self.state is not State.OPEN and not self._has_unparsed:
                await super().close()  # bounds the wait for the peer to close the connection
                await super().recv()  # raises the reason
            self._receiver = self.loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self.take_message()
        assert message is not None  # the loop above ended
        return message

    def take_message(self, longest: int | None = None) -> bytes | None:
        """Return the next message if one is queued that has at most ``longest`` bytes."""
        messages = self._messages
        if not messages:
            return None
        size = len(messages[0])
        if longest is not None and size > longest:
            return None
        message = messages.popleft()
        # ``_count_taken``, inlined for the usual case.
        self._message_bytes -= self._taken_bytes
        self._taken_bytes = size
        if self._budget is not None and self._budget.held_bytes:
            self._count_received()
        if self.reading_paused and len(messages) <= RECEIVE_QUEUE_LENGTH // 2:
            self._resume_reading()
        return message

    def open_messages(self, open_message: Callable[[bytes], Any]) -> None:
        """Queue from now on what ``open_message`` returns for each message.

        If it raises ``GarbledBytes``, ``receive_message`` raises that after the messages before it.
        """
        queued = [*self._messages]
        self._clear_messages()
        self._open_message = open_message
        for message in queued:
            self._open(message)

    def limit_messages(self, max_message_bytes: int, allocate: Allocate | None = None) -> None:
        """Set another size limit, and the source of memory, for messages received from now on."""
        self._parser.max_message_bytes = max_message_bytes
        self._parser.allocate = allocate

    def place_messages(self, head_bytes: int, place: PlaceFrame) -> None:
        """Store the rest of long messages where ``place`` says; see ``AsyncLink.place_frames``."""

        def place_next(head: bytes, size: int) -> Placement | None:
            receiver = self._receiver
            if receiver is None or receiver.done() or self._messages:
                return None  # a message before this one was not received yet
            return place(head, size)

        # On Windows, asyncio reads ahead: ``is_valid`` would be called too early.
        if sys.platform != "win32":
            self._parser.place_frames(min(head_bytes, MAX_HEAD_BYTES), place_next)

    def count_received(
        self, memory: Memory, stall_seconds: float, urgent_bytes: int | None = None
    ) -> None:
        """Count messages against ``memory`` from now on; see ``AsyncLink.count_received``.

        Also from now on, close the connection if an incomplete message arrives with less than
        ``MIN_BYTES_PER_SECOND``, averaged over a stall time.
        """
        self._budget = ReceiveBudget(memory, urgent_bytes)
        self._watchdog = ThroughputWatchdog(stall_seconds)
        self._count_received()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Perform the closing handshake and drop messages that were not received.

        If the peer began the handshake, queued messages can still be received.
        """
        if self.state is State.OPEN:
            self._closing = True
            self._clear_messages()
            if not self._receives_elsewhere:  # else the thread that receives uses the parser
                self._parser.drop_messages()
        if self.close_timeout is not None:
            self._closes_at = min(self._closes_at, self.loop.time() + 2 * self.close_timeout)
        self._end_starving()
        self._resume_reading()
        await super().close(code, reason)

    # -- callbacks of the event loop's transport ---------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._handshake_tail is not None:
            data = self._pass_handshake(data, self._handshake_tail)
            if not data:
                return
        if self._failed:
            super().data_received(data)
            return
        self.received_bytes += len(data)
        if self._take_alone(data):
            return
        # The bytes of a long payload are counted after they are stored.
        counts_now = not self._parser.has_room
        self._parser.received.append(data)
        if self.protocol.state is not State.CONNECTING:
            if not self._has_unparsed:
                self._parse_in_turns(len(data), counts_now=counts_now)
            # Almost all data are whole small messages, which do not count.
            if self._budget is not None and (
                self._budget.held_bytes
                or self._message_bytes > UNCOUNTED_BYTES
                or self._has_unparsed
                or self._parser.is_within_message
            ):
                self._count_received()
            if self._parser.has_room:
                self._begin_payload()
        elif sum(map(len, self._parser.received)) > EARLY_BYTES:
            self.transport.abort()

    def _parse_in_turns(self, size: int, *, counts_now: bool) -> None:
        """Parse received bytes now, or in a later turn if other connections parse many bytes now.

        ``size`` bytes have just arrived. ``counts_now``: they do not continue a long payload.
        """
        if counts_now and self._turns.must_wait(size):
            self._parse_later()
            return
        self._parse()
        self._pause_in_turns(size if self._parser.has_room else 0)

    def _take_alone(self, data: bytes) -> bool:
        """Take received bytes if they are one whole small message; return whether they are.

        Almost all are, and the general path takes several times as long. A task must be waiting.
        """
        parser, receiver = self._parser, self._receiver
        if receiver is None or receiver.done() or self._messages or self._closing:
            return False  # the task that receives is busy with earlier messages
        if self._has_unparsed or not parser.is_empty:
            return False
        message = parser.take_alone(data)
        if message is None:
            return False
        self._message_count += 1
        if not self._is_taken(message, receiver):
            self._pass_on()
        elif self.protocol.state is not State.OPEN:
            self._wake_receiver()
        if self.received_bytes >= self._pause_at:
            self._pause_in_turns(0)
        budget = self._budget
        if budget is not None and (budget.held_bytes or self._message_bytes > UNCOUNTED_BYTES):
            self._count_received()
        return True

    def _is_taken(self, message: bytes, receiver: asyncio.Future[None]) -> bool:
        """Offer a message to ``on_lone_arrival``, or queue it; return whether it was taken."""
        take = self.on_lone_arrival
        try:
            frame = message if self._open_message is None else self._open_message(message)
        except GarbledBytes as error:
            self._violation = self._violation or error
            return False
        try:
            if take is not None and take(frame):
                return True
        except Exception as error:  # raised where messages are received, not in the event loop
            if not receiver.done():
                receiver.set_exception(error)
            return True
        self._messages.append(frame)
        self._message_bytes += len(frame)
        return False

    def eof_received(self) -> None:
        self._has_ended = True
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return  # ``recover`` has called this
        self._has_ended = True
        if not self.connection_lost_waiter.done():
            super().connection_lost(exc)
        self._wake_receiver()
        self._is_lost = True  # last, because a failed call is repeated

    def recover(self) -> None:
        """End a connection that lost a callback of the event loop, for lack of memory.

        It reads nothing although it should, its transport has closed without a callback, or the
        closing handshake should have timed out.
        """
        is_torn = self._is_torn() or self.loop.time() > self._closes_at
        self._torn_checks = self._torn_checks + 1 if is_torn and not self._is_lost else 0
        if self._torn_checks == TORN_CHECKS:
            self.transport.abort()
        elif self._torn_checks >= 2 * TORN_CHECKS:
            self._lose()

    def _lose(self) -> None:
        """Do what ``connection_lost`` should have done, for all who wait for the end."""
        try:
            self.connection_lost(None)
        except Exception:  # an earlier call has failed in the middle, and left a part undone
            self.protocol.state = State.CLOSED
            self.recv_messages.close()
            if not self.connection_lost_waiter.done():
                self.connection_lost_waiter.set_result(None)
            self._wake_receiver()
            self._is_lost = True

    def _is_torn(self) -> bool:
        transport = getattr(self, "transport", None)
        if transport is None or self._is_lost:
            return False
        if transport.is_closing():
            return bool(transport.get_write_buffer_size() == 0)
        must_read = not (
            self.reading_paused
            or self._is_starved
            or self._has_unparsed
            or self._receives_elsewhere
            or self._has_ended
        )
        return must_read and not transport.is_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._respond_to_ping()

    def resume_control_frames(self) -> None:
        self._respond_to_ping()

    def _pass_handshake(self, data: bytes, tail: bytes) -> bytes:
        """Pass the HTTP headers to the library; return the bytes that follow them.

        The body of a response that refuses the connection is also passed.
        """
        seen = tail + data
        end = seen.find(_HEADERS_END)
        if end < 0:
            self._handshake_tail = seen[1 - len(_HEADERS_END) :]
            super().data_received(data)
            return b""
        self._handshake_tail = None
        split = end + len(_HEADERS_END) - len(tail)
        super().data_received(data[:split])
        rest = data[split:]
        if self._masks and self.state is State.CONNECTING:  # refused: the body follows
            self._handshake_tail = b""
            super().data_received(rest)
            return b""
        return rest

    def payload_room(self) -> memoryview:
        """Return memory for the next bytes of the payload in progress, or of the next header."""
        parser = self._parser
        if parser.has_room:
            return parser.room(PAYLOAD_READ_BYTES)
        return self._header_room[: parser.bytes_to_read()]

    def payload_received(self, count: int) -> None:
        """Parse the ``count`` bytes that were stored in ``payload_room``."""
        self.received_bytes += count
        parser = self._parser
        if parser.has_room:
            parser.add(count)
            if not parser.has_room:
                self._parse()
            self._pause_in_turns(count)
        else:
            parser.received.append(bytes(self._header_room[:count]))
            self._parse()
        if not (parser.has_room or parser.expects_bulk):
            self._end_payload()
        if self._budget is not None:
            self._count_received()

    def _begin_payload(self) -> None:
        self._payload_reader = _PayloadReader(self)
        self._receive_with(self._payload_reader)

    def _end_payload(self) -> None:
        if self._payload_reader is not None:
            self._payload_reader = None
            self._receive_with(self)

    def _receive_with(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol that the transport calls."""
        is_reading = self.transport.is_reading()
        if is_reading:  # uvloop chooses how to read when it starts
            self.transport.pause_reading()
        self.transport.set_protocol(protocol)
        if is_reading:
            self.transport.resume_reading()

    def _pause_in_turns(self, long_bytes: int) -> None:
        """Let other connections receive; ``long_bytes`` of a long payload have just arrived."""
        if self.received_bytes >= self._pause_at or (
            long_bytes and self._turns.must_pause(long_bytes)
        ):
            self._pause_at = self.received_bytes + BYTES_AT_ONCE
            self._parse_later()

    def _parse(self) -> None:
        """Parse received bytes, as many frames as one iteration of the event loop allows."""
        parser, budget = self._parser, FRAMES_AT_ONCE
        try:
            while budget > 0:
                messages = parser.take_whole(budget)
                budget -= len(messages)
                self._message_count += len(messages)
                for whole in messages:
                    self._open(whole)
                message = parser.take(budget)
                budget -= parser.fragments_taken + 1
                if message is not None:
                    self._message_count += 1
                    self._open(message)
                elif parser.control:
                    budget -= self._handle_control(parser.control.popleft())
                elif budget > 0:
                    break
            else:
                self._parse_later()
            if self._last_ping is not None:
                self._respond_to_ping()
        except ProtocolViolation as error:
            self._refuse(error)
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass queued messages to those who receive them; pause reading if many are left."""
        if self._closing:
            self._clear_messages()
        elif self._messages and self.on_arrival is not None:
            self._call_on_arrival(self.on_arrival)
        if len(self._messages) > RECEIVE_QUEUE_LENGTH and not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()
        receiver = self._receiver
        if (
            receiver is not None
            and not receiver.done()
            and (self._messages or self._violation or self.protocol.state is not State.OPEN)
        ):
            receiver.set_result(None)

    def _call_on_arrival(self, handler: Callable[[], None]) -> None:
        if self._receiver is None or self._receiver.done():
            return  # the task that receives is busy with earlier messages
        try:
            handler()
        except Exception as error:  # raised where messages are received, not in the event loop
            if not self._receiver.done():
                self._receiver.set_exception(error)
        if not self._messages:
            # The handler has also finished with the last message. The callers update the budget.
            self._message_bytes = self._taken_bytes = 0

    def _open(self, message: bytes) -> None:
        """Queue a message. A checksum is compared here, while the message is in the cache."""
        if self._closing:
            return  # its bytes were dropped
        if self._open_message is not None:
            try:
                message = self._open_message(message)
            except GarbledBytes as error:
                self._violation = self._violation or error
                return
        self._messages.append(message)
        self._message_bytes += len(message)

    def _parse_later(self) -> None:
        """Continue parsing in this connection's next turn."""
        if self._has_unparsed:
            return
        self._has_unparsed = True
        if not self._has_ended:
            self.transport.pause_reading()
        self._turns.wait(self._parse_rest)

    def _parse_rest(self) -> None:
        try:
            self._parse_more()
        except BaseException:
            # It would read no more. The transport does this for errors in its own callbacks.
            self.transport.abort()
            raise

    def _parse_more(self) -> None:
        self._has_unparsed = False
        self._parse()
        if not self._has_unparsed:
            if self._budget is not None and not self._has_ended:
                self._count_received()
            if self._parser.has_room and self._payload_reader is None and not self._has_ended:
                self._begin_payload()
            self._read_on()

    def _handle_control(self, frame: bytes) -> int:
        """Keep a ping for ``_respond_to_ping``, and pass other control frames to the library.

        Returns the cost, in frames.
        """
        if frame[0] & OPCODE_BITS == PING:
            self._last_ping = frame
            return 0
        if not self._has_ended:
            super().data_received(frame)
        return CONTROL_FRAME_COST

    def _respond_to_ping(self) -> None:
        """Respond to the last ping, if the peer reads what it is sent."""
        if self._last_ping is None or self._writing_paused or self.sends_elsewhere:
            return
        ping, self._last_ping = self._last_ping, None
        if not self._has_ended:
            super().data_received(ping)

    def _count_taken(self, message: bytes) -> None:
        """Count the message taken before as freed, and this one as in use."""
        self._message_bytes -= self._taken_bytes
        self._taken_bytes = len(message)
        if self._budget is not None and self._budget.held_bytes:
            self._count_received()

    def _count_received(self) -> None:
        if self._hold_received():
            if self._is_starved and self._restart_after_wait() and self._watchdog_timer is not None:
                self._watchdog_timer.cancel()
                self._watchdog_timer = None  # measured from now on
            self._end_starving()
        elif not self._is_starved:
            self._is_starved = True
            self.transport.pause_reading()
            self._look_for_room_later()
        if (
            self._watchdog_timer is None
            and self._watchdog is not None
            and self._parser.is_within_message
        ):
            self._watchdog.is_fast_enough(self._message_count, self.received_bytes)
            self._watchdog_timer = self.loop.call_later(
                self._watchdog.stall_seconds, self._check_throughput
            )

    def _hold_received(self) -> bool:
        assert self._budget is not None  # the callers check it
        return self._budget.hold(self._parser.held_bytes + self._message_bytes)

    def _restart_after_wait(self) -> bool:
        assert self._watchdog is not None  # ``count_received`` makes it together with the budget
        return self._watchdog.restart_after_wait(self._message_count, self.received_bytes)

    def _look_for_room(self) -> None:
        if not self._is_starved or self.state is not State.OPEN:
            return
        self._count_received()
        if self._is_starved:
            self._look_for_room_later()

    def _look_for_room_later(self) -> None:
        if self._room_timer is not None:
            self._room_timer.cancel()  # of an earlier lack of room, which has ended since
        self._room_timer = self.loop.call_later(STARVED_SECONDS, self._look_for_room)

    def _check_throughput(self) -> None:
        assert self._watchdog is not None  # it set the timer
        self._watchdog_timer = None
        if not self._parser.is_within_message or self.state is not State.OPEN:
            return
        if self._receives_elsewhere:
            return  # ``_count_received`` starts the timer again when the thread has finished
        if self.reading_paused and not self._is_starved:
            self._watchdog.reset()  # this end paused reading
        elif not self._watchdog.is_fast_enough(self._message_count, self.received_bytes):
            # Messages that wait for each other's room are slow at the same time. When one of them
            # has ended, the others may have room.
            if not (self._is_starved and self._hold_received() and self._restart_after_wait()):
                self._refuse(self._watchdog.failure(is_starved=self._is_starved))
                return
            self._end_starving()
        self._watchdog_timer = self.loop.call_later(
            self._watchdog.stall_seconds, self._check_throughput
        )

    def _refuse(self, violation: BurnRemoteError) -> None:
        self._violation = violation
        self._failed = True
        self._end_payload()
        self._parser.discard()
        self.protocol.fail(close_code(violation), short_reason(str(violation)))
        super().data_received(b"")  # makes the library send the close frame
        self._end_starving()  # read on, to receive the peer's close frame
        if self._budget is not None:
            self._budget.hold(0)
        self._wake_receiver()

    def _resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            self._read_on()

    def _end_starving(self) -> None:
        if self._is_starved:
            self._is_starved = False
            self._read_on()

    def _read_on(self) -> None:
        """Resume reading, unless a reason to pause remains."""
        is_paused = self.reading_paused or self._is_starved or self._has_unparsed
        if not is_paused and not self._has_ended and not self._receives_elsewhere:
            self.transport.resume_reading()

    def _clear_messages(self) -> None:
        self._messages.clear()
        self._message_bytes = self._taken_bytes = 0

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)


class _PayloadReader(asyncio.BufferedProtocol):
    """A protocol whose transport stores the bytes of one long payload directly in its buffer."""

    def __init__(self, connection: DirectConnection) -> None:
        self._connection: Final = connection

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # a larger buffer needs fewer reads
        return self._connection.payload_room()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.payload_received(nbytes)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class DirectClientConnection(DirectConnection, ClientConnection):
    """A client's connection, for ``websockets.asyncio.client.connect(create_connection=…)``."""
