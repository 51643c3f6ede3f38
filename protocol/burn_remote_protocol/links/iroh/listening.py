"""An endpoint that accepts links.

Each connection has a task, which accepts its streams: one of a native connection, several of
Burn's. The gate counts connections, and each stream beyond the first. The time of the handshake
bounds the cryptographic handshake, and the time until each stream has sent its first frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation, UsageError
from burn_remote_protocol.links.addresses import IROH, MAX_DIRECT_ADDRESSES, Address
from burn_remote_protocol.links.interface import (
    MAX_MESSAGE_BYTES,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    short_reason,
)
from burn_remote_protocol.links.iroh.endpoints import (
    BURN_ALPN,
    NATIVE_ALPN,
    NO_RELAYS,
    PUBLIC_RELAYS,
    bind,
    close,
)
from burn_remote_protocol.links.iroh.library import IrohError, iroh, write_all
from burn_remote_protocol.links.iroh.opening import (
    read_burn_header,
    read_opening,
    read_request,
    reply,
)
from burn_remote_protocol.links.iroh.stream_link import StreamLink
from burn_remote_protocol.links.transport_interface import ConnectionGate, Handle, Request, Respond

__all__ = ["IrohListener", "listen"]

_logger: Final = logging.getLogger("burn_remote_protocol.links.iroh")

# Streams of one connection at the same time. A client of Burn opens one for each device, a server
# of Burn one for each tensor that it fetches.
MAX_STREAMS: Final = 64

# Handshakes at the same time. Further ones wait in the library's queue, which is larger.
MAX_HANDSHAKES: Final = 256

# While more handshakes than this run, a client must first show that it receives at its address. So
# a flood of packets with false addresses occupies no more places than these.
UNVALIDATED_HANDSHAKES: Final = 32

_WILDCARDS: Final = {"": ("0.0.0.0", "[::]"), "0.0.0.0": ("0.0.0.0",), "::": ("[::]",)}
_LOOPBACK: Final = {"127.0.0.1": "[::1]:0", "[::1]": "127.0.0.1:0"}


@contextlib.asynccontextmanager
async def listen(
    host: str,
    port: int,
    handle: Handle,
    *,
    respond: Respond | None = None,
    gate: ConnectionGate | None = None,
    is_urgent: Callable[[bytes], bool] | None = None,
    is_prompt: Callable[[bytes], bool] | None = None,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_seconds: float | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    key: bytes | None = None,
    relays: str = NO_RELAYS,
) -> AsyncIterator[IrohListener]:
    """Accept links until the context ends; the options are those of ``Transport.listen``.

    ``key`` is the server's secret key, by default a new one; ``relays`` is that of ``bind``.
    """
    if tls is not None:
        raise UsageError("Iroh encrypts with the server's key; it uses no TLS certificate")
    endpoint = await bind(
        key=key,
        alpns=[NATIVE_ALPN, BURN_ALPN],
        addresses=_bound_addresses(host, port),
        relays=relays,
    )
    listener = IrohListener(
        endpoint, handle, respond, gate, handshake_timeout_seconds, max_message_bytes
    )
    listener.relays = relays
    try:
        yield listener
    finally:
        await listener.close()
        await close(endpoint)


def _bound_addresses(host: str, port: int) -> list[str]:
    """Return the addresses to bind.

    Without one for each version of IP, the library would listen on all interfaces with the other.
    """
    if host in _WILDCARDS:
        return [f"{each}:{port}" for each in _WILDCARDS[host]]
    host = f"[{host}]" if ":" in host else host
    others = [_LOOPBACK[host]] if host in _LOOPBACK else []
    return [f"{host}:{port}", *others]


class IrohListener:
    """A ``Listener`` over an endpoint."""

    def __init__(
        self,
        endpoint: Any,
        handle: Handle,
        respond: Respond | None,
        gate: ConnectionGate | None,
        handshake_timeout_seconds: float | None,
        max_message_bytes: int,
    ) -> None:
        self.endpoint: Final = endpoint
        self.relays = NO_RELAYS
        self._handle: Final = handle
        self._respond: Final = respond
        self._gate: Final = gate
        self._timeout_seconds: Final = handshake_timeout_seconds
        self._max_message_bytes: Final = max_message_bytes
        self._loop: Final = asyncio.get_running_loop()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._handshakes: Final = asyncio.Semaphore(MAX_HANDSHAKES)
        self._busy = 0  # handshakes that run
        self._accepting: Final = self._start(self._accept())

    @property
    def port(self) -> int:
        """The UDP port of the first bound address."""
        return int(self.endpoint.bound_sockets()[0].rpartition(":")[2])

    @property
    def node_id(self) -> str:
        """The public key, by which clients name the server."""
        return str(self.endpoint.id())

    @property
    def address(self) -> Address:
        """The node id with the ways to it; over public relays, the node id is enough."""
        if self.relays == PUBLIC_RELAYS:
            return Address(IROH, self.node_id, 0)
        found: list[str] = self.endpoint.addr().direct_addresses()
        # Of a loopback interface, the library also binds a port of the other version of IP.
        bound = [each for each in found if each.endswith(f":{self.port}")] or found
        relay = "" if self.relays == NO_RELAYS else self.relays
        return Address(IROH, self.node_id, 0, "", "", tuple(bound[:MAX_DIRECT_ADDRESSES]), relay)

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open stay open."""
        self._accepting.cancel()
        self.endpoint.set_alpns([])

    async def close(self) -> None:
        """Cancel all tasks, also those that serve links."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        while True:
            await self._handshakes.acquire()
            incoming = await self.endpoint.accept_next()
            if incoming is None:  # the endpoint was closed
                return
            self._busy += 1
            self._start(self._serve_connection(incoming))

    async def _serve_connection(self, incoming: Any) -> None:
        """Accept one connection and its streams, until it ends."""
        turn = _Turn(None, "")
        connection = None
        try:
            if self._busy > UNVALIDATED_HANDSHAKES and not await incoming.remote_addr_validated():
                await incoming.retry()
                return
            address = _address_of(await incoming.remote_addr())
            turn = _Turn(self._gate, _host(address))
            if not turn.is_kept:
                await incoming.refuse()
                turn.record_rejection(self._loop.time())
                return
            async with asyncio.timeout(self._timeout_seconds):
                accepting = await incoming.accept()
                connection = await accepting.connect()
        except (IrohError, TimeoutError):
            return
        finally:
            self._handshakes.release()
            self._busy -= 1
            if connection is None:
                turn.leave()
        try:
            if connection.alpn() == NATIVE_ALPN:
                await self._serve_native(connection, address, turn)
            else:
                await self._serve_burn(connection, address)
        finally:
            turn.leave()
            _close(connection, NORMAL_CLOSURE, "")

    async def _serve_native(self, connection: Any, address: str, turn: _Turn) -> None:
        watching = [self._start(self._refuse_streams(connection, connection.accept_uni))]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                stream = await connection.accept_bi()
                watching.append(self._start(self._refuse_streams(connection, connection.accept_bi)))
                request = read_request(await read_opening(stream.recv()))
                request = Request(request.path, request.headers, turn.refusal)
                response = None if self._respond is None else self._respond(request)
                await write_all(stream.send(), [reply(response)])
                if response is not None:
                    await stream.send().finish()
                    await connection.closed()  # the client closes it when it has read the answer
                    return
            await self._serve_link(connection, stream, address, request, is_native=True)
        except ProtocolViolation as error:
            _close(connection, POLICY_VIOLATION, str(error))
        except (IrohError, TimeoutError):
            pass  # the client is gone, or too slow
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _refuse_streams(
        self, connection: Any, accept: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Close a connection that opens another stream.

        A client may open 100 streams of each kind before the library accepts another limit, and the
        library buffers 1.25 MB of each stream that nobody reads.
        """
        with contextlib.suppress(IrohError):
            await accept()
            _close(connection, POLICY_VIOLATION, "this connection may not open more streams")

    async def _serve_burn(self, connection: Any, address: str) -> None:
        refusing = self._start(self._refuse_streams(connection, connection.accept_uni))
        streams: set[asyncio.Task[None]] = set()
        timeout_seconds = self._timeout_seconds  # for the first stream
        try:
            with contextlib.suppress(IrohError, TimeoutError):
                while True:
                    if len(streams) >= MAX_STREAMS:
                        await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
                    async with asyncio.timeout(timeout_seconds):
                        stream = await connection.accept_bi()
                    timeout_seconds = None
                    task = self._start(
                        self._serve_stream(connection, stream, address, is_counted=not streams)
                    )
                    streams.add(task)
                    task.add_done_callback(streams.discard)
        finally:
            for task in (refusing, *streams):
                task.cancel()
            await asyncio.gather(refusing, *streams, return_exceptions=True)

    async def _serve_stream(
        self, connection: Any, stream: Any, address: str, *, is_counted: bool
    ) -> None:
        """Serve a stream of Burn's; ``is_counted`` if the connection's turn counts it."""
        turn = _Turn(None if is_counted else self._gate, _host(address))
        try:
            if turn.refusal:
                turn.record_rejection(self._loop.time())
                raise ProtocolViolation(turn.refusal)
            async with asyncio.timeout(self._timeout_seconds):
                request = read_burn_header(await read_opening(stream.recv()))
            await self._serve_link(connection, stream, address, request, is_native=False)
        except (IrohError, ProtocolViolation, TimeoutError):
            with contextlib.suppress(IrohError):
                await stream.send().reset(POLICY_VIOLATION)
                await stream.recv().stop(POLICY_VIOLATION)
        finally:
            turn.leave()

    async def _serve_link(
        self, connection: Any, stream: Any, address: str, request: Request, *, is_native: bool
    ) -> None:
        link = StreamLink(
            connection,
            stream,
            peer=address,
            peer_host=str(connection.remote_id()),
            max_message_bytes=self._max_message_bytes,
            is_native=is_native,
        )
        try:
            await self._handle(link, request)
        except ConnectionLost:
            pass  # the client has left
        except Exception:  # a defect ends this link, and no other
            _logger.exception("serving a link failed")
        finally:
            await link.close()


class _Turn:
    """The place of a connection or a stream in the gate; leaves it once."""

    def __init__(self, gate: ConnectionGate | None, host: str) -> None:
        self._gate = gate
        self._host: Final = host
        self.is_kept, self.refusal = (True, "") if gate is None else gate.enter(host)

    def record_rejection(self, now_seconds: float) -> None:
        """Record that the connection is closed without a response."""
        if self._gate is not None:
            self._gate.record_rejection(self.refusal, now_seconds)

    def leave(self) -> None:
        """Leave the gate. A second call does nothing."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self._host)


def _address_of(found: Any) -> str:
    """Return the address of a connection: ``192.0.2.7:51034``, or the node id behind a relay."""
    if isinstance(found, iroh.IncomingAddr.IP):
        return str(found.addr)
    if isinstance(found, iroh.IncomingAddr.RELAY):
        return str(found.endpoint_id)
    return "an unknown place"


def _host(address: str) -> str:
    """Return an address without its port and without brackets."""
    return address.rpartition(":")[0].strip("[]") if ":" in address else address


def _close(connection: Any, code: int, reason: str) -> None:
    with contextlib.suppress(IrohError):
        connection.close(code, short_reason(reason).encode())
