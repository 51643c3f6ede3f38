"""A native session is served over whatever connections its client opens, and it ends once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import SecretStr

from burn_remote_protocol.dialects.native import (
    LARGE_CHUNK_BYTES,
    MAX_SIGNATURES,
    UPLOAD_CHUNK_BYTES,
    chunk_head,
    decode_frame,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.dtypes import F32, U8
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    GarbledBytes,
    HandshakeRefused,
    ProtocolViolation,
    QuotaExceeded,
    SessionLost,
    VersionMismatch,
)
from burn_remote_protocol.links.checksummed_links import Checks
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginUpload,
    Chunk,
    Closing,
    Drop,
    Expose,
    Hello,
    Read,
    Refused,
    Reply,
    Resume,
    Sync,
    Task,
    Upload,
    Welcome,
)
from burn_remote_protocol.operations.extensions import ANNOUNCED
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.dialects.native import session_handler
from burn_remote_server.dialects.native.frame_writer import SENT_AT_ONCE
from burn_remote_server.dialects.native.session_attachments import Attachments
from burn_remote_server.dialects.native.session_handler import serve_session
from burn_remote_server.execution.decoding_turns import WEIGHT_AT_ONCE, decoding_weight
from burn_remote_server.execution.sessions import (
    FRAME_COST,
    MAX_WAITING_REPLIES,
    TURN_COST,
    Session,
)
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.native_clients import AsyncNativeClient, batch, turns, until
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
HELLO = encode_frame(Hello((1,)))
TRANSFER = b"t" * 32


class FailingBackend(NumpyBackend):
    """A backend whose reads raise an error that no client can cause: a defect."""

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        return FailingSession(self, self._shared, lambda seed: None, custom)


class FailingSession(ArraySession):
    def read(self, *_: Any) -> memoryview | None:
        raise RuntimeError("a defect of the server")


class Held:
    """A session's worker, inside a call until ``leave``."""

    def __init__(self, session: Session) -> None:
        self.leave = threading.Event()
        session.submit(self._wait)

    def _wait(self) -> None:
        assert self.leave.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def held(session: Session) -> Iterator[Held]:
    """Keep a session's worker busy; release it at the end in any case."""
    call = Held(session)
    try:
        yield call
    finally:
        call.leave.set()


@contextlib.asynccontextmanager
async def hosting(backend: NumpyBackend | None = None, **settings: Any) -> AsyncIterator[Host]:
    async with asyncio.timeout(4 * PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        backends = [NumpyBackend() if backend is None else backend]
        host = Host(Settings(**settings), backends, tasks)  # type: ignore[arg-type]
        try:
            yield host
        finally:
            host.draining.set()


def only_session(host: Host) -> Session:
    (session,) = host.sessions
    return session


# -- the handshake --------------------------------------------------------------------------------


async def test_the_welcome_has_the_session_the_device_and_the_limits() -> None:
    async with hosting(lease_seconds=7, heartbeat_seconds=2.5, port=3001) as host:
        client = AsyncNativeClient(host.devices[0])
        welcome = await client.open()
        session = only_session(host)
        assert (welcome.version, welcome.lease_seconds, welcome.received) == (1, 7, 0)
        assert (welcome.session, welcome.secret) == (session.identifier, session.secret)
        assert welcome.peer_address == "ws://127.0.0.1:3001"
        assert set(welcome.device) == {
            "index",
            "backend",
            "name",
            "memory_bytes",
            "memory_used_bytes",
            "extensions",
        }
        assert welcome.device["extensions"] == ANNOUNCED
        limits = {
            "chunk_bytes": LARGE_CHUNK_BYTES,
            "message_bytes": 64 * 2**20,
            "signatures": MAX_SIGNATURES,
            "heartbeat_milliseconds": 2500,
        }
        assert limits.items() <= welcome.limits.items()
        await client.say(Closing(ClosedDevice("bye")))
        await client.ended()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_message_bytes": 2**20}, UPLOAD_CHUNK_BYTES),
        ({"max_message_bytes": 2**21}, 2 * UPLOAD_CHUNK_BYTES),
        ({"max_total_bytes": 2**26}, UPLOAD_CHUNK_BYTES),
        ({"max_total_bytes": 2**28}, 2**21),
        ({"max_total_bytes": 2**30}, LARGE_CHUNK_BYTES),
    ],
)
async def test_chunks_have_room_in_a_message_and_beside_full_memory(
    settings: dict[str, Any], expected: int
) -> None:
    async with hosting(**settings) as host:
        client = AsyncNativeClient(host.devices[0])
        welcome = await client.open()
        assert welcome.limits["chunk_bytes"] == expected
        await client.say(Closing(ClosedDevice("bye")))
        await client.ended()


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (batch(Sync(1)), ProtocolViolation),
        (b"\x99", ProtocolViolation),
        (b"", ProtocolViolation),
        (encode_frame(Hello((77,))), VersionMismatch),
        (encode_frame(Hello((1,), resume=Resume(1, b"s" * 16, 0))), SessionLost),
    ],
    ids=["batch", "unknown", "empty", "version", "unknown session"],
)
async def test_a_connection_that_begins_wrongly_is_refused_with_the_reason(
    first: bytes, error: type[BurnRemoteError]
) -> None:
    async with hosting() as host:
        link = ScriptedLink([first])
        await serve_session(link, host.devices[0], Attachments())
        refused = decode_frame(link.sent[-1])
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, error)
        assert link.closed_with == (1008, "refused")
        assert (len(link.sent), len(host.sessions)) == (1, 0)
        assert host.counters.sessions_refused == 1


async def test_a_client_that_says_nothing_is_refused() -> None:
    async with hosting(handshake_timeout_seconds=0.01) as host:
        link = ScriptedLink([])
        await serve_session(link, host.devices[0], Attachments())
        refused = decode_frame(link.sent[-1])
        assert isinstance(refused, Refused)
        assert "no Hello arrived within 0.01 seconds" in str(refused.error)


@pytest.mark.parametrize("place", ["path", "Hello"])
async def test_only_a_client_with_a_token_is_admitted(place: str) -> None:
    async with hosting(tokens=SecretStr("alice:alice-has-this-token-1")) as host:
        for token, is_good in (("a-guess-of-the-token", False), ("alice-has-this-token-1", True)):
            admitted = threading.Event()
            in_hello = token if place == "Hello" else None
            in_path = token if place == "path" else None
            link = ScriptedLink([encode_frame(Hello((1,), token=in_hello))])
            link.end()
            await serve_session(link, host.devices[0], Attachments(), in_path, admitted.set)
            assert isinstance(decode_frame(link.sent[0]), Welcome if is_good else Refused)
            assert admitted.is_set() == is_good
        assert host.counters.sessions_refused == 1


async def test_the_token_of_the_hello_precedes_that_of_the_path() -> None:
    async with hosting(tokens=SecretStr("alice:alice-has-this-token-1")) as host:
        link = ScriptedLink([encode_frame(Hello((1,), token="a-guess-of-the-token"))])
        await serve_session(link, host.devices[0], Attachments(), "alice-has-this-token-1")
        assert isinstance(decode_frame(link.sent[0]), Refused)


async def test_another_client_s_session_cannot_be_resumed_even_with_its_secret() -> None:
    tokens = SecretStr("alice:alice-has-this-token-1,bob:bob-has-this-other-one")
    async with hosting(tokens=tokens) as host:
        attachments = Attachments()
        alice = AsyncNativeClient(host.devices[0], attachments)
        await alice.open("alice-has-this-token-1")
        bob = AsyncNativeClient(host.devices[0], attachments)
        bob.welcome = alice.welcome
        with pytest.raises(SessionLost):
            await bob.resume("bob-has-this-other-one")
        await alice.submit(Sync(1))
        assert (await alice.reply()).request == 1
        await alice.hang_up()


async def test_more_sessions_than_allowed_are_refused_and_the_others_continue() -> None:
    async with hosting(max_sessions=1) as host:
        first, second = (AsyncNativeClient(host.devices[0]) for _ in range(2))
        await first.open()
        with pytest.raises(HandshakeRefused, match="1 open sessions"):
            await second.open()
        await first.submit(Sync(1))
        assert (await first.reply()).request == 1
        await first.say(Closing(ClosedDevice("bye")))
        await first.ended()
        await second.open()


# Ids of nine bytes each, many lists, and shorter frames.
@pytest.mark.parametrize(
    "tasks",
    [
        [Drop(tuple(range(2**60, 2**60 + 4000)))],
        [Drop((number,)) for number in range(1000, 4000)],
        [Drop(tuple(range(3, 300)))] * 15,
    ],
    ids=["ids", "lists", "short"],
)
async def test_long_frames_of_many_sessions_are_decoded_in_several_iterations(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Task]
) -> None:
    weights: list[int] = [0]  # of what was decoded in each iteration

    def decode(frame: bytes | memoryview) -> Any:
        weights[-1] += decoding_weight(frame)
        return decode_frame(frame)

    async def count_iterations() -> None:
        while True:
            await asyncio.sleep(0)
            weights.append(0)

    frame = batch(*tasks, Sync(1))
    async with hosting() as host:
        clients = [AsyncNativeClient(host.devices[0], capacity_bytes=2**20) for _ in range(12)]
        for client in clients:
            await client.open()
        monkeypatch.setattr(session_handler, "decode_frame", decode)
        counting = asyncio.ensure_future(count_iterations())
        await asyncio.gather(*(client.near.send(frame) for client in clients))
        for client in clients:
            assert (await client.reply()).request == 1
        counting.cancel()
        assert sum(weights) == 12 * decoding_weight(frame)
        assert max(weights) <= WEIGHT_AT_ONCE + decoding_weight(frame)


async def test_frames_of_nested_lists_of_many_sessions_are_decoded_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once: list[int] = []  # sizes of the frames that were decoded without pauses

    def decode(frame: bytes | memoryview) -> Any:
        at_once.append(len(frame))
        return decode_frame(frame)

    nested = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"
    frame = encode_batch(0, [encode_task(Sync(1)), *[nested] * 50])
    async with hosting() as host:
        clients = [AsyncNativeClient(host.devices[0], capacity_bytes=2**20) for _ in range(5)]
        for client in clients:
            await client.open()
        monkeypatch.setattr(session_handler, "decode_frame", decode)
        await asyncio.gather(*(client.near.send(frame) for client in clients))
        for client in clients:
            assert "malformed task: (32" in str(await client.reason())
        assert not at_once


# -- violations and defects -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        HELLO,
        encode_frame(Reply(1, None)),
        encode_frame(Refused(ConnectionLost("no"))),
        b"",
        b"\x99",
        batch(Sync(1))[:-1],
        batch(Sync(1), received=1),  # acknowledges a frame that was never sent
        encode_frame(Acknowledged(1)),
    ],
    ids=["Hello", "Reply", "Refused", "empty", "kind", "cut", "count", "acknowledged"],
)
async def test_a_violation_ends_that_session_only_and_says_why(frame: bytes) -> None:
    async with hosting() as host:
        bad, good = (AsyncNativeClient(host.devices[0]) for _ in range(2))
        await bad.open()
        await good.open()
        await bad.near.send(frame)
        assert isinstance(await bad.reason(), ProtocolViolation)
        await bad.ended()
        assert len(host.sessions) == 1
        with pytest.raises(SessionLost):
            await bad.resume()
        await good.submit(Sync(1))
        assert (await good.reply()).request == 1
        await good.hang_up()


async def test_chunks_count_as_frames_of_the_session() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.submit(BeginUpload(1, SPEC, SPEC.nbytes), Sync(1))
        await client.reply()
        await client.send_counted(chunk_head(1, 0) + DATA.bytes[:8])
        await client.hang_up()
        await client.ended()
        assert (await client.resume()).received == 2
        await client.hang_up()


async def test_long_chunks_are_acknowledged_before_so_many_frames_have_arrived() -> None:
    spec = TensorSpec((3 * LARGE_CHUNK_BYTES // 4,), F32)
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0], capacity_bytes=2 * spec.nbytes)
        await client.open()
        await client.submit(BeginUpload(1, spec, spec.nbytes))
        for offset in range(0, spec.nbytes, LARGE_CHUNK_BYTES):
            await client.send_counted(chunk_head(1, offset) + bytes(LARGE_CHUNK_BYTES))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert decode_frame(await client.near.receive()) == Acknowledged(4)
        await client.hang_up()


async def test_a_chunk_of_a_tensor_that_is_complete_is_a_violation() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.submit(Upload(1, DATA))
        await client.near.send(chunk_head(1, 0) + b"more")
        reason = str(await client.reason())
        assert "a chunk belongs to payload 1, which is not being uploaded" in reason
        await client.ended()
        assert not host.sessions


@pytest.mark.parametrize("is_checked", [False, True])
async def test_a_chunk_that_was_received_in_its_tensor_is_not_copied(is_checked: bool) -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0], is_checked=is_checked)
        await client.open()
        await client.submit(BeginUpload(1, SPEC, SPEC.nbytes), Sync(1))
        await client.reply()
        assert client.far.place is not None
        header = bytes(Checks().seal(b"")) if is_checked else b""
        placement = client.far.place(header + chunk_head(1, 0), SPEC.nbytes)
        assert placement is not None
        placement.memory[:] = DATA.bytes
        session = only_session(host)
        session.submit_chunk(Chunk(1, 0, placement.memory, is_placed=True))
        await client.submit(Read(2, 1, SPEC))
        assert (await client.reply()).value == DATA.bytes
        await client.hang_up()


async def test_only_the_next_chunk_of_an_upload_has_a_place_in_its_tensor() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.submit(BeginUpload(1, SPEC, SPEC.nbytes), Upload(2, DATA), Sync(1))
        await client.reply()
        await client.send_counted(chunk_head(1, 0) + DATA.bytes[:4])
        await client.submit(Sync(2))
        await client.reply()
        place = client.far.place
        assert place is not None
        assert place(chunk_head(1, 4), 12) is not None
        assert place(chunk_head(1, 4), 13) is None
        assert place(chunk_head(1, 4), 0) is None
        assert place(chunk_head(1, 0), 4) is None
        assert place(chunk_head(1, 8), 4) is None
        assert place(chunk_head(2, 0), 16) is None
        assert place(chunk_head(3, 0), 16) is None
        assert place(batch(Sync(1)), 16) is None
        with held(only_session(host)):
            assert place(chunk_head(1, 4), 12) is None
        await client.hang_up()


async def test_a_link_that_was_taken_over_stores_nothing_more_in_a_tensor() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.submit(BeginUpload(1, SPEC, SPEC.nbytes), Sync(1))
        await client.reply()
        place = client.far.place
        assert place is not None
        placement = place(chunk_head(1, 0), 16)
        assert placement is not None
        assert placement.is_valid()
        await client.resume()
        assert not placement.is_valid()
        assert place(chunk_head(1, 0), 16) is None
        await client.hang_up()


@pytest.mark.parametrize("inline_cost", [0, 10**9], ids=["on the worker", "on the event loop"])
async def test_a_defect_of_the_server_ends_that_session_only(inline_cost: int) -> None:
    async with hosting(FailingBackend(), inline_cost_limit=inline_cost) as host:
        bad, good = (AsyncNativeClient(host.devices[0]) for _ in range(2))
        await bad.open()
        await good.open()
        await bad.submit(Upload(1, DATA), Read(1, 1, SPEC))
        assert "a defect of the server" in str(await bad.reason())
        await bad.ended()
        assert len(host.sessions) == 1
        await good.submit(Sync(1))
        assert (await good.reply()).request == 1
        await good.hang_up()


async def test_replies_that_precede_a_violation_are_sent_before_its_reason() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.submit(Sync(1))
        await client.near.send(b"\x99")
        assert (await client.reply()).request == 1
        assert isinstance(await client.reason(), ProtocolViolation)


# -- breaks and takeovers -------------------------------------------------------------------------


async def test_work_goes_on_without_a_connection_and_its_reply_comes_after_the_resume() -> None:
    async with hosting(inline_cost_limit=0) as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        session = only_session(host)
        with held(session):
            await client.submit(Upload(1, DATA), Read(1, 1, SPEC))
            await until(lambda: session.queued == 2)
            await client.hang_up()
            await client.ended()
            assert only_session(host) is session
        await until(lambda: session.queued == 0)
        welcome = await client.resume()
        assert welcome.received == 1
        assert (await client.reply()).value == DATA.bytes
        await client.say(Closing(ClosedDevice("bye")))
        await client.ended()
        assert not host.sessions


async def test_a_session_is_freed_when_nobody_resumes_it_within_its_lease() -> None:
    async with hosting(lease_seconds=0.01) as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.submit(Upload(1, DATA))
        await client.hang_up()
        await client.ended()
        await until(lambda: not host.sessions)
        with pytest.raises(SessionLost):
            await client.resume()
        assert host.total().tensors == 0


async def test_a_reply_stuck_on_the_old_link_arrives_once_on_the_new_one() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0], capacity_bytes=1)
        await client.open()
        for request in range(5):  # only the first reply has room on the link
            await client.submit(Sync(request))
        await until(lambda: only_session(host).counters.batches == 5)
        old = client.servings[0]
        await client.resume()
        assert [(await client.reply()).request for _ in range(5)] == [*range(5)]
        assert old.done()
        await client.hang_up()


async def test_frames_left_on_the_old_link_are_not_executed_after_a_takeover() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        session = only_session(host)
        hello = client.resumption()
        old = client.near
        client.dial()
        await client.say(hello)
        # The old link's reader wakes up with these frames and the takeover behind it.
        for request in range(3):
            await old.send(batch(Sync(100 + request)))
        welcome = await client.hear()
        executed = welcome.received
        await client.submit(Sync(7))
        replies = [(await client.reply()).request for _ in range(executed + 1)]
        assert replies == [*range(100, 100 + executed), 7]
        assert session.counters.batches == executed + 1
        await client.hang_up()


async def test_a_frame_that_wakes_the_old_reader_after_a_takeover_is_not_executed() -> None:
    async with hosting() as host:
        attachments = Attachments()
        old = ScriptedLink([HELLO])
        serving = [asyncio.create_task(serve_session(old, host.devices[0], attachments))]
        await old.wait_sent(1)
        await turns(3)  # its reader waits
        session = only_session(host)
        resume = Resume(session.identifier, session.secret, 0)
        new = ScriptedLink([encode_frame(Hello((1,), resume=resume))])
        # Both handlers run in the next turn: first the takeover, then the reader of the old link.
        serving.append(asyncio.create_task(serve_session(new, host.devices[0], attachments)))
        old.say([batch(Sync(1))])
        await new.wait_sent(1)
        await turns(5)
        assert not old.frames
        assert session.counters.batches == 0
        assert [type(decode_frame(frame)) for frame in new.sent] == [Welcome]
        new.end()
        await asyncio.wait(serving)


async def test_a_takeover_does_not_close_the_new_link_when_the_old_one_fails() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        old = client.plain
        await old.send(b"\x99")  # a violation, seen only after the takeover or before it
        hello = client.resumption()
        await old.close()
        client.dial()
        await client.say(hello)
        answer = await client.hear()
        if isinstance(answer, Welcome):
            await client.submit(Sync(1))
            assert (await client.reply()).request == 1
        else:
            assert isinstance(answer.error, SessionLost)
            assert not host.sessions
        await client.hang_up()


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["submit", "submit", "take over", "hang up and resume", "hear"]),
        st.integers(1, 12),
    ),
    max_size=24,
)


@hypothesis_settings(max_examples=30)
@given(STEPS, st.booleans(), st.booleans())
def test_however_links_break_each_task_runs_once_and_each_reply_arrives_once(
    steps: list[str | int], is_checked: bool, is_inline: bool
) -> None:
    asyncio.run(_converse(steps, is_checked, is_inline))


async def _converse(steps: list[str | int], is_checked: bool, is_inline: bool) -> None:
    async with hosting(inline_cost_limit=10**9 if is_inline else 0) as host:
        client = AsyncNativeClient(host.devices[0], is_checked=is_checked, capacity_bytes=64)
        await client.open()
        session = only_session(host)
        submitted, answered = 0, list[int]()
        for step in [*steps, "take over"]:
            if isinstance(step, int):
                await turns(step)
            elif step == "submit" and submitted - len(answered) < 10:
                submitted += 1
                await asyncio.wait_for(client.submit(Sync(submitted)), PATIENCE_SECONDS)
            elif step == "hear" and len(answered) < submitted:
                answered.append((await client.reply()).request)
            elif step == "take over":
                await client.resume()
            elif step == "hang up and resume":
                await client.hang_up()
                await client.resume()
        while len(answered) < submitted:
            answered.append((await client.reply()).request)
        assert answered == [*range(1, submitted + 1)]
        assert session.counters.batches == submitted
        assert [*host.sessions] == [session]
        await client.say(Closing(ClosedDevice("bye")))
        await client.ended()
        assert not host.sessions


async def test_a_handler_that_is_cancelled_anywhere_leaves_nothing_behind() -> None:
    """Cancel a conversation after each number of turns, until one is over before."""
    finished = False
    count = 0
    while not finished:
        async with hosting() as host:
            link = ScriptedLink([HELLO, batch(Upload(1, DATA), Read(1, 1, SPEC))])
            link.say([encode_frame(Closing(ClosedDevice("bye")))])
            serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
            await turns(count)
            finished = serving.done()
            serving.cancel()
            await asyncio.wait([serving])
            assert not host.sessions
            assert host.total().tensors == 0
        count += 1
    assert count > 3  # it was cancelled at several places


# -- garbled bytes --------------------------------------------------------------------------------


async def test_a_garbled_frame_breaks_the_link_and_the_session_is_resumed() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0], is_checked=True)
        await client.open()
        await client.submit(Sync(1))
        assert (await client.reply()).request == 1
        await client.plain.send(Checks().seal(batch(Sync(2))))  # not the number that is due
        with pytest.raises(ConnectionLost) as caught:  # without a message of the server
            await client.hear()
        assert not isinstance(caught.value, GarbledBytes)
        await client.submit(Sync(2))
        await client.resume()
        assert (await client.reply()).request == 2
        assert len(host.sessions) == 1
        await client.hang_up()


async def test_a_garbled_hello_is_not_answered() -> None:
    async with hosting() as host:
        sealed = bytearray(Checks().seal(HELLO))
        sealed[-1] ^= 1
        link = ScriptedLink([bytes(sealed)])
        await serve_session(link, host.devices[0], Attachments())
        assert link.sent == []
        assert link.closed_with[0] == 1008


async def test_a_checked_client_hears_a_checked_frame_each_heartbeat() -> None:
    async with hosting(heartbeat_seconds=0.01) as host:
        client = AsyncNativeClient(host.devices[0], is_checked=True)
        await client.open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                assert decode_frame(await client.near.receive()) == Acknowledged(0)
        await client.hang_up()


# -- backpressure and fairness --------------------------------------------------------------------


async def test_a_client_that_reads_no_replies_is_not_read_from() -> None:
    async with hosting() as host:
        link = ScriptedLink([HELLO])
        serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        await link.wait_sent(1)
        link.hold()
        total = 3 * MAX_WAITING_REPLIES
        link.say(batch(Sync(request)) for request in range(total))
        await link.wait_held()
        await until(lambda: len(link.frames) < total)
        await turns(1000)
        assert total - len(link.frames) <= MAX_WAITING_REPLIES + 2
        link.let_go()
        await link.wait_sent(1 + total)
        link.end()
        await serving


async def test_replies_that_a_client_does_not_read_are_bounded_by_the_bytes_of_its_session() -> (
    None
):
    async with hosting(max_session_bytes=3 * 2**20) as host:
        spec = TensorSpec((2**20,), U8)
        data = chunk_head(1, 0) + bytes(spec.nbytes)
        link = ScriptedLink([HELLO, batch(BeginUpload(1, spec, spec.nbytes)), data])
        serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        await link.wait_sent(1)
        await until(lambda: not link.frames)
        link.hold()
        link.say([batch(*[Read(request, 1, spec) for request in range(8)])])
        await link.wait_held()
        link.let_go()
        link.say([batch(Sync(8))])

        def replies() -> dict[int, Any]:
            messages = map(decode_frame, link.sent)
            return {each.request: each.value for each in messages if isinstance(each, Reply)}

        await until(lambda: 8 in replies())
        refused = [value for value in replies().values() if isinstance(value, QuotaExceeded)]
        assert 8 - 4 <= len(refused) < 8
        total = host.total()
        assert total.client_received_bytes > spec.nbytes
        assert total.client_sent_bytes >= spec.nbytes
        link.end()
        await serving


async def test_acknowledgements_for_a_client_that_reads_nothing_do_not_pile_up() -> None:
    async with hosting() as host:
        link = ScriptedLink([HELLO])
        serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        await link.wait_sent(1)
        link.hold()
        link.say([batch()] * 10_000)
        await until(lambda: not link.frames)
        link.let_go()
        link.say([batch(Sync(1))])
        await until(lambda: isinstance(decode_frame(link.sent[-1]), Reply))
        acknowledged = [
            message.received
            for message in map(decode_frame, link.sent)
            if isinstance(message, Acknowledged)
        ]
        assert len(acknowledged) <= 3
        assert acknowledged == sorted(acknowledged)
        assert acknowledged[-1] >= 10_000 - 16
        link.end()
        await serving


async def test_a_flood_of_acknowledgements_does_not_keep_others_waiting() -> None:
    async with hosting() as host:
        left: list[int] = []
        greedy = ScriptedLink([HELLO, *[encode_frame(Acknowledged(0))] * 50_000])
        patient = ScriptedLink([HELLO, batch(Sync(1))], lambda _: left.append(len(greedy.frames)))
        serving = [
            asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
            for link in (greedy, patient)
        ]
        await patient.wait_sent(2)
        assert 50_000 - left[1] <= 12 * (TURN_COST // FRAME_COST + 1)
        greedy.frames.clear()
        for link in (greedy, patient):
            link.end()
        await asyncio.gather(*serving)


async def test_a_large_upload_that_stops_in_the_middle_holds_no_other_session() -> None:
    async with hosting() as host:
        stopped, other = (AsyncNativeClient(host.devices[0]) for _ in range(2))
        await stopped.open()
        await other.open()
        spec = TensorSpec((2**20,), F32)
        await stopped.submit(BeginUpload(1, spec, spec.nbytes))
        await stopped.near.send(chunk_head(1, 0) + bytes(100))
        await other.submit(Upload(1, DATA), Read(1, 1, SPEC))
        assert (await other.reply()).value == DATA.bytes
        await stopped.say(Closing(ClosedDevice("bye")))
        await asyncio.wait(stopped.servings)
        assert len(host.sessions) == 1
        assert host.total().tensors == 1
        await other.hang_up()


# -- ends -----------------------------------------------------------------------------------------


async def test_work_that_was_sent_before_the_end_is_finished_for_others() -> None:
    async with hosting(inline_cost_limit=0) as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        fetching = asyncio.create_task(host.waiting_peers.exposed(("native", TRANSFER)))
        with held(only_session(host)):
            await client.submit(Upload(1, DATA), Expose(1, SPEC, 1, TRANSFER, 60))
            await client.say(Closing(ClosedDevice("bye")))
            await turns(20)
            assert not fetching.done()
        assert (await fetching).spec == SPEC
        await client.ended()
        assert not host.sessions


async def test_a_session_whose_link_breaks_after_closing_ends_with_its_work() -> None:
    async with hosting(inline_cost_limit=0) as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        session = only_session(host)
        fetching = asyncio.create_task(host.waiting_peers.exposed(("native", TRANSFER)))
        with held(session) as first:
            await client.submit(Upload(1, DATA), Read(1, 1, SPEC))
            await until(lambda: session.queued == 2)
            with held(session):
                await client.submit(Expose(1, SPEC, 1, TRANSFER, 60))
                await client.say(Closing(ClosedDevice("bye")))
                await until(lambda: session.queued == 4)
                await turns(5)
                await client.hang_up()
                first.leave.set()  # the reply to the read finds the link broken
                await client.ended()
                assert only_session(host) is session
        assert (await fetching).spec == SPEC
        await until(lambda: not host.sessions)


async def test_a_client_that_ended_its_session_is_told_nothing_more() -> None:
    async with hosting() as host:
        attachments = Attachments()
        client = AsyncNativeClient(host.devices[0], attachments)
        await client.open()
        await client.say(Closing(ClosedDevice("bye")))
        with pytest.raises(ConnectionLost):
            await client.hear()
        assert not host.sessions
        assert attachments._attachments == {}


async def test_a_client_that_leaves_before_the_welcome_leaves_no_session() -> None:
    async with hosting() as host:
        closing = encode_frame(Closing(ClosedDevice("nobody waits for the session")))

        def refuse(frame: bytes) -> None:
            raise ConnectionLost("the client has closed the connection")

        link = ScriptedLink([HELLO, closing], refuse)
        link.end()
        await serve_session(link, host.devices[0], Attachments())
        assert not host.sessions


@pytest.mark.parametrize("replies", [1, MAX_WAITING_REPLIES + 5])
async def test_a_client_that_left_before_its_reply_could_be_sent_leaves_no_session(
    replies: int,
) -> None:
    async with hosting() as host:
        closing = encode_frame(Closing(ClosedDevice("bye")))

        class Breaking(ScriptedLink):
            """A link that breaks at the first reply, and then delivers what had arrived before."""

            delivering: asyncio.Task[None] | None = None

            async def deliver(self) -> None:
                await turns(10)  # so that the handler sees the failure first
                self.say([batch(Sync(10_000)), closing])
                self.end()

            def refuse(self, frame: bytes) -> None:
                if len(self.sent) == 1:
                    return  # the welcome
                if self.delivering is None:
                    self.delivering = asyncio.create_task(self.deliver())
                raise ConnectionLost("the client has closed the connection")

        link = Breaking([HELLO])
        link._on_send = link.refuse
        serving = asyncio.create_task(serve_session(link, host.devices[0], Attachments()))
        await link.wait_sent(1)
        (session,) = host.sessions
        link.hold()  # replies queue up, and are sent by the task
        link.say([batch(*(Sync(number) for number in range(replies)))])
        await link.wait_held()
        link.let_go()
        await serving
        assert session.error is not None
        assert not host.sessions


async def test_a_session_that_is_leaving_cannot_be_resumed() -> None:
    async with hosting(inline_cost_limit=0) as host:
        attachments = Attachments()
        client = AsyncNativeClient(host.devices[0], attachments)
        await client.open()
        session = only_session(host)
        with held(session):
            await client.say(Closing(ClosedDevice("bye")))
            await turns(5)
            with pytest.raises(SessionLost):
                await client.resume()
        await client.ended()
        assert not host.sessions


async def test_a_server_that_shuts_down_answers_what_was_asked_and_says_goodbye() -> None:
    async with hosting(inline_cost_limit=0) as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        session = only_session(host)
        with held(session):
            await client.submit(Upload(1, DATA), Read(1, 1, SPEC))
            await until(lambda: session.queued == 2)
            host.draining.set()
            await turns(5)
            assert not client.servings[0].done()
        assert (await client.reply()).value == DATA.bytes
        assert isinstance(await client.reason(), SessionLost)
        await client.ended()
        assert not host.sessions


async def test_a_client_that_breaks_off_during_shutdown_is_not_waited_for() -> None:
    async with hosting(inline_cost_limit=0) as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        session = only_session(host)
        with held(session):
            await client.submit(Sync(1))
            await until(lambda: session.queued == 2)
            host.draining.set()
            await turns(5)
            await client.hang_up()
        await client.ended()
        assert not host.sessions


async def test_a_session_whose_link_breaks_during_shutdown_is_not_kept_for_a_resume() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        await client.hang_up()
        host.draining.set()
        await client.ended()
        assert not host.sessions


async def test_a_session_that_failed_is_not_kept_when_its_link_breaks() -> None:
    async with hosting() as host:
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        only_session(host).error = BurnRemoteError("a defect")
        await client.hang_up()
        await client.ended()
        assert not host.sessions


async def test_replies_that_wait_when_a_server_shuts_down_are_sent_before_its_goodbye() -> None:
    async with hosting(inline_cost_limit=10**9) as host:
        total = 3 * SENT_AT_ONCE

        def drain_after_the_first(frame: bytes) -> None:
            if isinstance(decode_frame(frame), Reply):
                host.draining.set()

        link = ScriptedLink([HELLO, batch(*map(Sync, range(total)))], drain_after_the_first)
        await serve_session(link, host.devices[0], Attachments())
        welcome, *replies, closing = map(decode_frame, link.sent)
        assert isinstance(welcome, Welcome)
        assert [reply.request for reply in replies] == [*range(total)]
        assert isinstance(closing, Closing)
        assert link.closed_with[0] == 1001


async def test_a_client_that_comes_during_shutdown_is_told_so() -> None:
    async with hosting() as host:
        host.draining.set()
        client = AsyncNativeClient(host.devices[0])
        await client.open()
        assert "shutting down" in str(await client.reason())
        await client.ended()
        assert not host.sessions
