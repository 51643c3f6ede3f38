"""The acceptor of a listening port: it accepts and counts connections before any other work.

An event loop's own server starts each connection that it accepts, at about 0.4 ms for a WebSocket
handshake. In a flood of connections the system's queue overflows meanwhile; the system then drops
packets of new clients, which they send again after a second. Accepting costs only 20 µs. So this
acceptor empties the queue first, counts each connection in the gate, and waits for its first bytes.
Then it starts a few connections in each iteration of the event loop: urgent requests first, and
then one connection of each address in turn. So a flood delays a health check, or a client at
another address, by no more than the few connections that start in the same iteration.

An urgent request that has arrived as a whole is answered at once, without a transport of the event
loop. A transport needs four more iterations, each of which takes up to 40 ms under attack. One
*prompt* request in each iteration is answered likewise. Further ones are started in turn with other
connections, so that a flood of them delays nobody more than a flood of others.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import math
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote_protocol.links.transport_interface import ConnectionGate
from burn_remote_protocol.loop_calls import LoopCall, register
from burn_remote_protocol.snapshots import items_of

__all__ = ["Accepted", "Acceptor"]

# Connections that the system keeps until they are accepted; Linux lowers it to net.core.somaxconn.
BACKLOG: Final = 4096

# Connections accepted in one iteration of the event loop: 2.5 ms.
ACCEPTS_AT_ONCE: Final = 128

# Connections started in one iteration of the event loop, at 0.4 ms each with the handshake: usually
# two, and one if the system's queue may still hold others. Larger numbers delay urgent requests,
# which take several iterations.
STARTS_AT_ONCE: Final = 2
STARTS_WHILE_ACCEPTING: Final = 1

# The first bytes of a connection that decide whether its request is urgent.
FIRST_BYTES: Final = 64

# Urgent requests that are answered in one iteration of the event loop, at 0.1 ms each, without a
# transport. Further ones wait for a later iteration.
ANSWERS_AT_ONCE: Final = 16
# Longer requests get a transport. Probes of Kubernetes and load balancers have 100 to 300 bytes.
ANSWERED_REQUEST_BYTES: Final = 2048
# A longer response might not fit into a buffer of the usual 16 KiB, with the system's overhead.
SURELY_SENT_BYTES: Final = 4096

# If the process or the system has no file descriptors or memory left, accepting pauses this long.
PAUSE_SECONDS: Final = 1.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Accepted:
    """A connection that was accepted. It counts in the gate until ``leave``.

    ``refusal`` is the gate's reason to refuse it with a response, or empty. ``is_started``: the
    event loop's transport may own the socket.
    """

    __slots__ = (
        "_gate", "_is_counted", "address", "ends_at", "is_started", "refusal", "socket", "timer"
    )  # fmt: skip

    def __init__(self, accepted: socket.socket, address: str, gate: ConnectionGate | None) -> None:
        self.socket: Final = accepted
        self.address: Final = address
        self.refusal = ""
        self.is_started = False
        self.timer: asyncio.TimerHandle | None = None
        self.ends_at = math.inf  # when ``timer`` is due
        self._gate: Final = gate
        self._is_counted = False

    def enter(self) -> bool:
        """Count the connection; return whether to keep it."""
        if self._gate is None:
            return True
        self._is_counted = True
        is_kept, self.refusal = self._gate.enter(self.address)
        return is_kept

    def leave(self) -> None:
        """Stop counting the connection; may be called again."""
        if self._is_counted and self._gate is not None:
            self._is_counted = False
            self._gate.leave(self.address)

    def close(self) -> None:
        """Close a connection that was not started."""
        self.leave()
        self.socket.close()


class Acceptor:
    """Accepts connections of listening sockets, and starts them by ``start``.

    A connection that sends nothing within ``timeout_seconds`` is closed. The acceptor owns the
    sockets. ``answer`` gets an urgent or prompt connection and what has arrived on it; it returns
    the whole response, or ``None`` if the connection must be started.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        start: Callable[[Accepted], None],
        *,
        gate: ConnectionGate | None,
        is_urgent: Callable[[bytes], bool],
        timeout_seconds: float | None,
        answer: Callable[[Accepted, bytes], bytes | None] = lambda *_: None,
        is_prompt: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._sockets: Final = sockets
        self._start: Final = start
        self._gate: Final = gate
        self._is_urgent: Final = is_urgent
        self._answer: Final = answer
        self._is_prompt: Final = is_prompt
        self._timeout_seconds: Final = timeout_seconds
        self._silent: Final[set[Accepted]] = set()  # nothing has arrived on them
        self._urgent: Final[collections.deque[Accepted]] = collections.deque()
        # By address; the first one is the next to start.
        self._waiting: Final[dict[str, collections.deque[Accepted]]] = {}
        self._starting: Final = LoopCall(
            self._start_some, lambda: bool(self._urgent or self._waiting)
        )
        self._accepts_more = False  # the system's queue was not empty in this iteration
        self._answered = 0  # urgent requests in this iteration
        self._has_answered_prompt = False  # in this iteration
        self._paused: Final[dict[socket.socket, float]] = {}  # and since when
        self.is_accepting = True
        register(self)
        for each in sockets:
            each.setblocking(False)
            each.listen(BACKLOG)
            self._loop.add_reader(each.fileno(), self._accept, each)

    def stop(self) -> None:
        """Accept no more connections, and close those that were not started."""
        if not self.is_accepting:
            return
        self.is_accepting = False
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
            each.close()
        for accepted in [*self._silent]:
            self._forget(accepted)
        while (waiting := self._next()) is not None:
            waiting.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, name = _accepted(listening)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue  # the client has closed this one
                self._pause(listening, error)
                return
            self._enter(accepted, name)
        self._accepts_more = True

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self._loop.call_exception_handler(
            {"message": f"no connections are accepted for {PAUSE_SECONDS:g} s", "exception": error}
        )
        self._paused[listening] = self._loop.time()
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(PAUSE_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if self.is_accepting:
            self._loop.add_reader(listening.fileno(), self._accept, listening)
        self._paused.pop(listening, None)

    def recover(self) -> None:
        """Accept again, and close silent connections, if the timers for that were lost."""
        now = self._loop.time()
        for listening, since in items_of(self._paused):
            if since + 2 * PAUSE_SECONDS < now:
                self._resume(listening)
        for accepted in [each for each in self._silent if each.ends_at + PAUSE_SECONDS < now]:
            self._forget(accepted)

    def _enter(self, sock: socket.socket, name: Any) -> None:
        address = str(name[0]) if isinstance(name, tuple) else "a local socket"
        accepted = Accepted(sock, address, self._gate)
        if not accepted.enter():
            accepted.close()
            assert self._gate is not None  # it refused
            self._gate.record_rejection(accepted.refusal, self._loop.time())
            return
        try:
            self._wait_for_request(accepted)
        except BaseException:  # for lack of memory: nobody else would close it
            self._silent.discard(accepted)
            self._loop.remove_reader(sock.fileno())
            accepted.close()
            raise

    def _wait_for_request(self, accepted: Accepted) -> None:
        sock = accepted.socket
        sock.setblocking(False)
        first = _peeked(accepted)
        if first is None:
            self._silent.add(accepted)
            self._loop.add_reader(sock.fileno(), self._arrive, accepted)
            if self._timeout_seconds is not None:
                accepted.ends_at = self._loop.time() + self._timeout_seconds
                accepted.timer = self._loop.call_later(
                    self._timeout_seconds, self._forget, accepted
                )
        else:
            self._queue(accepted, first)

    def _arrive(self, accepted: Accepted) -> None:
        first = _peeked(accepted)
        if first is None:
            return
        self._end_silence(accepted)
        try:
            self._queue(accepted, first)
        except BaseException:  # for lack of memory: it would count in the gate forever
            self._close_unqueued(accepted)
            raise

    def _close_unqueued(self, accepted: Accepted) -> None:
        if accepted not in self._urgent and accepted not in self._waiting.get(accepted.address, ()):
            accepted.close()

    def _forget(self, accepted: Accepted) -> None:
        self._end_silence(accepted)
        accepted.close()

    def _end_silence(self, accepted: Accepted) -> None:
        self._silent.discard(accepted)
        self._loop.remove_reader(accepted.socket.fileno())
        if accepted.timer is not None:
            accepted.timer.cancel()
            accepted.timer = None

    def _queue(self, accepted: Accepted, first: bytes) -> None:
        """Queue a connection by its first bytes; they are empty if the client has closed it."""
        if not first:
            accepted.close()
            return
        if self._is_urgent(first):
            if self._answered < ANSWERS_AT_ONCE and self._answer_whole(accepted):
                self._answered += 1
                self._starting.request()  # which begins to count anew
                return
            self._urgent.append(accepted)
        elif (
            self._is_prompt(first)
            and not self._has_answered_prompt
            and self._answer_whole(accepted)
        ):
            self._has_answered_prompt = True
        else:
            self._waiting.setdefault(accepted.address, collections.deque()).append(accepted)
        self._starting.request()

    def _answer_whole(self, accepted: Accepted) -> bool:
        """Answer an urgent request that has arrived as a whole; return whether that was done."""
        sock = accepted.socket
        try:
            request = sock.recv(ANSWERED_REQUEST_BYTES, socket.MSG_PEEK)
            response = self._answer(accepted, request)
            if response is None:
                return False
            sock.recv(len(request))  # unread bytes would make ``close`` reset the connection
            if len(response) > SURELY_SENT_BYTES:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(response))
            sock.send(response)  # fits into the empty buffer of a new connection
        except OSError:
            pass  # the client has closed the connection
        accepted.close()
        return True

    def _start_some(self) -> None:
        count = STARTS_WHILE_ACCEPTING if self._accepts_more else STARTS_AT_ONCE
        self._accepts_more = False
        self._answered = 0
        self._has_answered_prompt = False
        try:
            while count > 0 and (accepted := self._next()) is not None:
                try:
                    first = _peeked(accepted)
                    if not first:  # closed while it waited
                        accepted.close()
                        continue
                    count -= 1
                    is_answerable = self._is_urgent(first) or self._is_prompt(first)
                    if not (is_answerable and self._answer_whole(accepted)):
                        self._start(accepted)
                except BaseException:  # for lack of memory
                    if not accepted.is_started:
                        accepted.close()
                    raise
        finally:  # also if the start of one connection failed
            if self._urgent or self._waiting:
                self._starting.request()

    def _next(self) -> Accepted | None:
        if self._urgent:
            return self._urgent.popleft()
        if not self._waiting:
            return None
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        accepted = queue.popleft()
        if queue:
            self._waiting[address] = queue  # at the end
        return accepted


def _accepted(listening: socket.socket) -> tuple[socket.socket, Any]:
    """Accept a connection like ``socket.accept``, which leaves it open if its object has no memory.

    Its client would wait for a response, and the descriptor would never be closed.
    """
    descriptor, name = listening._accept()  # type: ignore[attr-defined]
    try:
        return socket.socket(listening.family, listening.type, listening.proto, descriptor), name
    except BaseException:
        os.close(descriptor)
        raise


def _peeked(accepted: Accepted) -> bytes | None:
    """Return the first bytes without receiving them; ``None`` if nothing has arrived."""
    try:
        return accepted.socket.recv(FIRST_BYTES, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:  # the client has closed the connection
        return b""
