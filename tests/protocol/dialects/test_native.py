"""The native dialect carries every message unchanged and refuses everything else."""

from __future__ import annotations

import contextlib
import inspect
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.dialects import native
from burn_remote_protocol.dialects.bounded_unpacking import STEP_BYTES, completed
from burn_remote_protocol.dialects.native_messages import MESSAGE_FROM_WIRE
from burn_remote_protocol.dialects.native_tasks import _DECODE_TASK
from burn_remote_protocol.dtypes import BOOL, F32, I64
from burn_remote_protocol.errors import (
    BurnRemoteError,
    HandshakeRefused,
    LimitExceeded,
    OperationFailed,
    ProtocolViolation,
    QuotaExceeded,
    error_to_wire,
)
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginCollective,
    BeginUpload,
    Cleanup,
    Closing,
    Collective,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Failed,
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
    Resume,
    Seed,
    Sync,
    Unpublish,
    Upload,
    Waiting,
    Welcome,
)
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.recorded import golden

SPEC = TensorSpec((2, 3), F32)
DATA = TensorData(bytes(range(24)), (2, 3), F32)
TRANSFER = bytes(range(32))
OPERATION = decode_operation(golden("OperationIr")[0].tuples)

TASKS = [
    Define(7, OPERATION.signature),
    DefineGraph(4096, 2, ((0, 0, 1), (1, 2)), (3,), ((1, 1, 0),)),
    Execute(OPERATION),
    Drop((1, 2, 2**64 - 1)),
    Drop(()),
    Upload(3, DATA),
    Upload(3, TensorData(b"", (0,), BOOL)),
    BeginUpload(4, TensorSpec((1024, 1024), I64), 8 * 2**20),
    Read(1, 2, SPEC),
    Sync(9),
    Seed(2**64 - 1),
    QueryDType(1, BOOL),
    Cleanup(),
    Expose(5, SPEC, 2, TRANSFER, 30.0),
    Fetch(TRANSFER, "ws://a:3000", 6, SPEC),
    JoinGroup(15, GroupSpec(TRANSFER, 0, ("ws://a:1", "ws://b:1/1"), 0.5)),
    Collective(15, 2**40, CollectiveCall(CollectiveKind.ALL_TO_ALL, (SPEC, SPEC)), (1, 2), (3, 4)),
    LeaveGroup(15),
    FindFile(2**40, "weights/ü.npy"),
    LoadFile(6, SPEC, "w.bin", 2**63, 2**40),
    KeepContent(b"d" * 32, 2**40, (SPEC, SPEC)),
    OpenContent(5, b"d" * 32, 2**40, 4096),
    Publish(5, "ü" * 127, 6, SPEC),
    Unpublish(5, "w"),
    ListPublished(5, None),
    OpenPublished(6, SPEC, "w"),
]

FRAMES = [
    Hello((1, 2), "token", Resume(3, b"secret", 4), "a test", {"hint": 1}),
    Hello((1,)),
    Welcome(1, 2, b"s" * 16, 60.0, {"backend": "numpy"}, {"chunk_bytes": 5}, "ws://a:1", 3),
    Reply(2, b"elements"),
    Reply(2, SPEC),
    Reply(2, None),
    Reply(2, 3),
    Reply(2, ()),
    Reply(2, (("a", SPEC), ("ü", SPEC))),
    Acknowledged(17),
    FetchRequest(1, TRANSFER, 2),
    FetchRequest(1, TRANSFER, 2, b"t" * 16),
    Lent(1, b"handle"),
    PeerChallenge(1, b"n" * 32),
    PeerProof(b"n" * 32, "ws://node-b:3000", b"p" * 32),
    PeerConfirmation(b"p" * 32),
    Waiting(1),
    Waiting(1, 8),
    JoinLink(b"l" * 32),
    JoinLink(b"l" * 32, b"t" * 16),
    LinkJoined(b"p" * 32),
    BeginCollective(7, b"d" * 16, "all_reduce by sum"),
    GroupBroken(3, 1023, "it left the group"),
]


def same(a: Any, b: Any) -> bool:
    """Compare messages; errors are compared by their texts."""
    if isinstance(a, BurnRemoteError):
        return isinstance(b, type(a)) and error_to_wire(a) == error_to_wire(b)
    return bool(a == b)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_a_task_arrives_as_it_was_sent(task: Any) -> None:
    frame = native.encode_batch(3, [native.encode_task(task)])
    batch = native.decode_frame(frame)
    assert batch.received == 3
    assert native.decode_task(batch.tasks[0]) == task


@pytest.mark.parametrize("message", FRAMES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    assert native.decode_frame(native.encode_frame(message)) == message


def test_the_short_ways_encode_the_same_bytes() -> None:
    spec = TensorSpec((2, 3), F32)
    short = [native.drop_task([7, 2**40]), native.read_task(9, 7, spec)]
    tasks = [native.encode_task(Drop((7, 2**40))), native.encode_task(Read(9, 7, spec))]
    assert native.encode_batch(3, short) == native.encode_batch(3, tasks)
    for size in (0, 200, 16 * 1024):
        expected = native.encode_frame(Reply(9, bytes(size)))
        assert native.encode_elements(9, memoryview(bytes(size))) == expected


def test_a_task_that_cannot_be_packed_leaves_nothing_in_the_next_one() -> None:
    expected = native.encode_task(Drop((7,)))
    with pytest.raises(OverflowError):
        native.encode_task(Drop((7, 2**70)))
    assert native.encode_task(Drop((7,))) == expected


def test_threads_that_encode_at_once_do_not_mix_their_bytes() -> None:
    expected = [native.encode_task(Drop(tuple(range(at, at + 2000)))) for at in (0, 10**6)]

    def encode(which: int) -> bool:
        task = Drop(tuple(range(which * 10**6, which * 10**6 + 2000)))
        return all(native.encode_task(task) == expected[which] for _ in range(300))

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(encode, (0, 1))] == [True, True]


@pytest.mark.parametrize("make", [Refused, Closing])
def test_an_error_that_ends_a_connection_keeps_its_type_and_text(make: Any) -> None:
    sent = make(HandshakeRefused("too many sessions"))
    assert same(native.decode_frame(native.encode_frame(sent)).error, sent.error)


def test_a_failure_keeps_operation_shapes_reason_and_tensor() -> None:
    error = QuotaExceeded("too much", operation="Numeric.Add", shapes="float32[2]", tensor=8)
    received = native.decode_frame(native.encode_frame(Failed((8, 9), error)))
    assert received.tensors == (8, 9)
    assert same(received.error, error)
    reply = native.decode_frame(native.encode_frame(Reply(2, error)))
    assert same(reply.value, error)


def test_an_unknown_error_code_of_a_newer_server_arrives_as_a_failed_operation() -> None:
    frame = b"\x06" + msgpack.packb([2, 1, ["brand_new", "why", "Op", "shapes", 3]])
    assert isinstance(native.decode_frame(frame).value, OperationFailed)


def test_an_invocation_is_left_as_numbers_until_it_runs() -> None:
    batch = native.decode_frame(native.encode_batch(4, [msgpack.packb([0, 1, 2, 3])]))
    assert batch == native.Batch(4, ((0, 1, 2, 3),))


def test_an_operation_with_a_known_signature_takes_about_ten_bytes() -> None:
    tasks = [msgpack.packb([3, i, i + 1, i + 2]) for i in range(1000, 1256)]
    assert len(native.encode_batch(0, tasks)) / 256 < 12


@pytest.mark.parametrize("length", [1, 2, 15, 16, 256])
def test_ids_are_encoded_together_as_they_are_one_by_one(length: int) -> None:
    calls = [(place, 70_000 + place, 2**40) for place in range(length)]
    drop = native.encode_task(Drop((7, 8)))
    tasks: list[native.EncodedTask] = [*calls, drop, drop, *calls[::-1]]
    alone = [msgpack.packb(task) if isinstance(task, tuple) else task for task in tasks]
    assert native.encode_batch(5, tasks) == native.encode_batch(5, alone)


def test_a_chunk_is_a_fixed_header_and_raw_bytes() -> None:
    frame = native.chunk_head(7, 2**40) + b"payload"
    assert frame[:24] == struct.pack(">BBHIQQ", 3, 0, 0, 0, 7, 2**40)
    chunk = native.decode_frame(frame)
    assert (chunk.payload, chunk.offset, bytes(chunk.data)) == (7, 2**40, b"payload")


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "empty"),
        (b"\xff", "unknown kind of frame 255"),
        (b"\x02", "not MessagePack"),
        (b"\x02\xc0", "malformed batch"),
        (b"\x02" + msgpack.packb([1, 2, 3]), "malformed batch"),
        (b"\x02" + msgpack.packb([-1, []]), "-1"),
        (b"\x02" + msgpack.packb([0, "ab"]), "list of tasks"),
        (b"\x02" + msgpack.packb([0, []]) + b"\x00", "not MessagePack"),
        (b"\x03short", "header"),
        (b"\x03\x02" + bytes(22), "unknown flags of a chunk"),
        (b"\x01" + msgpack.packb([[], None, None, "", {}]), "versions"),
        (b"\x01" + msgpack.packb([[1], None, [1, b"x" * 65, 0], "", {}]), "64 bytes"),
        (b"\x0a" + msgpack.packb([1, b"short", 0]), "32 bytes"),
        (b"\x0b" + msgpack.packb([1, b""]), "1 to 256 bytes"),
        (b"\x0b" + msgpack.packb([1, bytes(257)]), "1 to 256 bytes"),
        (b"\x0b" + msgpack.packb([1, "text"]), "1 to 256 bytes"),
        (b"\x0b" + msgpack.packb([1]), "malformed body"),
        (b"\x0a" + msgpack.packb([1, TRANSFER, 0, b"short"]), "a fetch's tag has 16 bytes"),
        (b"\x0a" + msgpack.packb([1, TRANSFER, 0, b"t" * 16, 1]), "malformed body"),
        (b"\x0c" + msgpack.packb([1, bytes(31)]), "a nonce has 32 bytes, not 31 bytes"),
        (b"\x0c" + msgpack.packb([65_536, bytes(32)]), "from 0 to 65535"),
        (b"\x0d" + msgpack.packb([bytes(32), "ws://a", "text"]), "32 bytes, not str"),
        (b"\x0d" + msgpack.packb([bytes(32), "a" * 1025, bytes(32)]), "at most 1024"),
        (b"\x0e" + msgpack.packb([bytes(33)]), "a proof has 32 bytes, not 33 bytes"),
    ],
)
def test_an_invalid_frame_is_refused_with_the_reason(frame: bytes, says: str) -> None:
    with pytest.raises(ProtocolViolation, match=says):
        native.decode_frame(frame)


SECRET = "a-secret-token"


@pytest.mark.parametrize(
    "frame",
    [
        b"\x01" + msgpack.packb([[1], SECRET, None, ""]),
        b"\x01" + msgpack.packb([[1], SECRET * 100, None, "", {}]),
        b"\x01" + msgpack.packb([[1], {SECRET: 1}, None, "", {}]),
        b"\x01" + msgpack.packb([[1], None, [1, SECRET, 0], "", {}]),
        b"\x04" + msgpack.packb([1, 1, SECRET.encode()]),
        b"\x0d" + msgpack.packb([SECRET, SECRET]),
        b"\x0e" + msgpack.packb([SECRET, SECRET]),
    ],
)
def test_the_error_for_a_malformed_frame_repeats_no_secret(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        native.decode_frame(frame)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        Hello((1,), SECRET),
        Resume(1, SECRET.encode(), 0),
        Welcome(1, 2, SECRET.encode(), 0.0, {}, {}, "ws://a:1"),
    ],
)
def test_a_message_does_not_show_its_secrets(message: object) -> None:
    assert SECRET not in repr(message)


@pytest.mark.parametrize(
    "task",
    [(-99, 1), (-6,), (-6, 1, 2, 3), (-3, 5), (-3, (-1,)), ("x",), (), (-8, 2**64), (-11, 1)],
)
def test_an_invalid_task_is_refused(task: Any) -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_task(task)


@pytest.mark.parametrize("dims", [[-1], [2**63, 2**63], [2**31] * 3, [1] * 40, ["2"], [True]])
def test_an_invalid_shape_is_refused(dims: list[Any]) -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_task((-6, 1, 2, (tuple(dims), "F32")))


def test_a_list_longer_than_the_limit_is_refused_from_its_header() -> None:
    with pytest.raises(ProtocolViolation, match="not MessagePack"):
        native.decode_frame(b"\x02\x92\x00\xdd\xff\xff\xff\xff")


def test_a_deeply_nested_value_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_frame(b"\x02\x92\x00" + b"\x91" * 100_000)
    nested = b"\x02\x92\x00\x91" + b"\x91" * 900 + b"\xc0"
    batch = native.decode_frame(nested)
    with pytest.raises(ProtocolViolation):
        native.decode_task(batch.tasks[0])


def test_bytes_that_do_not_match_shape_and_dtype_are_refused() -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_task((-4, 1, (b"123", (2, 3), "F32")))


# The types of frames and the codes of tasks, and one on either side that does not exist.
FRAME_TYPES = range(max(MESSAGE_FROM_WIRE) + 2)
TASK_CODES = range(min(_DECODE_TASK) - 1, 1)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_but_a_violation(body: bytes) -> None:
    for kind in FRAME_TYPES:
        try:
            message = native.decode_frame(bytes((kind,)) + body)
            if isinstance(message, native.Batch):
                for task in message.tasks:
                    native.decode_task(task)
        except (ProtocolViolation, LimitExceeded):
            pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=40)
    | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(FRAME_TYPES), st.lists(JSON, max_size=9))
def test_well_formed_nonsense_never_raises_anything_but_a_violation(
    kind: int, body: list[Any]
) -> None:
    with contextlib.suppress(ProtocolViolation):
        native.decode_frame(bytes((kind,)) + msgpack.packb(body))


@pytest.mark.parametrize("code", TASK_CODES)
@given(data=st.data())
@settings(max_examples=10)
def test_tasks_of_nonsense_never_raise_anything_but_a_violation(
    code: int, data: st.DataObject
) -> None:
    decode = _DECODE_TASK.get(code)
    fields = 2 if decode is None else len(inspect.signature(decode).parameters)
    rest = data.draw(st.lists(JSON, min_size=fields, max_size=fields) | st.lists(JSON, max_size=8))
    batch = native.decode_frame(b"\x02" + msgpack.packb([0, [[code, *rest]]]))
    with contextlib.suppress(ProtocolViolation):
        native.decode_task(batch.tasks[0])


def test_a_chunk_may_carry_the_checksum_of_its_bytes() -> None:
    data = memoryview(b"payload")
    frame = native.chunk_head(7, 5, data) + data
    assert frame[1] == 1
    # The published XXH3 hash of no bytes is 2d06800538d394c2.
    assert native.chunk_head(7, 5, memoryview(b""))[4:8] == bytes.fromhex("38d394c2")
    assert bytes(native.decode_frame(frame).data) == b"payload"


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_checksummed_chunk_with_a_flipped_bit_is_refused(
    data: bytes, draw: st.DataObject
) -> None:
    frame = bytearray(native.chunk_head(7, 5, memoryview(data)) + data)
    # Bits from the checksum on. The ids before it are checked by the receiver.
    position = draw.draw(st.sampled_from([*range(4, 8), *range(24, len(frame))]))
    frame[position] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(ProtocolViolation, match="garbled"):
        native.decode_frame(bytes(frame))


@pytest.mark.parametrize("position", [1, 2, 3])
def test_other_flags_of_a_chunk_are_refused(position: int) -> None:
    frame = bytearray(native.chunk_head(7, 5) + b"x")
    frame[position] |= 2
    with pytest.raises(ProtocolViolation, match="flag"):
        native.decode_frame(bytes(frame))


def test_a_frame_larger_than_any_message_is_refused_before_it_is_unpacked() -> None:
    frame = b"\x02" + bytes(native.MAX_BODY_BYTES)
    with pytest.raises(LimitExceeded, match="bytes of a frame: seen 524,289"):
        native.decode_frame(frame)


def test_a_number_in_place_of_a_secret_is_refused_without_allocating_memory() -> None:
    body = [1, 2, 2**62, 60.0, {}, {}, "ws://a:1", 3]
    with pytest.raises(ProtocolViolation, match="at most 64 bytes"):
        native.decode_frame(b"\x04" + msgpack.packb(body))


def _decoded_in_steps(frame: bytes) -> native.Batch:
    return completed(native.decode_batch_in_steps(frame))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers(0, 9) | st.text(), inner),
)


@given(
    received=st.integers(0, 2**40) | _VALUES,
    # ``decode_frame`` takes a map for a list of pairs.
    tasks=st.lists(_VALUES, max_size=20) | _VALUES.filter(lambda value: type(value) is not dict),
    more=st.lists(st.integers(0, 9), max_size=1),
    after=st.sampled_from([b"", b"", b"\0"]),
    cut=st.sampled_from([0, 0, 1, 2, 9]),
)
def test_a_batch_decoded_in_steps_is_the_batch_decoded_at_once(
    received: Any, tasks: Any, more: list[int], after: bytes, cut: int
) -> None:
    body = msgpack.packb([received, tasks, *more]) + after
    frame = b"\2" + body[: len(body) - cut]
    try:
        expected = native.decode_frame(frame)
    except BurnRemoteError as error:
        with pytest.raises(type(error)):
            _decoded_in_steps(frame)
    else:
        assert _decoded_in_steps(frame) == expected


@pytest.mark.parametrize(
    "frame",
    [
        b"\2\x92\x00\xdd\xff\xff\xff\xff",
        b"\2\x92\x00\xdd\x00\x00\x20\x00" + bytes(2**13),
        b"\2" + bytes(native.MAX_BODY_BYTES),
        b"\2\xc0",
        b"\2",
    ],
    ids=["claimed length", "too many tasks", "too long", "no list", "empty"],
)
def test_an_invalid_batch_is_refused_in_steps_as_well(frame: bytes) -> None:
    for decode in (native.decode_frame, _decoded_in_steps):
        with pytest.raises(ProtocolViolation):
            decode(frame)


def test_one_long_task_of_a_batch_is_decoded_in_short_steps() -> None:
    task = msgpack.packb([[[None]] * 4000] * 20)
    frame = native.encode_batch(0, [task])
    assert len([*native.decode_batch_in_steps(frame)]) >= len(frame) // STEP_BYTES
