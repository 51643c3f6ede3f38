"""Fuzz targets: functions of bytes that may only succeed or raise the expected error."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, Final

import msgpack
import numpy as np

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.dialects import burn_0_22
from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.dialects.burn_0_21 import (
    Close,
    decode_init,
    decode_tasks,
    encode_close,
    encode_init,
    encode_tasks,
)
from burn_remote_protocol.dialects.burn_0_21_responses import (
    BurnReply,
    decode_data,
    decode_data_request,
    decode_reply,
    encode_data,
    encode_data_request,
    encode_reply,
)
from burn_remote_protocol.dialects.burn_0_22_recognition import MessageRecognizer
from burn_remote_protocol.dialects.burn_0_22_responses import decode_opening
from burn_remote_protocol.dialects.burn_0_22_responses import decode_reply as decode_reply_0_22
from burn_remote_protocol.dialects.native import (
    MAX_SIGNATURES,
    Batch,
    decode_frame,
    decode_task,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.errors import (
    BurnRemoteError,
    HandshakeRefused,
    OperationFailed,
    ProtocolViolation,
    SessionLost,
    TransferFailed,
)
from burn_remote_protocol.kept_tensors import content_hash
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.messages import (
    BeginCollective,
    BeginUpload,
    Chunk,
    Cleanup,
    Closing,
    Collective,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Fetch,
    FetchRequest,
    FindFile,
    GroupBroken,
    Hello,
    JoinGroup,
    JoinLink,
    KeepContent,
    LeaveGroup,
    Lent,
    LinkJoined,
    ListPublished,
    LoadFile,
    OpenContent,
    OpenPublished,
    PeerChallenge,
    PeerConfirmation,
    PeerProof,
    Publish,
    QueryDType,
    Read,
    Refused,
    Reply,
    ReplyValue,
    Resume,
    Seed,
    Sync,
    Unpublish,
    Upload,
    Waiting,
    Welcome,
)
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.peer_proofs import PROOF, PROOF_SETTING
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.peer_authentication import admit_target, prove_to_source
from burn_remote_server.backends import open_backends
from burn_remote_server.backends.interface import Backend
from burn_remote_server.dialects.burn_0_22.frame_batch import FrameBatch
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.registered_graphs import RegisteredGraphs
from burn_remote_server.hosting.host import new_interpreter
from burn_remote_server.hosting.local import LocalLink
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Transfers
from burn_remote_server.tensors.slots import InFlight
from fuzz.rings import ring, ring_frames
from support.frame_programs import added, drawn_step, dropped, read, shifted
from support.frame_runners import FrameRunner
from support.kernels import signature
from support.recorded import DATA, golden, recordings_0_22, sessions
from support.scripted import ScriptedLink

__all__ = ["SEEDS", "TARGETS"]

# Small limits, so that an unchecked allocation shows as growth.
SETTINGS: Final = Settings(
    max_session_bytes=2**20, max_session_tensors=200, fetch_timeout_seconds=0.001
)
_LENGTH: Final = struct.Struct(">H")
# A frame is recognized from its third repetition on.
REPETITIONS: Final = 5


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
    # Bytes, because a distribution may have NaN, which differs from itself.
    assert msgpack.packb(encode_operation(decode_operation(unpack_frozen(packed)))) == packed


def burn_frame(data: bytes) -> None:
    """Decode a frame of each of Burn's sockets, in both directions."""
    for decode in (decode_tasks, decode_init, decode_reply, decode_data, decode_data_request):
        with contextlib.suppress(ProtocolViolation):
            decode(data)


def burn_0_22_frame(data: bytes) -> None:
    """Decode a frame of Burn 0.22, in both directions; recognition agrees with decoding."""
    for decode in (burn_0_22.decode_init, decode_opening, decode_reply_0_22):
        with contextlib.suppress(ProtocolViolation):
            decode(data)
    recognizer = MessageRecognizer()
    expected = _outcome(burn_0_22.decode_messages, data)
    for _ in range(2):  # the second time, what was learned the first time is used
        assert _outcome(recognizer.decode, data) == expected
        assert _outcome(lambda each: _in_steps(recognizer, each), data) == expected


def _in_steps(recognizer: MessageRecognizer, data: bytes) -> list[object]:
    """Decode a frame as long frames are decoded."""
    return [one for one in recognizer.each_message(data) if one is not None]


def _outcome(decode: Callable[[bytes], object], data: bytes) -> str:
    """Return a decoded frame as text, without the addresses of views, or the text of a refusal."""
    try:
        return re.sub(r"<memory at \w+>", "view", repr(decode(data)))
    except ProtocolViolation:
        return "refused"


BURN_TASKS: Final = (Read, Sync, Seed, QueryDType, Upload, Drop, Expose, Fetch)


def burn_0_22_session(data: bytes) -> None:
    """Feed frames of Burn 0.22 to a session: it executes or refuses them, and frees everything."""
    outbox = BurnAnswers()
    interpreter = new_interpreter(_backend(), SETTINGS, outbox)
    engine = Engine(interpreter, Transfers(), outbox, transfer_domain="burn-0.22")
    graphs = RegisteredGraphs(
        interpreter, lambda tensor, error: engine.fail_tensor(tensor, error, "Graph")
    )
    try:
        for frame in split(data):
            for task in burn_0_22.decode_messages(frame):
                if isinstance(task, Operation):
                    interpreter.execute(task)
                elif isinstance(task, burn_0_22.RunGraph):
                    graphs.run(task)
                elif isinstance(task, burn_0_22.Alias):
                    engine.alias(task.tensor, task.source)
                elif isinstance(
                    task, Read | Sync | Seed | QueryDType | Upload | Drop | Expose | Fetch
                ):
                    engine.handle(task)
    except (ProtocolViolation, SessionLost):
        pass
    finally:
        engine.close()
    quota = interpreter.quota
    assert (quota.bytes, quota.tensors) == (0, 0), f"{quota.bytes} bytes are left"


def burn_0_22_repeats(data: bytes) -> None:
    """Repeat frames of Burn 0.22: the recognized ones do what their messages do one by one."""
    frames = [*split(data)]
    as_wholes, one_by_one = FrameRunner(settings=SETTINGS), FrameRunner(settings=SETTINGS)
    try:
        for _ in range(REPETITIONS):
            for frame in frames:
                batch = FrameBatch(as_wholes.recognizer)
                batch.add(frame)
                as_wholes.runner.run(batch.tasks)
                alone = FrameBatch(MessageRecognizer())  # knows nothing, so it decodes in full
                alone.add(frame)
                for task in alone.tasks:
                    one_by_one.runner.run([task])
                # Text, because elements may be NaN, which differs from itself.
                assert str(as_wholes.state) == str(one_by_one.state)
    finally:
        for each in (as_wholes, one_by_one):
            each.engine.close()
            quota = each.interpreter.quota
            assert (quota.bytes, quota.tensors) == (0, 0), f"{quota.bytes} bytes are left"


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
    except (ProtocolViolation, SessionLost):
        pass
    finally:
        engine.close()
    quota = interpreter.quota
    assert (quota.bytes, quota.tensors) == (0, 0), f"{quota.bytes} bytes are left"


class BurnAnswers:
    """An outbox that encodes responses without sending them, and fails every fetch."""

    def reply(self, request: int, value: ReplyValue) -> None:
        assert not isinstance(value, tuple) or isinstance(value, TensorData)  # native only
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


def graph(data: bytes) -> None:
    """Run a graph of drawn steps: it gives the results and failures of its operations one by one.

    Four bytes are a step: its signature and its inputs. Where they give no valid definition, the
    engine refuses it.
    """
    values = [int.from_bytes(data[place : place + 1], "big") for place in range(len(data))]
    if len(values) < 8:
        return
    count, wanted = values[0] % 4 + 1, values[1]
    numbers: tuple[float, ...] = (values[2] / 16 - 4, values[3] - 8.0)
    steps, specs = [], [_V] * count
    for first in range(4, min(len(values) - 3, 4 + 4 * 40), 4):
        signed = _STEPS[values[first] % len(_STEPS)]
        slots = []
        for use, one in zip(signed.input_uses, values[first + 1 :], strict=False):
            fitting = [slot for slot, spec in enumerate(specs) if spec == use.spec]
            # Mostly slots that fit.
            slots.append(fitting[one % len(fitting)] if fitting and one < 255 else one)
        steps.append((values[first] % len(_STEPS), *slots))
        specs += signed.outputs
    outputs = tuple(
        slot for slot in range(count, len(specs)) if slot % 7 in {wanted % 7, wanted // 36}
    )
    places = [(at, 1, at % 2) for at, step in enumerate(steps) if step[0] in _NUMBERED]
    numbers = numbers[: len({place for _, _, place in places})]
    engine, seen = _prepared_engine(count)
    task = DefineGraph(MAX_SIGNATURES, count, tuple(steps), outputs, tuple(places))
    ids = [100 + slot for slot in outputs]
    try:
        engine.handle(task)
        call = (MAX_SIGNATURES, *range(1, count + 1), *ids, *((numbers,) if places else ()))
        for _ in range(2):
            engine.run(Batch(0, (call,)))
    except (ProtocolViolation, SessionLost):
        pass
    else:
        other, expected = _prepared_engine(count)
        _run_each(other, count, steps, numbers)
        for slot in outputs:
            assert seen(100 + slot) == expected(100 + slot), f"slot {slot} of {task}, {numbers}"
        other.close()
    quota = engine._interpreter.quota
    engine.close()
    assert (quota.bytes, quota.tensors) == (0, 0), f"{quota.bytes} bytes are left"


def _prepared_engine(count: int) -> tuple[Engine, Callable[[int], Any]]:
    """Return an engine with the signatures of ``graph`` and inputs, and a reader of tensors."""
    outbox = BurnAnswers()
    interpreter = new_interpreter(_backend(), SETTINGS, outbox)
    engine = Engine(interpreter, Transfers(), outbox, transfer_domain="test")
    for number, signed in enumerate(_STEPS):
        engine.handle(Define(number, signed))
    for tensor in range(1, count + 1):
        elements = np.array([tensor, -tensor, 0.5 * tensor], np.float32)
        engine.handle(Upload(tensor, TensorData(elements.tobytes(), (3,), F32)))

    def seen(tensor: int) -> Any:
        array = interpreter.tensors.arrays.get(tensor)
        if array is None:
            return type(interpreter.tensors.slots[tensor])
        return array.shape, np.where(np.isnan(array), np.nan, array).tobytes()

    return engine, seen


def _run_each(engine: Engine, count: int, steps: Any, numbers: tuple[float, ...]) -> None:
    ids = [*range(1, count + 1)]
    for at, (number, *slots) in enumerate(steps):
        signed = _STEPS[number]
        if number in _NUMBERED:
            changed = Scalar("Float", numbers[at % 2 if len(numbers) > 1 else 0])
            arguments = (signed.arguments[0], changed, *signed.arguments[2:])
            signed = Signature(signed.kind, signed.row, signed.dtype, arguments)
        made = [100 + len(ids) + place for place in range(signed.output_count)]
        inputs = [ids[slot] for slot in slots]
        engine.handle(Execute(Operation(signed, (*inputs, *made))))
        ids += made


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


_V: Final = TensorSpec((3,), F32)
# The signatures of ``graph``: elementwise ones, a view, several outputs, one that fails for some
# elements, and some with a scalar.
_STEPS: Final = (
    signature("Numeric.Add", _V, _V),
    signature("Numeric.Mul", _V, _V),
    signature("Numeric.Sub", _V, _V),
    signature("Numeric.AddScalar", _V, rhs=1.0),
    signature("Numeric.MulScalar", _V, rhs=2.0),
    signature("Float.Exp", _V),
    signature("Base.Flip", _V, axes=(0,)),
    signature("Base.Reshape", _V, out=_V),
    signature("Base.Expand", TensorSpec((1,), F32), out=_V),
    signature("Base.Select", _V, TensorSpec((3,), I64), dim=0),
    signature("Float.IntoInt", _V, out=TensorSpec((3,), I64)),
    signature("Numeric.MaxDimWithIndices", _V, dim=0),
)
_NUMBERED: Final = (3, 4)
_GRAPH: Final = DefineGraph(4096, 1, ((0, 0, 0), (4, 1), (6, 2)), (3,), ((1, 1, 0),))

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
        Reply(1, (("w", _SPEC),)),
        Reply(1, refusal),
        FetchRequest(1, bytes(32), 5),
        FetchRequest(1, bytes(32), 5, bytes(16)),
        Lent(1, bytes(64)),
        PeerChallenge(1, bytes(32)),
        PeerProof(bytes(32), "ws://a:1", bytes(32)),
        PeerConfirmation(bytes(32)),
        Waiting(1),
        Waiting(1, 8),
        JoinLink(bytes(32), bytes(16)),
        LinkJoined(bytes(32)),
        BeginCollective(1, bytes(16), "a barrier"),
        GroupBroken(1, 2, "it left"),
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
    yield JoinGroup(0, GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1"), 1.0))
    for kind in CollectiveKind:
        specs = () if kind is CollectiveKind.BARRIER else (_SPEC,)
        yield Collective(0, 0, CollectiveCall(kind, specs), (1,), (7,))
    yield LeaveGroup(0)
    yield FindFile(3, "a/b.bin")
    yield LoadFile(7, _SPEC, "b.bin", 1, 2)
    digest = content_hash([_SPEC]).digest()
    yield from (KeepContent(digest, 7, (_SPEC,)), OpenContent(3, digest, 7, 1))
    yield from (Publish(3, "w", 7, _SPEC), OpenPublished(8, _SPEC, "w"))
    yield from (ListPublished(4, None), ListPublished(5, "w"), Unpublish(6, "w"))
    for value in golden("OperationIr"):
        decoded = decode_operation(value.tuples)
        yield Execute(decoded)
        yield Define(0, decoded.signature)
    yield from (_GRAPH, DefineGraph(4351, 2, ((0, 0, 1), (1, 2, 2)), (3, 2), ((1, 1, 0),)))


def _graphs() -> Iterator[bytes]:
    random = np.random.default_rng(0)
    for length in (8, 20, 60, 164):
        yield from (random.bytes(length) for _ in range(20))


def _graph_sessions() -> Iterator[bytes]:
    upload = encode_task(Upload(1, TensorData(bytes(12), (3,), F32)))
    definitions = [encode_task(Define(place, one)) for place, one in enumerate(_STEPS)]
    call, read = msgpack.packb((4096, 1, 2, (0.5,))), encode_task(Read(1, 2, _V))
    yield joined(
        encode_batch(0, [upload, *definitions]), encode_batch(0, [encode_task(_GRAPH), call, read])
    )


def _sessions() -> Iterator[bytes]:
    upload = encode_task(Upload(1, _DATA))
    read = encode_task(Read(1, 1, _SPEC))
    for task in _tasks():
        yield joined(encode_batch(0, [upload, encode_task(task), read]))
    for value in golden("OperationIr"):
        decoded = decode_operation(value.tuples)
        if sum(use.spec.nbytes for use in decoded.signature.input_uses) <= 2048:
            yield joined(encode_batch(0, [encode_task(task) for task in _whole(decoded)]))
    yield from _graph_sessions()
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


def _burn_0_22_frames() -> Iterator[bytes]:
    for line in (DATA / "messages-0.22.jsonl").read_text("utf-8").splitlines():
        message = json.loads(line)
        payload = bytes.fromhex(message["hex"])
        yield b"\x91" + payload if message["name"].startswith("RemoteMessage") else payload


def _burn_0_22_sessions() -> Iterator[bytes]:
    for recording in recordings_0_22():
        for recorded in sessions(recording):
            frames = [frame for frame in recorded["frames"] if frame["dir"] == "c2s"]
            payloads = [frame["payload"] for frame in frames if frame["op"] == 2][1:]
            if sum(map(len, payloads)) < 20_000:
                yield joined(*payloads)


def _burn_0_22_repeats() -> Iterator[bytes]:
    contents = {
        1: [bytes(8), [2], "F32"],
        2: [bytes(12), [3], "F32"],
        3: [bytes((1, 0, 0, 0)), [1], "I32"],
        4: [bytes((9, 0, 0, 0)), [1], "I32"],  # as an index, it fails
    }
    uploads = [
        {"Task": {"RegisterTensor": [[1], [tensor], content]}}
        for tensor, content in contents.items()
    ]
    drops = [dropped(1), dropped(2, 3), dropped(3, 1), dropped(4, 1)]
    twice = [added(1, 1, 5), added(1, 5, 6), added(1, 6, 5), read(0, 5), dropped(5), dropped(6)]
    for step in (*(shifted(drawn_step(Random(seed)), 100) for seed in range(40)), twice):
        messages = [*uploads, *step, *drops]
        yield joined(*(msgpack.packb(messages[at : at + 4]) for at in range(0, len(messages), 4)))
    yield from _burn_0_22_sessions()


def _burn_sessions() -> Iterator[bytes]:
    for tasks in _burn_tasks():
        yield joined(*(encode_tasks([task], 5) for task in tasks))


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "native_frame": native_frame,
    "operation": operation,
    "session": session,
    "graph": graph,
    "peer_handshake": peer_handshake,
    "ring": lambda data: ring(split(data)),
    "burn_frame": burn_frame,
    "burn_session": burn_session,
    "burn_0_22_frame": burn_0_22_frame,
    "burn_0_22_session": burn_0_22_session,
    "burn_0_22_repeats": burn_0_22_repeats,
}

# Inputs to start from, in addition to those stored in corpus/.
SEEDS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "native_frame": _frames,
    "operation": lambda: (value.payload for value in golden("OperationIr")),
    "session": _sessions,
    "graph": _graphs,
    "peer_handshake": _peer_handshakes,
    "ring": lambda: (joined(*frames) for frames in ring_frames()),
    "burn_frame": _burn_frames,
    "burn_session": _burn_sessions,
    "burn_0_22_frame": _burn_0_22_frames,
    "burn_0_22_session": _burn_0_22_sessions,
    "burn_0_22_repeats": _burn_0_22_repeats,
}

if importlib.util.find_spec("iroh") is not None:  # it has no wheel for some platforms
    from fuzz.iroh_streams import iroh_seeds, iroh_stream

    TARGETS["iroh_stream"] = iroh_stream
    SEEDS["iroh_stream"] = iroh_seeds
