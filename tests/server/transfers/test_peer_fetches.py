"""A fetching server checks everything that a peer sends, and never mixes data of two tries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trustme
from pydantic import SecretStr
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from burn_remote_protocol.dialects.native import chunk_head, decode_frame, encode_frame
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import (
    ConnectionFailed,
    ConnectionLost,
    HandshakeRefused,
    TransferFailed,
)
from burn_remote_protocol.messages import (
    Fetch,
    FetchRequest,
    Hello,
    PeerChallenge,
    Refused,
    Reply,
    Waiting,
    Welcome,
)
from burn_remote_protocol.peer_proofs import peer_key
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access import name_lookups
from burn_remote_server.access.peer_rules import PeerRules
from burn_remote_server.backends import open_backends
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers import peer_fetches as module
from burn_remote_server.transfers import throughput_watchdog
from burn_remote_server.transfers.downloads import Download
from burn_remote_server.transfers.peer_connection import PeerConnection
from burn_remote_server.transfers.peer_fetches import Peers
from burn_remote_server.transfers.retries import REFUSED_TRIES, Retries
from support.patient_clock import patient_clock
from support.scripted import ScriptedLink
from support.source_sockets import SourceSocket
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((20_000,), U8)
GOOD = bytes(range(200)) * 100
WELCOME = encode_frame(Welcome(1, 0, b"", 0.0, {}, {}, "ws://source:1"))
# What a server that fetches sends in ``Hello`` in any case.
SETTINGS = {"waiting": "yes", "waiting_hops": "yes"}

Script = Callable[[int], list[bytes]]


class Source:
    """A peer that replies to each fetch by a script and records the handshakes."""

    def __init__(self, script: Script, welcome: bytes = WELCOME, *, is_older: bool = False) -> None:
        self.is_older = is_older
        self.greetings: list[Hello] = []
        self.answer: Callable[[FetchRequest], list[bytes]] = lambda request: (
            script(request.request) if request.offset == 0 else []
        )
        self._welcome = welcome

    async def serve(self, connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self.handle(SourceSocket(connection, is_older=self.is_older))

    async def handle(self, connection: SourceSocket) -> None:
        self.greetings.append(decode_frame(await connection.recv()))
        await connection.send(self._welcome)
        while True:
            request = decode_frame(await connection.recv())
            assert isinstance(request, FetchRequest)
            for answer in self.answer(request):
                await connection.send(answer)


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        peers = Peers(Settings(), PeerRules(()), tasks, Counters())
        yield peers
        await peers.close()


async def fetched(peers: Peers, source: Source, tls: ssl.SSLContext | None = None) -> bytes:
    backend = open_backends("numpy", 1)[0]
    async with serve(source.serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        scheme = "ws" if tls is None else "wss"
        task = Fetch(b"t" * 32, f"{scheme}://127.0.0.1:{port}", 1, SPEC)
        array = await peers.fetch("native", backend, task)
        return bytes(backend.to_bytes(array, SPEC.dtype))


def whole(request: int) -> list[bytes]:
    data = memoryview(GOOD)
    return [encode_frame(Reply(request, SPEC)), chunk_head(request, 0, data) + data]


async def test_a_tensor_arrives_in_checked_frames(peers: Peers) -> None:
    source = Source(whole)
    assert await fetched(peers, source) == GOOD
    assert [greeting.settings for greeting in source.greetings] == [SETTINGS]


async def test_an_older_source_is_asked_for_checksums_of_chunks(peers: Peers) -> None:
    source = Source(whole, is_older=True)
    assert await fetched(peers, source) == GOOD
    assert [greeting.settings for greeting in source.greetings] == [
        {"chunk_checksum": "xxh3", **SETTINGS}
    ]


async def test_one_refusal_does_not_turn_the_checksums_off(peers: Peers) -> None:
    """A flipped bit of the first byte lets a source take a checked ``Hello`` for a plain one."""

    class Misled(Source):
        async def serve(self, connection: ServerConnection) -> None:
            await super().serve(connection)
            self.is_older = False

    source = Misled(whole, is_older=True)
    assert await fetched(peers, source) == GOOD
    assert [greeting.settings for greeting in source.greetings] == [SETTINGS]


@pytest.mark.parametrize("garbled", ["welcome", "reply", "chunk"])
async def test_after_any_garbled_frame_the_fetch_goes_on_over_another_connection(
    peers: Peers, garbled: str
) -> None:
    class Garbling(Source):
        connections = 0

        async def handle(self, connection: SourceSocket) -> None:
            self.connections += 1
            if self.connections > 1:
                await super().handle(connection)
                return
            await connection.recv()
            frames = {"welcome": WELCOME}
            if garbled != "welcome":
                await connection.send(WELCOME)
                request = decode_frame(await connection.recv()).request
                frames["reply"], frames["chunk"] = whole(request)
                if garbled == "chunk":
                    await connection.send(frames["reply"])
            await connection.garble(frames[garbled])
            await connection.wait_closed()

    source = Garbling(whole)
    assert await fetched(peers, source) == GOOD
    assert source.connections == 2


async def test_checksums_are_not_requested_if_the_operator_disables_them() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        peers = Peers(Settings(transfer_checksum=False), PeerRules(()), tasks, Counters())
        source = Source(whole)
        assert await fetched(peers, source) == GOOD
        assert source.greetings[0].settings == SETTINGS
        await peers.close()


async def test_checksums_are_not_requested_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        settings = Settings(peer_ca=tmp_path / "ca.pem")
        peers = Peers(settings, PeerRules(()), tasks, Counters())
        source = Source(whole)
        assert await fetched(peers, source, tls) == GOOD
        assert source.greetings[0].settings == SETTINGS
        await peers.close()


async def test_chunks_that_are_garbled_each_time_fail_the_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It advances when it is read, so the patience of the fetch does not end in the first try.
    clock = partial(next, itertools.count(0.0, 0.05))
    monkeypatch.setattr(module, "Retries", lambda seconds: Retries(seconds, clock))

    def garbled(request: int) -> list[bytes]:
        spec, chunk = whole(request)
        return [spec, chunk[:-1] + bytes((chunk[-1] ^ 1,))]

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        peers = Peers(Settings(fetch_timeout_seconds=0.2), PeerRules(()), tasks, Counters())
        source = Source(garbled)
        with pytest.raises(TransferFailed, match="garbled"):
            await fetched(peers, source)
        assert len(source.greetings) > 1
        await peers.close()


class Cutting(Source):
    """A peer whose first connections end, before or after the handshake."""

    def __init__(self, cuts: int, *, after_handshake: bool) -> None:
        super().__init__(whole)
        self.connections = 0
        self._cuts = cuts
        self._after_handshake = after_handshake

    async def handle(self, connection: SourceSocket) -> None:
        self.connections += 1
        if self.connections > self._cuts:
            await super().handle(connection)
            return
        if self._after_handshake:
            await connection.recv()
            await connection.send(WELCOME)
            await connection.recv()
        connection.abort()


@pytest.mark.parametrize(("cuts", "after_handshake"), [(8, True), (3, False)])
async def test_a_fetch_survives_a_peer_connection_that_is_cut_again_and_again(
    peers: Peers, cuts: int, after_handshake: bool
) -> None:
    source = Cutting(cuts, after_handshake=after_handshake)
    assert await fetched(peers, source) == GOOD
    assert source.connections == cuts + 1


async def test_a_fetch_from_a_source_that_worked_for_long_survives_a_cut(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(module, "Retries", lambda patience: Retries(patience, lambda: seconds))

    class Working(Source):
        async def handle(self, connection: SourceSocket) -> None:
            nonlocal seconds
            if seconds:
                await super().handle(connection)
            await connection.recv()
            await connection.send(WELCOME)
            request = await asked(connection)
            seconds += 3600.0
            await connection.send(encode_frame(Waiting(request.request)))
            await connection.connection.close()

    assert await fetched(peers, Working(whole)) == GOOD


async def test_after_a_garbled_chunk_the_fetch_goes_on_from_there_on_another_connection(
    peers: Peers,
) -> None:
    asked: list[int] = []

    def garbled_once(request: int, offset: int) -> list[bytes]:
        asked.append(offset)
        data = memoryview(GOOD)
        chunks = [
            chunk_head(request, start, part) + part
            for start in range(offset, 20_000, 5_000)
            if (part := data[start : start + 5_000])
        ]
        if len(asked) == 1:
            chunks[2] = chunks[2][:-1] + bytes((chunks[2][-1] ^ 1,))
        return [encode_frame(Reply(request, SPEC)), *chunks]

    source = Source(whole)
    source.answer = lambda request: (
        garbled_once(request.request, request.offset) if request.offset < 20_000 else []
    )
    assert await fetched(peers, source) == GOOD
    assert asked == [0, 10_000]
    assert len(source.greetings) == 2


async def test_a_second_answer_does_not_mix_with_the_first(peers: Peers) -> None:
    def twice(request: int) -> list[bytes]:
        spec = encode_frame(Reply(request, SPEC))
        return [spec, chunk_head(request, 0) + GOOD[:100], spec]

    with pytest.raises(TransferFailed, match="must reply to each fetch only once"):
        await fetched(peers, Source(twice))


@pytest.mark.parametrize(
    "chunk",
    [
        chunk_head(1, 1) + b"a gap",
        chunk_head(1, 0) + bytes(20_001),
        chunk_head(1, 2**63) + b"far away",
    ],
)
async def test_a_chunk_in_the_wrong_place_fails_the_fetch(peers: Peers, chunk: bytes) -> None:
    with pytest.raises(TransferFailed, match="a chunk at"):
        await fetched(peers, Source(lambda request: [encode_frame(Reply(request, SPEC)), chunk]))


async def test_a_tensor_of_another_shape_is_refused_before_room_is_made(peers: Peers) -> None:
    def larger(request: int) -> list[bytes]:
        return [encode_frame(Reply(request, TensorSpec((2**50,), U8)))]

    with pytest.raises(TransferFailed, match="the source exposed"):
        await fetched(peers, Source(larger))


async def test_a_peer_that_refuses_is_named_with_its_reason(peers: Peers) -> None:
    refusal = encode_frame(Refused(HandshakeRefused("this server needs a peer token")))
    with pytest.raises(TransferFailed, match=r"cannot reach .*127\.0\.0\.1.*needs a peer token"):
        await fetched(peers, Source(whole, refusal))


async def test_a_stranger_that_is_named_as_a_peer_hears_neither_the_peer_token_nor_its_key() -> (
    None
):
    heard: list[bytes] = []

    async def listen(connection: SourceSocket) -> None:
        heard.append(str(connection.connection.request).encode())
        heard.append(await connection.recv())
        await connection.send(encode_frame(PeerChallenge(1, bytes(32))))
        heard.append(await connection.recv())
        await connection.send(WELCOME)
        await connection.wait_closed()

    token = "what-servers-show-each-other"
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        settings = Settings(peer_token=SecretStr(token))
        peers = Peers(settings, PeerRules(()), tasks, Counters())
        stranger = Source(whole)
        stranger.handle = listen  # type: ignore[method-assign]
        with pytest.raises(TransferFailed, match="did not send its own proof"):
            await fetched(peers, stranger)
        await peers.close()
    said = b"".join(heard)
    assert len(heard) == 3 * REFUSED_TRIES
    assert token.encode() not in said
    assert peer_key(token) not in said


async def test_only_small_frames_are_accepted_before_the_proof() -> None:
    async def flood(connection: SourceSocket) -> None:
        await connection.recv()
        with contextlib.suppress(ConnectionClosed):
            await connection.send(b"\x0c" + bytes(module.OPENING_BYTES))

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        settings = Settings(peer_token=SecretStr("what-servers-show-each-other"))
        peers = Peers(settings, PeerRules(()), tasks, Counters())
        stranger = Source(whole)
        stranger.handle = flood  # type: ignore[method-assign]
        with pytest.raises(TransferFailed, match=r"seen 65,546, allowed 65,536"):
            await fetched(peers, stranger)
        await peers.close()


async def test_the_address_of_a_native_peer_has_no_token_that_could_be_sent_in_clear(
    peers: Peers,
) -> None:
    task = Fetch(b"t" * 32, "ws://127.0.0.1:1/token/my-secret", 1, SPEC)
    with pytest.raises(TransferFailed, match="has a token in its path") as caught:
        await peers.fetch("native", open_backends("numpy", 1)[0], task)
    assert "my-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["ws://me:my-secret@a", "ws://a:1\r\nX-Evil: my-secret", "ws://a/?token=my-secret", "x" * 9999],
)
async def test_the_error_for_an_invalid_address_is_one_short_line_without_secrets(
    peers: Peers, address: str
) -> None:
    with pytest.raises(TransferFailed) as caught:
        task = Fetch(b"t" * 32, address, 1, SPEC)
        await peers.fetch("native", open_backends("numpy", 1)[0], task)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    if "X-Evil" not in address:
        assert "my-secret" not in text


async def test_addresses_that_lead_nowhere_do_not_pile_up(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEERS", 3)
    backend = open_backends("numpy", 1)[0]
    for port in range(1, 20):
        with pytest.raises(TransferFailed, match="nothing listens"):
            task = Fetch(b"t" * 32, f"ws://127.0.0.1:{port}", 1, SPEC)
            await peers.fetch("native", backend, task)
    assert len(peers._peers) == 1


async def test_a_peer_that_is_idle_makes_room_for_another(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEERS", 1)
    assert await fetched(peers, Source(whole)) == GOOD
    assert await fetched(peers, Source(whole)) == GOOD
    assert len(peers._peers) == 1


async def test_all_spellings_of_an_address_share_one_connection(peers: Peers) -> None:
    source, backend = Source(whole), open_backends("numpy", 1)[0]
    async with serve(source.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for address in ("ws://127.0.0.1", "WS://127.0.0.1", "Ws://127.0.0.1"):
            for end in ("", "/", "//"):
                task = Fetch(b"t" * 32, f"{address}:{port}{end}", 1, SPEC)
                await peers.fetch("native", backend, task)
    assert len(source.greetings) == 1


async def test_a_connection_that_is_opened_while_another_one_closes_is_closed_too(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await fetched(peers, Source(whole)) == GOOD
    (found,) = peers._peers.values()
    close = found.result().link.close

    async def open_another() -> None:
        assert await fetched(peers, Source(whole)) == GOOD
        await close()

    monkeypatch.setattr(found.result().link, "close", open_another)
    await peers.close()
    assert not peers._peers


async def test_the_connections_of_one_token_leave_room_for_those_of_others(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PEERS", 4)
    backend = open_backends("numpy", 1)[0]
    arrived: asyncio.Queue[int] = asyncio.Queue()

    def keep_waiting(request: int) -> list[bytes]:
        arrived.put_nowait(request)
        return []

    silent = Source(keep_waiting)
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for source in (silent, silent, silent, Source(whole)):
            server = await stack.enter_async_context(serve(source.serve, "127.0.0.1", 0))
            ports.append(server.sockets[0].getsockname()[1])
        tasks = [Fetch(b"t" * 32, f"ws://127.0.0.1:{port}", 1, SPEC) for port in ports]
        waiting = [
            asyncio.create_task(peers.fetch("native", backend, task, party="alice"))
            for task in tasks[:2]
        ]
        for _ in waiting:
            await arrived.get()
        with pytest.raises(TransferFailed, match="this client may open no more"):
            await peers.fetch("native", backend, tasks[2], party="alice")
        await peers.fetch("native", backend, tasks[3], party="bob")
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


# -- peers that are too slow ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def impatient(
    handle: Callable[[SourceSocket], Awaitable[None]],
) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """Run a source, and a server with a stall time of 0.3 s; return its ``Peers``."""

    async def greet(connection: ServerConnection) -> None:
        socket = SourceSocket(connection)
        with contextlib.suppress(ConnectionClosed):
            await socket.recv()
            await socket.send(WELCOME)
            await handle(socket)

    async with (
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(PATIENCE_SECONDS),
        asyncio.TaskGroup() as tasks,
        serve(greet, "127.0.0.1", 0) as server,
    ):
        stack.enter_context(patient_clock())
        peers = Peers(Settings(fetch_timeout_seconds=0.2), PeerRules(()), tasks, Counters())
        backend = open_backends("numpy", 1)[0]
        address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        async def fetch(name: bytes) -> bytes:
            array = await peers.fetch("native", backend, Fetch(name * 32, address, 1, LARGE))
            return bytes(backend.to_bytes(array, LARGE.dtype))

        yield fetch
        await peers.close()


LARGE = TensorSpec((2**25,), U8)


async def asked(connection: SourceSocket) -> FetchRequest:
    request = decode_frame(await connection.recv())
    assert isinstance(request, FetchRequest)
    return request


async def trickle(connection: SourceSocket, request: int) -> None:
    for offset in range(LARGE.nbytes):
        await connection.send(chunk_head(request, offset) + b"a")
        await asyncio.sleep(0)


async def test_a_fetch_from_a_peer_that_does_not_reply_fails() -> None:
    async with impatient(lambda connection: connection.wait_closed()) as fetch:
        with pytest.raises(TransferFailed, match=r"nothing arrived from 127\.0\.0\.1"):
            await fetch(b"a")


async def test_a_fetch_from_a_peer_that_stops_midway_fails() -> None:
    async def stop(connection: SourceSocket) -> None:
        request = (await asked(connection)).request
        await connection.send(encode_frame(Reply(request, LARGE)))
        await connection.send(chunk_head(request, 0) + bytes(100))
        await connection.wait_closed()

    async with impatient(stop) as fetch:
        with pytest.raises(TransferFailed, match=r"nothing arrived from 127\.0\.0\.1"):
            await fetch(b"a")


async def test_a_fetch_from_a_peer_that_sends_too_slowly_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(connection: SourceSocket) -> None:
        request = (await asked(connection)).request
        await connection.send(encode_frame(Reply(request, LARGE)))
        await trickle(connection, request)

    monkeypatch.setattr(throughput_watchdog, "MIN_BYTES_PER_SECOND", 2**40)
    async with impatient(answer) as fetch:
        with pytest.raises(TransferFailed, match=r"too little arrived from 127\.0\.0\.1"):
            await fetch(b"a")


async def test_only_the_fetch_that_the_peer_forgets_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(connection: SourceSocket) -> None:
        both = [(await asked(connection)).request for _ in range(2)]
        for request in both:
            await connection.send(encode_frame(Reply(request, LARGE)))
        trickling = asyncio.create_task(trickle(connection, both[1]))
        assert (await asked(connection)).request == both[0]  # that is enough
        trickling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await trickling
        was_forgotten.set()
        await connection.wait_closed()

    monkeypatch.setattr(throughput_watchdog, "MAX_LAG_BYTES", 1)
    monkeypatch.setattr(throughput_watchdog, "MIN_BYTES_PER_SECOND", 1)
    was_forgotten = asyncio.Event()
    async with impatient(answer) as fetch:
        forgotten = asyncio.ensure_future(fetch(b"a"))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(fetch(b"b"))
        with pytest.raises(TransferFailed, match="bytes, but the tensor did not make progress"):
            await forgotten
        assert not other.done()
        await was_forgotten.wait()
        other.cancel()


async def test_a_fetch_that_finds_its_connection_closed_may_be_tried_on_another() -> None:
    """Sending detects it before the receiving task does."""

    class Closed(ScriptedLink):
        async def send(self, frame: bytes) -> None:
            raise ConnectionLost("the peer hung up")

    peer = PeerConnection(Closed([]), Counters(), 5.0, may_borrow=False)
    with pytest.raises(TransferFailed, match="hung up"):
        await peer.fetch(b"t" * 32, Download(open_backends("numpy", 1)[0], SPEC))
    assert peer.is_broken


async def test_the_addresses_of_a_name_share_the_timeout_of_a_handshake(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.3", "127.0.0.1"]

    waited: list[float] = []

    async def connect(*_: object, timeout_seconds: float, **others: object) -> None:
        waited.append(timeout_seconds)
        raise ConnectionFailed("nothing listens")

    monkeypatch.setattr(name_lookups, "addresses_of", look_up)
    monkeypatch.setattr(module, "connect_async", connect)
    with pytest.raises(ConnectionFailed):
        await peers._dial("ws://localhost", "/peer", 1, "")
    assert len(waited) == 3
    assert sum(waited) == pytest.approx(Settings().handshake_timeout_seconds)


async def test_all_addresses_of_a_name_are_tried(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, port: int) -> list[str]:
        # Nothing listens at the first, and the second hangs up.
        return ["127.0.0.2", "127.0.0.3", "127.0.0.1"]

    hung_up = asyncio.Event()

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        hung_up.set()

    backend = open_backends("numpy", 1)[0]
    async with serve(Source(whole).serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with await asyncio.start_server(hang_up, "127.0.0.3", port):
            monkeypatch.setattr(name_lookups, "addresses_of", look_up)
            task = Fetch(b"t" * 32, f"ws://localhost:{port}", 1, SPEC)
            array = await peers.fetch("native", backend, task)
    assert bytes(backend.to_bytes(array, SPEC.dtype)) == GOOD
    assert hung_up.is_set()
