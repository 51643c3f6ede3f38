"""A listener bounds its connections and streams, and refuses what it cannot serve."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import pytest

from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost, UsageError
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.iroh import endpoints
from burn_remote_protocol.links.iroh import listening as listening_module
from burn_remote_protocol.links.iroh.framing import frame_header
from burn_remote_protocol.links.iroh.library import IrohError, iroh
from burn_remote_protocol.links.iroh.listening import IrohListener
from burn_remote_protocol.links.iroh.opening import burn_header, request
from burn_remote_protocol.links.transport_interface import Request, Response
from burn_remote_protocol.links.transport_registry import connect_async, listen
from support.iroh_links import address_of, listening
from support.waiting import PATIENCE_SECONDS


class Gate:
    """Allows some connections and records who entered and left."""

    def __init__(self, allowed: int, *, keeps: bool = True) -> None:
        self.allowed = allowed
        self.keeps = keeps
        self.entered = 0
        self.open = 0
        self.rejected: list[str] = []

    def enter(self, address: str) -> tuple[bool, str]:
        assert address == "127.0.0.1"
        self.entered += 1
        self.open += 1
        return (True, "") if self.open <= self.allowed else (self.keeps, "too many")

    def leave(self, address: str) -> None:
        self.open -= 1

    def record_rejection(self, reason: str, now_seconds: float) -> None:
        self.rejected.append(reason)


def refuse_full(asked: Request) -> Response | None:
    return Response(429, asked.refusal, {}, b"") if asked.refusal else None


@contextlib.asynccontextmanager
async def raw_connection(listener: Any, alpn: bytes) -> Any:
    """Connect to a listener without opening a stream."""
    endpoint = await endpoints.bind()
    try:
        where = iroh.EndpointAddr(
            iroh.EndpointId.from_string(listener.node_id), None, [f"127.0.0.1:{listener.port}"]
        )
        yield await endpoint.connect(where, alpn)
    finally:
        await endpoints.close(endpoint)


async def assert_ended(stream: Any) -> None:
    """Check that the server has ended a stream without sending anything."""
    with contextlib.suppress(IrohError):  # or the connection, which may be noticed first
        assert await stream.recv().read(1) == b""


async def raw_stream(connection: Any, first: bytes) -> Any:
    stream = await connection.open_bi()
    await stream.send().write_all(first)
    return stream


async def test_a_request_reaches_the_handler_and_is_answered() -> None:
    async def echo(link: AsyncLink, asked: Request) -> None:
        await link.send(asked.path.encode() + await link.receive())

    async with asyncio.timeout(PATIENCE_SECONDS), listen("iroh", "127.0.0.1", 0, echo) as listener:
        assert isinstance(listener, IrohListener)
        link = await connect_async(address_of(listener), "/session")
        await link.send(b" hello")
        assert await link.receive() == b"/session hello"


async def test_a_refused_request_is_explained_by_its_status() -> None:
    def respond(asked: Request) -> Response | None:
        return Response(421, f"nothing at {asked.path}", {}, b"")

    async with asyncio.timeout(PATIENCE_SECONDS), listening(respond=respond) as (listener, _):
        with pytest.raises(ConnectionFailed, match="421: nothing at /session") as caught:
            await connect_async(address_of(listener), "/session")
        assert caught.value.http_status == 421


async def test_connections_over_the_limit_get_the_reason_and_leave_the_gate() -> None:
    gate = Gate(1)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        listening(respond=refuse_full, gate=gate) as (listener, _),
    ):
        first = await connect_async(address_of(listener))
        with pytest.raises(ConnectionFailed, match="too many"):
            await connect_async(address_of(listener))
        await first.close()
        while gate.open:  # noqa: ASYNC110 - the gate has no event
            await asyncio.sleep(0)
        await (await connect_async(address_of(listener))).close()
    assert (gate.entered, gate.open) == (3, 0)


async def test_a_flood_of_connections_is_refused_without_an_answer() -> None:
    gate = Gate(0, keeps=False)
    async with asyncio.timeout(PATIENCE_SECONDS), listening(gate=gate) as (listener, _):
        for _ in range(5):
            with pytest.raises(ConnectionFailed, match="no connection to iroh"):
                await connect_async(address_of(listener))
    assert gate.rejected == ["too many"] * 5
    assert gate.open == 0


async def test_burns_streams_beyond_the_first_count_as_connections() -> None:
    gate = Gate(2)
    async with asyncio.timeout(PATIENCE_SECONDS), listening(gate=gate) as (listener, accepted):
        async with raw_connection(listener, endpoints.BURN_ALPN) as connection:
            kept = [await raw_stream(connection, burn_header("/session")) for _ in range(2)]
            for _ in kept:
                await accepted.get()
            refused = await raw_stream(connection, burn_header("/session"))
            with pytest.raises(IrohError):
                await refused.recv().read(10)
        while gate.open:  # noqa: ASYNC110 - the gate has no event
            await asyncio.sleep(0)


async def test_burns_streams_of_one_connection_are_separate_links() -> None:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        listening() as (listener, accepted),
        raw_connection(listener, endpoints.BURN_ALPN) as connection,
    ):
        streams = []
        for number in range(3):
            stream = await raw_stream(connection, burn_header("/session"))
            await stream.send().write_all(frame_header(1) + bytes([number]))
            streams.append(stream)
        links = [await accepted.get() for _ in streams]
        received = {(await link.receive())[0]: link for link in links}
        assert set(received) == {0, 1, 2}
        await received[1].close()
        await received[2].send(b"still open")
        assert await streams[2].recv().read_exact(18) == frame_header(10) + b"still open"
        assert await streams[1].recv().read(10) == b""
        assert len({link.peer_host for link in links}) == 1


@pytest.mark.parametrize(
    ("alpn", "first"),
    [
        (endpoints.NATIVE_ALPN, b""),
        (endpoints.NATIVE_ALPN, b"\5\0\0"),
        (endpoints.BURN_ALPN, b""),
        (endpoints.BURN_ALPN, burn_header("/session")[:-1]),
    ],
)
async def test_a_stream_that_does_not_begin_in_time_is_ended(alpn: bytes, first: bytes) -> None:
    gate = Gate(5)
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        listening(handshake_timeout_seconds=0.3, gate=gate) as (listener, accepted),
        raw_connection(listener, alpn) as connection,
    ):
        with contextlib.suppress(IrohError):  # on a busy machine, before the test has written
            stream = await connection.open_bi()
            if first:
                await stream.send().write_all(first)
            await assert_ended(stream)
        assert accepted.empty()


@pytest.mark.parametrize("alpn", [endpoints.NATIVE_ALPN, endpoints.BURN_ALPN])
@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", bytes(8), b"\xff" * 16])
async def test_garbage_in_place_of_the_first_frame_ends_the_stream_only(
    alpn: bytes, first: bytes
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), listening() as (listener, accepted):
        async with raw_connection(listener, alpn) as connection:
            stream = await raw_stream(connection, first)
            await assert_ended(stream)
        assert accepted.empty()
        link = await connect_async(address_of(listener))
        await link.send(b"served")
        assert await (await accepted.get()).receive() == b"served"
        await link.close()


@pytest.mark.parametrize("kind", ["bidirectional", "unidirectional"])
async def test_a_second_stream_of_a_native_connection_ends_it(kind: str) -> None:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        listening() as (listener, accepted),
        raw_connection(listener, endpoints.NATIVE_ALPN) as connection,
    ):
        first = await raw_stream(connection, request("/session", {}))
        link = await accepted.get()
        if kind == "bidirectional":
            second = (await connection.open_bi()).send()
        else:
            second = await connection.open_uni()
        await second.write_all(b"x")
        assert "may not open more streams" in await connection.closed()
        with pytest.raises(ConnectionLost):
            await link.receive()
        del first


async def test_a_unidirectional_stream_of_burns_connection_ends_it() -> None:
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        listening() as (listener, _),
        raw_connection(listener, endpoints.BURN_ALPN) as connection,
    ):
        stream = await connection.open_uni()
        await stream.write_all(b"x")
        assert "may not open more streams" in await connection.closed()


async def test_a_listener_that_stopped_accepting_keeps_its_links() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), listening() as (listener, accepted):
        link = await connect_async(address_of(listener))
        server = await accepted.get()
        listener.stop_accepting()
        with pytest.raises(ConnectionFailed):
            await connect_async(address_of(listener), timeout_seconds=1)
        await link.send(b"still here")
        assert await server.receive() == b"still here"
        await link.close()


async def test_a_listener_on_loopback_is_bound_to_loopback_only() -> None:
    async with listening() as (listener, _):
        hosts = {each.rpartition(":")[0] for each in listener.endpoint.bound_sockets()}
        assert hosts == {"127.0.0.1", "[::1]"}


async def test_the_node_id_follows_from_the_key() -> None:
    key = bytes(range(32))
    async with listening(key=key) as (listener, _):
        assert listener.node_id == endpoints.node_id(key)


async def test_a_server_with_another_key_is_not_trusted() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), listening() as (listener, _):
        other = endpoints.node_id(bytes(range(32)))
        with pytest.raises(ConnectionFailed, match=r"no connection to|did not answer"):
            await connect_async(f"iroh://{other}?addr=127.0.0.1:{listener.port}", timeout_seconds=5)


async def test_a_busy_listener_lets_clients_show_that_they_receive_at_their_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening_module, "UNVALIDATED_HANDSHAKES", 0)
    gate = Gate(1)
    retried: list[bool] = []
    validated = iroh.Incoming.remote_addr_validated

    async def recorded(incoming: Any) -> bool:
        retried.append(not await validated(incoming))
        return not retried[-1]

    monkeypatch.setattr(iroh.Incoming, "remote_addr_validated", recorded)
    async with asyncio.timeout(PATIENCE_SECONDS), listening(gate=gate) as (listener, accepted):
        link = await connect_async(address_of(listener))
        await link.send(b"served")
        assert await (await accepted.get()).receive() == b"served"
        await link.close()
    assert retried == [True, False]
    assert gate.entered == 1


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    async with listening() as (listener, _):

        async def nobody(_: AsyncLink, __: Request) -> None: ...

        with pytest.raises(OSError, match=f"127.0.0.1:{listener.port}"):
            async with listen("iroh", "127.0.0.1", listener.port, nobody):
                pass


async def test_a_tls_certificate_is_refused_because_the_key_encrypts() -> None:
    async def nobody(_: AsyncLink, __: Request) -> None: ...

    context = ssl.create_default_context()
    with pytest.raises(UsageError, match="uses no TLS certificate"):
        async with listen("iroh", "127.0.0.1", 0, nobody, tls=context):
            pass
    with pytest.raises(ConnectionFailed, match="leave it out"):
        await connect_async(f"iroh://{'0' * 64}?addr=127.0.0.1:1", tls=context)


async def test_a_node_id_that_is_no_public_key_is_explained() -> None:
    with pytest.raises(
        ConnectionFailed, match=r"names no public key \(.*valid public key\); check the node id"
    ):
        await connect_async(f"iroh://02{'00' * 31}?addr=127.0.0.1:9")


async def test_a_silent_address_is_explained() -> None:
    address = f"iroh://{endpoints.node_id(bytes(range(32)))}?addr=127.0.0.1:9"
    with pytest.raises(
        ConnectionFailed, match=r"did not answer within 0\.2 seconds; check the node"
    ):
        await connect_async(address, timeout_seconds=0.2)


async def test_leaving_the_listener_ends_links_and_leaves_no_task() -> None:
    async with listening() as (listener, accepted):
        link = await connect_async(address_of(listener))
        await accepted.get()
        waiting = asyncio.ensure_future(link.receive())
    with pytest.raises(ConnectionLost):
        await waiting
    await link.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
