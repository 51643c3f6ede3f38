"""Fuzz targets: functions of bytes that may only succeed or raise the expected error."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.dialects.burn_0_21 import (
    Close,
    decode_init,
    decode_tasks,
    encode_close,
    encode_init,
    encode_tasks,
)
from burn_remote_protocol.dialects.burn_responses import (
    BurnReply,
    decode_data,
    decode_data_request,
    decode_reply,
    encode_data,
    encode_data_request,
    encode_reply,
)
from burn_remote_protocol.dialects.native import (
    Batch,
    decode_frame,
    decode_task,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import (
    BurnRemoteError,
    HandshakeRefused,
    OperationFailed,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.messages import (
    BeginUpload,
    Chunk,
    Cleanup,
    Closing,
    Define,
    Drop,
    Execute,
    Expose,
    Fetch,
    FetchRequest,
    Hello,
    Lent,
    PeerChallenge,
    PeerConfirmation,
    PeerProof,
    QueryDType,
    Read,
    Refused,
    Reply,
    Resume,
    Seed,
    Sync,
    Upload,
    Waiting,
    Welcome,
)
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.peer_proofs import PROOF, PROOF_SETTING
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.peer_authentication import admit_target, prove_to_source
from burn_remote_server.backends import open_backends
from burn_remote_server.backends.interface import Backend
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.exposed import Transfers
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.hosting.host import new_interpreter
from burn_remote_server.hosting.local import LocalLink
from burn_remote_server.settings.server_settings import Settings
from support.recorded import golden
from support.scripted import ScriptedLink

__all__ = ["SEEDS", "TARGETS"]

# Small limits, so that an unchecked allocation shows as growth.
SETTINGS: Final = Settings(
    max_session_bytes=2**20, max_session_tensors=200, fetch_timeout_seconds=0.001
)
_LENGTH: Final = struct.Struct(">H")


def native_frame(data: bytes) -> None:
    """Decode a frame of the native dialect and its tasks; valid ones must survive a round trip."""
    try:
        message = decode_frame(data)
        if isinstance(message, Batch):
            for task in message.tasks:
                decode_task(task)
            return
    except ProtocolViolation:
        return
    if not isinstance(message, Chunk):
        again = encode_frame(message)
        assert encode_frame(decode_frame(again)) == again


def operation(data: bytes) -> None:
    """Decode an operation of both dialects; valid ones must survive a round trip."""
    try:
        decoded = decode_operation(unpack_frozen(data))
    except ProtocolViolation:
        return
    packed = msgpack.packb(encode_operation(decoded))
    assert decode_operation(unpack_frozen(packed)) == decoded


def burn_frame(data: bytes) -> None:
    """Decode a frame of each of Burn's sockets, in both directions."""
    for decode in (decode_tasks, decode_init, decode_reply, decode_data, decode_data_request):
        with contextlib.suppress(ProtocolViolation):
            decode(data)


def burn_session(data: bytes) -> None:
    """Feed Burn's frames to a session: it executes or refuses them, and frees everything."""
    outbox = BurnAnswers()
    interpreter = new_interpreter(_backend(), SETTINGS, outbox)
    engine = Engine(interpreter, Transfers(), outbox, transfer_domain="burn-0.21")
    try:
        for frame in split(data):
            for task in decode_tasks(frame):
                if isinstance(task, Operation):
                    interpreter.execute(task)
                elif not isinstance(task, Close):
                    engine.handle(task)
    except ProtocolViolation:
        pass
    finally:
        engine.close()
    quota = interpreter.quota
    assert (quota.bytes, quota.tensors) == (0, 0), f"{quota.bytes} bytes are left"


class BurnAnswers:
    """An outbox that encodes responses without sending them, and fails every fetch."""

    def reply(self, request: int, value: TensorData | BurnRemoteError | int | None) -> None:
        frame = b"".join(encode_reply(BurnReply(request, value)))
        decode_reply(frame)

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        pass

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        slot.fail(TransferFailed("no server is there"))


def session(data: bytes) -> None:
    """Feed frames to a session: it responds or refuses them, and frees everything."""
    link = LocalLink(_backend(), SETTINGS)
    link.send(HELLO)
    try:
        for frame in split(data):
            if link.closed:
                break
            link.send(frame)
    finally:
        link.close()
    quota = link._interpreter.quota
    assert (quota.bytes, quota.tensors) == (0, 0), f"{quota.bytes} bytes are left"


def peer_handshake(data: bytes) -> None:
    """Send frames to both sides of the peer handshake, which fail or wait for more.

    Neither ever succeeds: the input does not know the key.
    """
    asyncio.run(_refused_by_both([*split(data)]))


async def _refused_by_both(frames: list[bytes]) -> None:
    await _refused_by_source(frames)
    await _refused_by_target(frames)


async def _refused_by_source(frames: list[bytes]) -> None:
    try:
        hello = decode_frame(frames[0]) if frames else None
        if isinstance(hello, Hello):
            link = ScriptedLink(frames[1:])
            link.end()
            await admit_target(link, hello, 1, [_KEY], ["ws://a:1"], timeout_seconds=1)
            raise AssertionError("admitted without the key")
    except BurnRemoteError:
        pass


async def _refused_by_target(frames: list[bytes]) -> None:
    link = ScriptedLink(frames)
    link.end()
    try:
        await prove_to_source(link, Address("ws", "a", 1), Hello((1,)), _KEY)
        raise AssertionError("admitted without the key")
    except BurnRemoteError:
        pass


def split(data: bytes) -> Iterator[bytes]:
    """Split an input into length-prefixed frames; the last may be shorter than its prefix."""
    position = 0
    while position + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        yield data[position : position + length]
        position += length


def joined(*frames: bytes) -> bytes:
    """Return the input that ``split`` splits into these frames."""
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames if len(frame) < 65_536)


@cache
def _backend() -> Backend:
    return open_backends("numpy", 1)[0]


HELLO: Final = encode_frame(Hello((1,)))
_KEY: Final = bytes(range(32))
_SPEC: Final = TensorSpec((2, 3), F32)
_DATA: Final = TensorData(bytes(range(24)), (2, 3), F32)


def _frames() -> Iterator[bytes]:
    refusal = ProtocolViolation("seen, not expected")
    for message in (
        Hello((1, 2), "token", Resume(1, b"s" * 16, 3), "client", {"hint": 1}),
        Welcome(1, 2, b"s", 60.0, {"index": 0}, {"chunk_bytes": 5}, "ws://a:1", 3),
        Refused(refusal),
        Reply(1, None),
        Reply(1, 7),
        Reply(1, _SPEC),
        Reply(1, refusal),
        FetchRequest(1, bytes(32), 5),
        FetchRequest(1, bytes(32), 5, bytes(16)),
        Lent(1, bytes(64)),
        PeerChallenge(1, bytes(32)),
        PeerProof(bytes(32), "ws://a:1", bytes(32)),
        PeerConfirmation(bytes(32)),
        Waiting(1),
        Closing(refusal),
    ):
        yield encode_frame(message)
    yield from (encode_batch(0, [encode_task(task)]) for task in _tasks())


def _peer_handshakes() -> Iterator[bytes]:
    offer = encode_frame(Hello((1,), settings={PROOF_SETTING: PROOF}))
    challenge = encode_frame(PeerChallenge(1, bytes(32)))
    proof = encode_frame(PeerProof(bytes(32), "ws://a:1", bytes(32)))
    confirmation = encode_frame(PeerConfirmation(bytes(32)))
    welcome = encode_frame(Welcome(1, 2, b"", 60.0, {}, {}, "ws://a:1"))
    refused = encode_frame(Refused(HandshakeRefused("no")))
    yield joined(offer, proof)
    yield joined(encode_frame(Hello((1,), "token")))
    yield joined(encode_frame(Hello((1,))))
    yield joined(challenge, confirmation, welcome)
    yield joined(challenge, welcome)
    yield joined(welcome)
    yield joined(refused)


def _tasks() -> Iterator[Any]:
    yield from (Upload(1, _DATA), Read(1, 1, _SPEC), Sync(2), Seed(3), QueryDType(4, F32))
    yield from (Cleanup(), Drop((1, 2)), BeginUpload(5, _SPEC, 24))
    yield from (Expose(1, _SPEC, 1, bytes(32), 5.0), Fetch(bytes(32), "ws://a:1", 6, _SPEC))
    for value in golden("OperationIr"):
        decoded = decode_operation(value.tuples)
        yield Execute(decoded)
        yield Define(0, decoded.signature)


def _sessions() -> Iterator[bytes]:
    upload = encode_task(Upload(1, _DATA))
    read = encode_task(Read(1, 1, _SPEC))
    for task in _tasks():
        yield joined(encode_batch(0, [upload, encode_task(task), read]))
    for value in golden("OperationIr"):
        decoded = decode_operation(value.tuples)
        if sum(use.spec.nbytes for use in decoded.signature.input_uses) <= 2048:
            yield joined(encode_batch(0, [encode_task(task) for task in _whole(decoded)]))
    begin = encode_task(BeginUpload(5, _SPEC, 24))
    chunk = bytes.fromhex("030000000000000000000000000000050000000000000000") + bytes(24)
    yield joined(encode_batch(0, [begin]), chunk, encode_batch(0, [read]))


def _whole(decoded: Operation) -> Iterator[Any]:
    """Yield uploads of an operation's inputs, the operation, and reads of its results."""
    signature, tensors = decoded
    uses, outputs = signature.input_uses, signature.outputs
    for tensor, use in zip(tensors, uses, strict=False):
        yield Upload(tensor, TensorData(bytes(use.spec.nbytes), use.spec.shape, use.spec.dtype))
    yield Execute(decoded)
    for request, (tensor, spec) in enumerate(zip(tensors[len(uses) :], outputs, strict=True)):
        yield Read(request, tensor, spec)


def _burn_frames() -> Iterator[bytes]:
    for tasks in _burn_tasks():
        yield from (encode_tasks([task], 5) for task in tasks)
    yield from (encode_init(7), encode_close(7), encode_data_request(3))
    yield b"".join(encode_data(_DATA))
    for type_name in ("Task", "TaskResponse", "DataServiceMessage"):
        yield from (value.payload for value in golden(type_name))
    for value in (_DATA, 7, None, OperationFailed("it failed")):
        yield b"".join(encode_reply(BurnReply(5, value)))


def _burn_tasks() -> Iterator[list[Any]]:
    yield [Upload(1, _DATA), Read(1, 1, _SPEC), Sync(2), Seed(3), QueryDType(4, F32)]
    yield [Upload(1, _DATA), Expose(1, _SPEC, 1, 3, 5.0), Fetch(3, "ws://a:1", 6, None)]
    for value in golden("OperationIr"):
        decoded = decode_operation(value.tuples)
        if sum(use.spec.nbytes for use in decoded.signature.input_uses) <= 2048:
            yield [*_whole(decoded)]


def _burn_sessions() -> Iterator[bytes]:
    for tasks in _burn_tasks():
        yield joined(*(encode_tasks([task], 5) for task in tasks))


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "native_frame": native_frame,
    "operation": operation,
    "session": session,
    "peer_handshake": peer_handshake,
    "burn_frame": burn_frame,
    "burn_session": burn_session,
}

# Inputs to start from, in addition to those stored in corpus/.
SEEDS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "native_frame": _frames,
    "operation": lambda: (value.payload for value in golden("OperationIr")),
    "session": _sessions,
    "peer_handshake": _peer_handshakes,
    "burn_frame": _burn_frames,
    "burn_session": _burn_sessions,
}
