"""The server's side of the WebSocket transport: requests, responses, and the gate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter

import pytest

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_interface import Request, Response
from burn_remote_protocol.links.transport_registry import connect_async
from burn_remote_protocol.links.websocket import listening
from burn_remote_protocol.links.websocket.accepting import Accepted
from burn_remote_protocol.links.websocket.listening import _Starter, listen
from support.waiting import PATIENCE_SECONDS


class Gate:
    """A gate that admits ``allowed`` connections, and lets one more stay for its refusal."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.open: Counter[str] = Counter()
        self.turned: list[str] = []

    def enter(self, address: str) -> tuple[bool, str]:
        self.open[address] += 1
        over = self.open[address] - self.allowed
        return over <= 1, "too many" if over > 0 else ""

    def leave(self, address: str) -> None:
        self.open[address] -= 1

    def record_rejection(self, reason: str, now_seconds: float) -> None:
        self.turned.append(reason)


async def echo(link: AsyncLink, _: Request) -> None:
    while True:
        await link.send(await link.receive())


async def read_http(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = await reader.read()
    writer.close()
    return response


async def test_a_request_can_be_answered_with_a_response_in_place_of_a_link() -> None:
    seen: list[Request] = []

    def respond(request: Request) -> Response | None:
        seen.append(request)
        return Response(200, "OK", {"X-Name": "value"}, b"healthy")

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo, respond=respond) as listener:
            request = b"GET /healthz HTTP/1.1\r\nHost: box\r\nX-Asked: yes\r\n\r\n"
            response = await read_http(listener.port, request)
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"\r\n\r\nhealthy")
    assert b"X-Name: value" in response
    assert b"Content-Length: 7" in response
    assert seen[0].path == "/healthz"
    assert seen[0].headers["x-asked"] == "yes", "headers are not case-insensitive"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /healthz HTTP/1.1\r\nHost: box\r\nX-Asked: yes\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nok",
        b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/2\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nbad name: 1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
    ],
    ids=[
        "whole", "old", "body", "chunked", "two-hosts", "version", "bare", "bad-name", "long",
    ],
)  # fmt: skip
async def test_an_urgent_request_gets_the_response_that_it_would_get_from_a_transport(
    request_bytes: bytes,
) -> None:
    def respond(request: Request) -> Response | None:
        return Response(200, "OK", {"X-Name": "value"}, request.path.encode())

    responses = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        for is_urgent in (lambda _: True, lambda _: False):
            async with listen(
                "127.0.0.1", 0, echo, respond=respond, is_urgent=is_urgent
            ) as listener:
                responses.append(await read_http(listener.port, request_bytes))
    urgent, usual = [
        b"\r\n".join(line for line in each.split(b"\r\n") if not line.startswith(b"Date:"))
        for each in responses
    ]
    assert urgent == usual


async def test_a_port_with_tls_does_not_answer_an_urgent_request_without_it(
    tls_contexts: dict[str, ssl.SSLContext],
) -> None:
    asked = []

    def respond(request: Request) -> Response | None:
        asked.append(request)
        return Response(200, "OK", {}, b"healthy")

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen(
            "127.0.0.1",
            0,
            echo,
            respond=respond,
            is_urgent=lambda _: True,
            tls=tls_contexts["server"],
        ) as listener:
            with contextlib.suppress(ConnectionResetError):
                await read_http(listener.port, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert not asked


async def test_a_handler_gets_the_link_and_its_request() -> None:
    async def handle(link: AsyncLink, request: Request) -> None:
        await link.send(request.path.encode())
        await link.receive()

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, handle) as listener:
            link = await connect_async(f"ws://127.0.0.1:{listener.port}", "/session")
            assert await link.receive() == b"/session"
            await link.close()


async def test_the_gate_counts_a_connection_until_it_is_closed() -> None:
    gate = Gate(allowed=1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo, gate=gate) as listener:
            link = await connect_async(f"ws://127.0.0.1:{listener.port}")
            assert gate.open["127.0.0.1"] == 1
            await link.close()
            while gate.open["127.0.0.1"]:  # noqa: ASYNC110 - the server's end closes by itself
                await asyncio.sleep(0)


async def test_a_connection_over_the_limit_gets_the_reason() -> None:
    gate = Gate(allowed=0)

    def respond(request: Request) -> Response | None:
        return Response(429, request.refusal, {}, b"") if request.refusal else None

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo, gate=gate, respond=respond) as listener:
            with pytest.raises(ConnectionFailed, match="HTTP 429"):
                await connect_async(f"ws://127.0.0.1:{listener.port}")


async def test_a_connection_that_may_not_stay_is_closed_without_a_response() -> None:
    gate = Gate(allowed=-1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo, gate=gate) as listener:
            with pytest.raises(ConnectionFailed, match="hung up before it responded"):
                await connect_async(f"ws://127.0.0.1:{listener.port}")
            while gate.open["127.0.0.1"]:  # noqa: ASYNC110 - the loop reports the end later
                await asyncio.sleep(0)
    assert gate.turned == ["too many"]


async def test_a_header_that_occurs_twice_is_a_bad_request_and_no_error_of_the_server() -> None:
    def respond(request: Request) -> Response | None:
        request.headers.get("Origin", "")
        return None

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo, respond=respond) as listener:
            request = b"GET / HTTP/1.1\r\nHost: box\r\nOrigin: a\r\nOrigin: b\r\n\r\n"
            response = await read_http(listener.port, request)
    assert response.startswith(b"HTTP/1.1 400 ")


async def test_a_second_host_is_a_bad_request_although_only_handlers_read_the_host() -> None:
    request = (
        b"GET / HTTP/1.1\r\nHost: box\r\nHost: other\r\n"
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo) as listener:
            response = await read_http(listener.port, request)
    assert response.startswith(b"HTTP/1.1 400 ")


async def test_connections_whose_start_is_cancelled_before_its_first_step_leave_the_gate() -> None:
    gate, loop = Gate(1000), asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours:
        accepted = Accepted(theirs, "192.0.2.7", gate)
        assert accepted.enter()
        starter = _Starter(Unused(), 1000, None, None)  # type: ignore[arg-type]
        starter.start(accepted)
        await starter.close()
        await asyncio.sleep(0)
        assert gate.open.total() == 0
        assert theirs.fileno() == -1, "the socket is still open"
        assert not loop.is_closed()


async def test_a_connection_that_could_not_be_made_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lack_memory(transport: object) -> None:
        raise MemoryError

    monkeypatch.setattr(listening, "enable_tcp_keepalive", lack_memory)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", lambda _: None)
    gate = Gate(1000)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with listen("127.0.0.1", 0, echo, gate=gate) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"GET / HTTP/1.1\r\n")
            with contextlib.suppress(ConnectionError):
                assert not await reader.read()
            writer.close()
            while gate.open.total():  # noqa: ASYNC110 - the gate has no event
                await asyncio.sleep(0)


class Unused:
    """A server of ``websockets`` that no connection reaches."""

    logger = None
