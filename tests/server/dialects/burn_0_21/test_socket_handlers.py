"""Burn's sockets: admission, small transfer ids, and limits of queued work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from burn_remote_protocol.dialects.bounded_unpacking import STEP_BYTES, Steps
from burn_remote_protocol.dialects.burn_0_21 import encode_close, encode_init, encode_tasks
from burn_remote_protocol.dialects.burn_0_21_responses import decode_reply, encode_data_request
from burn_remote_protocol.dtypes import F32, I32
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Execute, Expose, Read, Sync, Upload
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from burn_remote_server.access.peer_rules import PeerRules
from burn_remote_server.backends import open_backends
from burn_remote_server.dialects.burn_0_21 import socket_handlers
from burn_remote_server.dialects.burn_0_21.idle_connections import IdleConnections
from burn_remote_server.dialects.burn_0_21.socket_handlers import (
    IDLE_SHARE,
    MAX_BATCH_FRAMES,
    POLICY_VIOLATION,
    send_replies,
    serve_data,
    serve_request,
    serve_response,
)
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import BurnSessions
from burn_remote_server.execution.decoding_turns import LARGE_FRAME_BYTES
from burn_remote_server.execution.sessions import MAX_WAITING_REPLIES
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from support.kernels import signature
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

ALICE = "alice-has-this-token-1"
BOB = "bob-has-this-other-one"
SPEC = TensorSpec((4,), F32)
DATA = TensorData(np.arange(4, dtype=np.float32).tobytes(), SPEC.shape, SPEC.dtype)
INIT = encode_init(7)


def scripted(frames: list[bytes]) -> Any:
    """Return a scripted link in place of a WebSocket."""
    return ScriptedLink(frames)


def settings(**values: object) -> Settings:
    tokens = SecretStr(f"alice:{ALICE},bob:{BOB}")
    return Settings(tokens=tokens, **values)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        yield Host(settings(), open_backends("numpy", 1), tasks)


@pytest.fixture
def sessions() -> BurnSessions:
    return BurnSessions()


def held(leave: threading.Event) -> None:
    assert leave.wait(PATIENCE_SECONDS)


def upload_and_read(count: int = 1) -> list[bytes]:
    reads = [encode_tasks([Read(number, 1, SPEC)], number) for number in range(count)]
    return [encode_tasks([Upload(1, DATA)], 0), *reads]


def serve_both(
    host: Host, sessions: BurnSessions, request: ScriptedLink, response: ScriptedLink
) -> list[asyncio.Task[None]]:
    """Start the handlers of both sockets of a session."""
    return [
        asyncio.create_task(serve_request(request, host.devices[0], sessions, ALICE)),
        asyncio.create_task(serve_response(response, host.devices[0], sessions, ALICE)),
    ]


async def converse(
    host: Host,
    sessions: BurnSessions,
    request: ScriptedLink,
    response: ScriptedLink,
    *,
    replies: int,
) -> None:
    """Serve both sockets of a session until it has sent its replies, then end them."""
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(replies)
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)


async def test_both_sockets_with_the_token_are_one_session(
    host: Host, sessions: BurnSessions
) -> None:
    request = scripted([INIT, *upload_and_read()])
    response = scripted([INIT])
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(1)
    assert decode_reply(response.sent[0]).value == DATA
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)
    assert len(host.sessions) == 0


async def test_a_small_reply_is_sent_in_the_iteration_of_the_loop_in_which_it_is_ready(
    host: Host, sessions: BurnSessions
) -> None:
    link = scripted([])
    session = sessions.join(host.devices[0], 7, "/request", host.access.admit(ALICE))
    sending = asyncio.create_task(send_replies(link, session))
    await asyncio.sleep(0)

    session.submit([Sync(5)], 10)

    assert [decode_reply(frame).request for frame in link.sent] == [5]
    session.ended.set()
    session.notify()
    await sending
    sessions.leave(host.devices[0], 7, session)


class ArrivingLink(ScriptedLink):
    """A scripted link that calls the handler of arriving frames when ``arrive`` is called."""

    handler: Any = None

    def call_on_arrival(self, handler: object, take: object = None) -> None:
        self.handler = handler

    def arrive(self, *frames: bytes) -> None:
        """Let frames arrive while a task waits in ``receive``."""
        self.frames.extend(frames)
        self.handler()


async def test_short_requests_are_answered_in_the_callback_of_their_arrival(
    host: Host, sessions: BurnSessions
) -> None:
    request, response = ArrivingLink([INIT]), ScriptedLink([INIT])
    serving = serve_both(host, sessions, request, response)
    # The replies to the first frames show that both handlers wait now.
    request.say(upload_and_read())
    await response.wait_sent(1)
    await asyncio.sleep(0)

    request.arrive(*upload_and_read(3))

    replies = [decode_reply(frame).request for frame in response.sent]
    assert (replies, [*request.frames]) == ([0, 0, 1, 2], [])
    # Long frames are left to the task, so that their decoding may pause.
    long = Upload(2, TensorData(bytes(4 * LARGE_FRAME_BYTES), (LARGE_FRAME_BYTES,), F32))
    request.arrive(encode_tasks([long], 0), encode_tasks([Sync(9)], 9))
    assert len(request.frames) == 2
    request.end()
    response.end()
    await asyncio.gather(*serving)


async def test_a_session_that_is_closed_in_the_callback_executes_what_came_before(
    host: Host, sessions: BurnSessions
) -> None:
    request, response = ArrivingLink([INIT]), ScriptedLink([INIT])
    serving = serve_both(host, sessions, request, response)
    request.say(upload_and_read())
    await response.wait_sent(1)
    with pytest.raises(socket_handlers._Closed):
        request.arrive(encode_tasks([Sync(5)], 5), encode_close(7))
    assert [decode_reply(frame).request for frame in response.sent] == [0, 5]
    request.end()
    response.end()
    await asyncio.gather(*serving)


async def test_others_run_while_a_client_floods_the_socket_for_responses(
    host: Host, sessions: BurnSessions
) -> None:
    request, response = scripted([INIT]), scripted([INIT, *[b"flood"] * 10_000])
    serving = serve_both(host, sessions, request, response)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(response.frames) > 9_000
    response.frames.clear()
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)


@pytest.mark.parametrize("first", ["/request", "/response"])
async def test_the_sockets_of_a_session_may_come_in_any_order(
    first: str, host: Host, sessions: BurnSessions
) -> None:
    links = {"/request": scripted([INIT, *upload_and_read()]), "/response": scripted([INIT])}
    serve = {"/request": serve_request, "/response": serve_response}
    serving = []
    for route in sorted(links, key=lambda route: route != first):
        serving.append(
            asyncio.create_task(serve[route](links[route], host.devices[0], sessions, ALICE))
        )
        await asyncio.sleep(0)  # it joins before the other socket opens
    await links["/response"].wait_sent(1)
    for link in links.values():
        link.end()
    await asyncio.gather(*serving)


@pytest.mark.parametrize("serve", [serve_request, serve_response])
async def test_a_session_whose_other_socket_never_comes_is_closed_and_freed(
    serve: Any, sessions: BurnSessions
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        short = settings(handshake_timeout_seconds=0.01)
        host = Host(short, open_backends("numpy", 1), tasks)
        frames = upload_and_read() if serve is serve_request else []
        await serve(scripted([INIT, *frames]), host.devices[0], sessions, ALICE)
        assert len(host.sessions) == 0


async def test_a_second_socket_of_a_kind_is_refused_and_the_first_goes_on(
    host: Host, sessions: BurnSessions
) -> None:
    request = scripted([INIT])
    serving = asyncio.create_task(serve_request(request, host.devices[0], sessions, ALICE))
    await asyncio.sleep(0)  # the session opens
    second = scripted([INIT])
    await serve_request(second, host.devices[0], sessions, ALICE)
    assert "already has a /request socket" in second.closed_with[1]
    assert len(host.sessions) == 1
    request.end()
    await serving


async def test_a_response_over_the_clients_frame_limit_is_sent_in_fragments(
    host: Host, sessions: BurnSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_handlers, "WHOLE_BYTES", 40)
    monkeypatch.setattr(socket_handlers, "ONE_FRAME_BYTES", 40)
    monkeypatch.setattr(socket_handlers, "FRAGMENT_BYTES", 30)
    large = TensorData(bytes(range(100)), (25,), F32)
    read = encode_tasks([Read(1, 2, large.spec)], 1)
    request = scripted([INIT, encode_tasks([Upload(2, large)], 0), read, *upload_and_read()])
    response = scripted([INIT])
    fragmented: list[int | None] = []
    send_buffers = response.send_buffers

    async def record_fragments(pieces: Any, fragment_bytes: int | None = None) -> None:
        fragmented.append(fragment_bytes)
        await send_buffers(pieces, fragment_bytes)

    response.send_buffers = record_fragments
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(2)
    assert [decode_reply(frame).value for frame in response.sent] == [large, DATA]
    assert fragmented == [30] * 2
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)


@pytest.mark.parametrize("token", [None, "", "x" * 30])
async def test_a_socket_without_a_known_token_opens_nothing(
    host: Host, sessions: BurnSessions, token: str | None
) -> None:
    link = scripted([INIT, *upload_and_read()])
    await serve_request(link, host.devices[0], sessions, token)
    assert link.closed_with[0] == 1008
    assert "token" in link.closed_with[1]
    assert len(host.sessions) == 0


async def test_another_token_cannot_join_a_session_by_its_id(
    host: Host, sessions: BurnSessions
) -> None:
    request = scripted([INIT])
    serving = asyncio.create_task(serve_request(request, host.devices[0], sessions, ALICE))
    await asyncio.sleep(0)  # the session opens
    eavesdropping = scripted([INIT])
    await serve_response(eavesdropping, host.devices[0], sessions, BOB)
    reason = "both sockets of a session must present the same token"
    assert eavesdropping.closed_with == (1008, reason)
    request.end()
    await serving


async def exposed_as(
    host: Host, sessions: BurnSessions, transfer: int
) -> tuple[Any, asyncio.Task[None]]:
    tasks = [encode_tasks([Upload(1, DATA)], 0), encode_tasks([Expose(1, SPEC, 1, transfer, 9)], 1)]
    request = scripted([INIT, *tasks])
    serving = asyncio.create_task(serve_request(request, host.devices[0], sessions, ALICE))
    return request, serving


@pytest.mark.parametrize(
    ("address", "token", "is_served"),
    [
        ("192.0.2.7", None, False),
        ("192.0.2.7", "guessed-guessed-guessed", False),
        ("192.0.2.7", ALICE, True),
        ("10.1.2.3", None, True),
    ],
)
async def test_small_ids_are_served_to_tokens_and_allowed_addresses_only(
    host: Host, sessions: BurnSessions, address: str, token: str | None, is_served: bool
) -> None:
    host.peer_rules = PeerRules(["10.0.0.0/8"], lambda _: False)  # type: ignore[misc]
    request, serving = await exposed_as(host, sessions, 3)
    link = scripted([encode_data_request(3)])
    link.peer_host = address
    fetching = asyncio.create_task(serve_data(link, host.devices[0], token, "", IdleConnections()))
    if is_served:
        await link.wait_sent(1)
        link.end()
    await fetching
    assert bool(link.sent) == is_served
    request.end()
    await serving


@contextlib.asynccontextmanager
async def at_once() -> AsyncIterator[None]:
    """Take the place of a turn for decoding, without its pause."""
    yield


async def test_reading_pauses_for_a_client_that_reads_no_responses(
    sessions: BurnSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4 * MAX_WAITING_REPLIES
    request = scripted([INIT, *upload_and_read(count)])
    response = scripted([INIT])
    response.hold()
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(settings(session_queue_batches=2), open_backends("numpy", 1), tasks)
        monkeypatch.setattr(host.decoding, "turn", at_once)
        serving = serve_both(host, sessions, request, response)
        await response.wait_held()
        (session,) = host.sessions
        left = -1
        while session.queued or left != len(request.frames):
            left = len(request.frames)
            for _ in range(100):
                await asyncio.sleep(0)
        # Queued responses, two batches queued for the worker, and one that is being decoded.
        assert left > count - MAX_WAITING_REPLIES - 3 * MAX_BATCH_FRAMES
        response.let_go()
        await response.wait_sent(count)
        assert not request.frames
        for link in (request, response):
            link.end()
        await asyncio.gather(*serving)


async def test_responses_beyond_the_sessions_quota_are_refused(
    sessions: BurnSessions,
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(settings(max_session_bytes=300), open_backends("numpy", 1), tasks)
        request = scripted([INIT, *upload_and_read(20)])
        response = scripted([INIT])
        response.hold()
        serving = [
            asyncio.create_task(serve_response(response, host.devices[0], sessions, ALICE)),
            asyncio.create_task(serve_request(request, host.devices[0], sessions, ALICE)),
        ]
        await response.wait_held()
        response.let_go()
        await response.wait_sent(20)
        answers = [decode_reply(frame).value for frame in response.sent]
        refused = [value for value in answers if isinstance(value, OperationFailed)]
        assert DATA in answers
        assert "300 are allowed" in str(refused[0])
        for link in (request, response):
            link.end()
        await asyncio.gather(*serving)


async def test_garbage_gets_a_response_and_closes_no_socket(
    host: Host, sessions: BurnSessions
) -> None:
    request = scripted([INIT, b"\xc1 no task", *upload_and_read(2), encode_tasks([Sync(9)], 9)])
    response = scripted([INIT])
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(3)
    answers = [decode_reply(frame).value for frame in response.sent]
    assert all("not MessagePack" in str(value) for value in answers)
    assert not any(task.done() for task in serving)
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)


async def test_others_run_between_the_steps_of_a_long_message(
    host: Host, sessions: BurnSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    async def counted(decoding: Steps[Any]) -> Any:
        for count in itertools.count():
            try:
                next(decoding)
            except StopIteration as ended:
                steps.append(count)
                return ended.value
        raise AssertionError("unreachable")

    monkeypatch.setattr(host.decoding, "run", counted)
    nested = b"\xdc\x01\xf4" + (b"\x91" * 1000 + b"\xc0") * 500
    request = scripted([INIT, nested, *upload_and_read(2)])
    response = scripted([INIT])
    await converse(host, sessions, request, response, replies=1)
    assert len(steps) == 1
    assert steps[0] >= len(nested) // STEP_BYTES


def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of tasks of each batch."""
    counts: list[int] = []
    decode = socket_handlers._decoded_batch

    def counting(*arguments: Any) -> Any:
        batch = decode(*arguments)
        counts.append(len(batch.tasks))
        return batch

    monkeypatch.setattr(socket_handlers, "_decoded_batch", counting)
    return counts


async def test_different_operations_are_decoded_a_few_at_a_time_and_others_run_between(
    host: Host, sessions: BurnSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = batches(monkeypatch)
    made = [signature("Base.Zeros", out=TensorSpec((3, size), F32)) for size in range(1, 101)]
    operations = [encode_tasks([Execute(Operation(each, (5,)))], 1) for each in made]
    known = [encode_tasks([Execute(Operation(made[0], (5,)))], 1)] * 100
    request = scripted([INIT, *operations, *known, encode_tasks([Sync(9)], 9)])
    response = scripted([INIT])
    await converse(host, sessions, request, response, replies=1)
    assert sum(decoded) == 201
    assert decoded[:6] == [socket_handlers.MAX_UNKNOWN_FRAMES] * 6
    assert max(decoded) >= 100  # a repeated operation is recognized


async def test_frames_that_are_decoded_in_one_turn_are_bounded_by_their_bytes(
    host: Host, sessions: BurnSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = batches(monkeypatch)
    spec = TensorSpec((LARGE_FRAME_BYTES // 8,), F32)
    data = TensorData(bytes(spec.nbytes), spec.shape, spec.dtype)
    uploads = [encode_tasks([Upload(number, data)], number) for number in range(9)]
    request = scripted([INIT, *uploads, encode_tasks([Sync(9)], 9)])
    response = scripted([INIT])
    await converse(host, sessions, request, response, replies=1)
    assert sum(decoded) == 10
    assert max(decoded) == 2


async def test_a_sync_reports_a_failure_that_no_read_reported(
    host: Host, sessions: BurnSessions
) -> None:
    use = TensorUse(SPEC, TensorStatus.READ_ONLY)
    out = use._replace(status=TensorStatus.NOT_INIT)
    add = Execute(Operation(sign(numeric.ADD, use, use, out), (5, 5, 6)))
    failing = encode_tasks([add], 0)
    first = [failing, encode_tasks([Sync(1)], 1), encode_tasks([Read(2, 6, SPEC)], 2)]
    second = [failing, encode_tasks([Read(3, 6, SPEC)], 3), encode_tasks([Sync(4)], 4)]
    request = scripted([INIT, *first, *second])
    response = scripted([INIT])
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(4)
    answers = {answer.request: answer.value for answer in map(decode_reply, response.sent)}
    assert [isinstance(answers[number], OperationFailed) for number in (1, 2, 3)] == [True] * 3
    assert answers[4] is None
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)


async def test_a_stopping_server_responds_to_earlier_requests(
    host: Host, sessions: BurnSessions
) -> None:
    request = scripted([INIT, *upload_and_read(5)])
    response = scripted([INIT])
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(1)
    host.draining.set()
    await asyncio.gather(*serving)
    assert len(response.sent) == 5
    assert len(host.sessions) == 0


async def test_a_session_in_a_long_operation_does_not_delay_others(
    host: Host,
    sessions: BurnSessions,
) -> None:
    busy = scripted([INIT])
    serving = [asyncio.create_task(serve_request(busy, host.devices[0], sessions, ALICE))]
    await asyncio.sleep(0)  # the session opens
    leave = threading.Event()
    next(iter(host.sessions)).submit(lambda: held(leave))
    other = encode_init(8)
    request = scripted([other, *upload_and_read()])
    response = scripted([other])
    serving += [
        asyncio.create_task(serve_request(request, host.devices[0], sessions, BOB)),
        asyncio.create_task(serve_response(response, host.devices[0], sessions, BOB)),
    ]
    await response.wait_sent(1)
    leave.set()
    for link in (busy, request, response):
        link.end()
    await asyncio.gather(*serving)


async def test_an_unknown_peer_without_requests_is_disconnected() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        settings_ = settings(handshake_timeout_seconds=0.01)
        host = Host(settings_, open_backends("numpy", 1), tasks)
        host.peer_rules = PeerRules((), lambda _: False)  # type: ignore[misc]
        link = scripted([])
        link.peer_host = "192.0.2.7"
        await serve_data(link, host.devices[0], None, "", IdleConnections())
        assert "within 0.01 seconds" in link.closed_with[1]


async def test_only_so_many_known_peers_are_idle_and_the_longest_idle_is_disconnected(
    sessions: BurnSessions,
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(settings(max_connections=3 * IDLE_SHARE), open_backends("numpy", 1), tasks)
        idle = IdleConnections()
        links = [scripted([]) for _ in range(4)]
        serving = []
        for link in links:
            serving.append(asyncio.create_task(serve_data(link, host.devices[0], ALICE, "", idle)))
            for _ in range(5):
                await asyncio.sleep(0)
        await serving[0]
        code, reason = links[0].closed_with
        assert code == POLICY_VIOLATION
        assert reason == "idle connections of peers: seen 4, allowed 3"
        # The others are served after any time.
        request, exposing = await exposed_as(host, sessions, 3)
        links[1].say([encode_data_request(3)])
        await links[1].wait_sent(1)
        for link in (request, *links[1:]):
            link.end()
        await asyncio.gather(exposing, *serving)
        assert [link.closed_with for link in links[1:]] == 3 * [(0, "")]


async def test_a_known_peer_that_does_not_read_is_disconnected(sessions: BurnSessions) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(settings(fetch_timeout_seconds=0.01), open_backends("numpy", 1), tasks)
        request, exposing = await exposed_as(host, sessions, 3)
        link = scripted([encode_data_request(3)])
        link.hold()
        await serve_data(link, host.devices[0], ALICE, "", IdleConnections())
        code, reason = link.closed_with
        assert code == POLICY_VIOLATION
        assert reason.startswith("a script read 0 bytes within 0.01 seconds")
        request.end()
        await exposing


async def test_an_unknown_operation_without_tensors_fails_and_the_session_continues(
    host: Host, sessions: BurnSessions
) -> None:
    values, out = TensorSpec((4,), I32), TensorSpec((1,), I32)
    positions = signature("Numeric.ArgMax", values, axis=0, accumulator_len=1, out=out)
    nothing = decode_operation({"Custom": ["nothing", [], []]})
    tasks: list[Any] = [Upload(1, DATA), Execute(Operation(positions, (2, 3))), Execute(nothing)]
    frames = [encode_tasks([task], 0) for task in tasks]
    request = scripted([INIT, *frames, encode_tasks([Sync(1)], 1)])
    response = scripted([INIT])
    serving = serve_both(host, sessions, request, response)
    await response.wait_sent(1)
    request.say([encode_tasks([Read(2, 1, SPEC)], 2)])
    await response.wait_sent(2)
    assert decode_reply(response.sent[1]).value == DATA
    for link in (request, response):
        link.end()
    await asyncio.gather(*serving)
