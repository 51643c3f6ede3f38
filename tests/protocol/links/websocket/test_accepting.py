"""The acceptor empties the system's queue at once, and starts connections in a fair order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from burn_remote_protocol.links.websocket import accepting
from burn_remote_protocol.links.websocket.accepting import (
    ANSWERS_AT_ONCE,
    STARTS_AT_ONCE,
    Accepted,
    Acceptor,
)
from support.waiting import PATIENCE_SECONDS


class Gate:
    """A gate that counts, and refuses connections beyond ``allowed``."""

    def __init__(self, allowed: int = 10_000) -> None:
        self.allowed = allowed
        self.open: Counter[str] = Counter()
        self.rejected = 0

    def enter(self, address: str) -> tuple[bool, str]:
        self.open[address] += 1
        return self.open.total() <= self.allowed, "too many"

    def leave(self, address: str) -> None:
        self.open[address] -= 1

    def record_rejection(self, reason: str, now_seconds: float) -> None:
        self.rejected += 1


class Port:
    """An acceptor, and the first bytes of the connections that it started, in order."""

    def __init__(
        self, gate: Gate, timeout_seconds: float | None, listening: socket.socket | None
    ) -> None:
        self.gate = gate
        self.started: list[bytes] = []
        self.clients: list[socket.socket] = []
        self.answered: list[bytes] = []
        self.response = b"answer"
        listening = listening or socket.create_server(("127.0.0.1", 0))
        self.address = listening.getsockname()
        self.acceptor = Acceptor(
            [listening],
            self._start,
            gate=gate,
            is_urgent=lambda first: first.startswith(b"urgent"),
            timeout_seconds=timeout_seconds,
            answer=self._answer,
            is_prompt=lambda first: first.startswith(b"prompt"),
        )

    def _answer(self, accepted: Accepted, received: bytes) -> bytes | None:
        if not received.endswith(b"!"):
            return None
        self.answered.append(received)
        return self.response

    def _start(self, accepted: Accepted) -> None:
        self.started.append(accepted.socket.recv(100))
        accepted.close()

    def connect(self, sent: bytes, source: str = "127.0.0.1") -> socket.socket:
        """Connect while the event loop does nothing."""
        client = socket.create_connection(self.address, 1.0, (source, 0))
        self.clients.append(client)
        client.sendall(sent)
        return client

    async def until(self, started: int) -> None:
        while len(self.started) < started:  # noqa: ASYNC110 - the event loop starts them
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def port(
    gate: Gate | None = None,
    timeout_seconds: float | None = None,
    listening: socket.socket | None = None,
) -> AsyncIterator[Port]:
    opened = Port(gate or Gate(), timeout_seconds, listening)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield opened
    finally:
        opened.acceptor.stop()
        for client in opened.clients:
            client.close()


async def test_the_system_queues_hundreds_of_connections_while_the_loop_is_busy() -> None:
    async with port() as opened:
        for number in range(400):  # with a queue of 100, packets would be dropped
            opened.connect(b"%d" % number)
        await opened.until(400)
    assert opened.started == [b"%d" % number for number in range(400)]


async def test_an_urgent_request_overtakes_a_flood_from_its_own_address() -> None:
    async with port() as opened:
        for _ in range(200):
            opened.connect(b"flood")
        opened.connect(b"urgent")
        await opened.until(201)
    # Some connections start while the others are still accepted.
    assert opened.started.index(b"urgent") <= 2 * STARTS_AT_ONCE


async def test_an_urgent_request_that_has_arrived_whole_is_answered_without_a_transport() -> None:
    async with port() as opened:
        client = opened.connect(b"urgent!")
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(client, 10) == b"answer"
        assert await loop.sock_recv(client, 10) == b"", "the connection was reset or stays open"
    assert not opened.started
    assert not opened.gate.open.total()


async def test_a_request_that_is_not_urgent_is_never_answered_by_the_acceptor() -> None:
    async with port() as opened:
        opened.connect(b"usual!")
        await opened.until(1)
    assert not opened.answered


async def test_an_iteration_of_the_loop_answers_a_bounded_number_of_urgent_requests() -> None:
    async with port() as opened:
        for _ in range(3 * ANSWERS_AT_ONCE):
            opened.connect(b"urgent!")
        seen = 0
        while seen < 3 * ANSWERS_AT_ONCE:
            await asyncio.sleep(0)
            assert len(opened.answered) - seen <= ANSWERS_AT_ONCE + STARTS_AT_ONCE
            seen = len(opened.answered)
    assert not opened.started


async def test_a_prompt_request_is_answered_before_a_flood_from_its_own_address_is_started() -> (
    None
):
    async with port() as opened:
        for _ in range(100):
            opened.connect(b"flood")
        client = opened.connect(b"prompt!")
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 10) == b"answer"
        assert len(opened.started) <= 2 * STARTS_AT_ONCE


async def test_a_flood_of_prompt_requests_takes_turns_with_other_connections() -> None:
    async with port() as opened:
        for _ in range(60):
            opened.connect(b"prompt!")
        opened.connect(b"usual", "127.0.0.2")
        seen = 0
        while not opened.started:
            await asyncio.sleep(0)
            assert len(opened.answered) - seen <= 1 + STARTS_AT_ONCE
            seen = len(opened.answered)
        assert seen <= 2 * (1 + STARTS_AT_ONCE)
        while len(opened.answered) < 60:  # noqa: ASYNC110 - the event loop answers them
            await asyncio.sleep(0)
    assert not opened.gate.open.total()


async def test_a_long_response_arrives_whole_although_nobody_sends_its_rest() -> None:
    async with port() as opened:
        opened.response = bytes(100_000)
        client = opened.connect(b"prompt!")
        client.setblocking(False)
        received = b""
        while chunk := await asyncio.get_running_loop().sock_recv(client, 2**20):
            received += chunk
    assert len(received) == 100_000


async def test_a_client_that_resets_its_urgent_request_leaves_nothing_open() -> None:
    async with port() as opened:
        for _ in range(2):
            client = opened.connect(b"urgent!")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        opened.connect(b"usual")
        await opened.until(1)
    assert not opened.gate.open.total()


async def test_addresses_take_turns() -> None:
    async with port() as opened:
        for _ in range(100):
            opened.connect(b"flood")
        opened.connect(b"other", "127.0.0.2")
        await opened.until(101)
    assert opened.started.index(b"other") <= 2 * STARTS_AT_ONCE


async def test_an_iteration_of_the_loop_starts_a_bounded_number() -> None:
    async with port() as opened:
        for _ in range(50):
            opened.connect(b"flood")
        seen = 0
        while seen < 50:
            await asyncio.sleep(0)
            assert len(opened.started) - seen <= STARTS_AT_ONCE
            seen = len(opened.started)


async def test_a_silent_connection_is_closed_after_the_timeout() -> None:
    async with port(timeout_seconds=0.01) as opened:
        client = opened.connect(b"")
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 10) == b""
    assert not opened.gate.open.total()
    assert not opened.started


async def test_a_connection_starts_when_its_first_bytes_arrive() -> None:
    async with port(timeout_seconds=PATIENCE_SECONDS) as opened:
        client = opened.connect(b"")
        while not opened.gate.open["127.0.0.1"]:  # noqa: ASYNC110 - counted by the event loop
            await asyncio.sleep(0)
        assert not opened.started
        client.sendall(b"late")
        await opened.until(1)
    assert opened.started == [b"late"]


async def test_a_connection_that_was_closed_before_its_turn_is_not_started() -> None:
    async with port() as opened:
        silent = opened.connect(b"")
        silent.close()
        opened.connect(b"next")
        await opened.until(1)
        while opened.gate.open.total():  # noqa: ASYNC110 - the event loop closes it
            await asyncio.sleep(0)
    assert opened.started == [b"next"]


async def test_the_gate_refuses_before_any_other_work() -> None:
    async with port(Gate(allowed=0)) as opened:
        client = opened.connect(b"hello")
        while not opened.gate.rejected:  # noqa: ASYNC110 - counted by the event loop
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(10) == b""
    assert not opened.started
    assert not opened.gate.open.total()


async def test_stopping_closes_connections_that_wait() -> None:
    async with port() as opened:
        silent, waiting = opened.connect(b""), opened.connect(b"hello")
        while opened.gate.open.total() < 2:  # noqa: ASYNC110 - counted by the event loop
            await asyncio.sleep(0)
        opened.acceptor.stop()
        assert silent.recv(10) == b""
        with contextlib.suppress(ConnectionResetError):
            assert waiting.recv(10) == b""
        with pytest.raises(ConnectionRefusedError):
            opened.connect(b"")
    assert not opened.gate.open.total()


class ExhaustedSocket(socket.socket):
    """A listening socket whose first ``accept`` finds that the process has no descriptor left."""

    failures = 1

    def _accept(self) -> tuple[int, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        accepted: tuple[int, Any] = super()._accept()  # type: ignore[misc]
        return accepted


async def test_a_process_without_descriptors_accepts_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 0.01)
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    listening = ExhaustedSocket(socket.AF_INET)
    listening.bind(("127.0.0.1", 0))
    async with port(listening=listening) as opened:
        opened.connect(b"hello")
        await opened.until(1)
    assert [str(each["exception"]) for each in failed] == ["[Errno 24] Too many open files"]


# -- a lack of memory -----------------------------------------------------------------------------


def fails_once(function: Callable[..., Any]) -> Callable[..., Any]:
    failures = [MemoryError()]

    def call(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("sent", [b"at once", b""], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (socket, "socket"),
        (accepting, "_peeked"),
        (Acceptor, "_queue"),
        (Acceptor, "_next"),
        (Port, "_start"),
    ],
)
async def test_a_failed_allocation_leaves_no_connection_open_that_nobody_serves(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, sent: bytes
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    async with port(timeout_seconds=PATIENCE_SECONDS) as opened:
        client = opened.connect(sent)
        monkeypatch.setattr(owner, name, fails_once(getattr(owner, name)))
        opened.acceptor._start = opened._start  # type: ignore[misc]
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        if not sent:
            for _ in range(3):
                await asyncio.sleep(0)
            with contextlib.suppress(OSError):
                client.send(b"later")
        with contextlib.suppress(ConnectionResetError):
            assert await loop.sock_recv(client, 10) == b""  # served or not, it is closed
        await asyncio.sleep(0)
        assert not opened.gate.open.total()


async def test_a_silent_connection_whose_timer_is_lost_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_SECONDS", 0.0)
    async with port(timeout_seconds=PATIENCE_SECONDS) as opened:
        client = opened.connect(b"")
        client.setblocking(False)
        while not opened.gate.open.total():  # noqa: ASYNC110 - counted by the event loop
            await asyncio.sleep(0)
        (silent,) = opened.acceptor._silent
        opened.acceptor.recover()
        assert opened.acceptor._silent  # its time has not passed
        silent.ends_at = 0.0
        opened.acceptor.recover()
        assert await asyncio.get_running_loop().sock_recv(client, 10) == b""
        assert not opened.gate.open.total()
