"""The bodies of the native dialect's messages, against bytes that were written by hand."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import msgpack
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from burn_remote_protocol.collectives import MAX_MEMBERS
from burn_remote_protocol.dialects import native
from burn_remote_protocol.dialects.native_messages import (
    BATCH,
    CHUNK,
    MESSAGE_FROM_WIRE,
    MESSAGE_TO_WIRE,
    PIECE,
    SECRET_KINDS,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import (
    ClosedDevice,
    ConnectionLost,
    OperationFailed,
    ProtocolViolation,
    error_to_wire,
)
from burn_remote_protocol.messages import (
    MAX_HOPS,
    Acknowledged,
    BeginCollective,
    Closing,
    Failed,
    FetchRequest,
    GroupBroken,
    Hello,
    JoinLink,
    Lent,
    LinkJoined,
    PeerChallenge,
    PeerConfirmation,
    PeerProof,
    Refused,
    Reply,
    Resume,
    Waiting,
    Welcome,
)
from burn_remote_protocol.tensors import TensorSpec
from support.other_types import without_one_array

NIL, TRUE = "c0", "c3"
TRANSFER, NONCE, PROOF = b"t" * 32, b"n" * 32, b"p" * 32


def bin8(data: bytes) -> str:
    """Return the hexadecimal MessagePack encoding of up to 255 bytes."""
    return f"c4{len(data):02x}{data.hex()}"


def fixstr(text: str) -> str:
    """Return the hexadecimal MessagePack encoding of a text of up to 31 bytes."""
    return f"{0xA0 | len(text):02x}{text.encode().hex()}"


# Kind, then a MessagePack array: 9n is an array of n, 00 to 7f an integer, cb a float, 8n a map.
BYTES: list[tuple[Any, str]] = [
    (Hello((1,)), f"01 95 9101 {NIL} {NIL} a0 80"),
    (
        Hello((1, 2), "tok", Resume(3, b"sec", 4), "me", {"a": 1}),
        f"01 95 920102 {fixstr('tok')} 9303{bin8(b'sec')}04 {fixstr('me')} 81{fixstr('a')}01",
    ),
    (
        Welcome(1, 2, b"s", 60.0, {"d": 3}, {"l": 4}, "ws://a:1", 5),
        f"04 98 01 02 {bin8(b's')} cb404e000000000000 81{fixstr('d')}03 81{fixstr('l')}04"
        f"{fixstr('ws://a:1')} 05",
    ),
    (Reply(7, None), f"06 93 07 00 {NIL}"),
    (Reply(7, 3), "06 93 07 00 03"),
    (Reply(7, b"ab"), f"06 93 07 02 {bin8(b'ab')}"),
    (Reply(7, TensorSpec((2,), F32)), f"06 93 07 03 929102{fixstr('F32')}"),
    (Acknowledged(17), "07 91 11"),
    (FetchRequest(1, TRANSFER, 2), f"0a 93 01 {bin8(TRANSFER)} 02"),
    (FetchRequest(1, TRANSFER, 2, b"g" * 16), f"0a 94 01 {bin8(TRANSFER)} 02 {bin8(b'g' * 16)}"),
    (Lent(1, b"handle"), f"0b 92 01 {bin8(b'handle')}"),
    (PeerChallenge(1, NONCE), f"0c 92 01 {bin8(NONCE)}"),
    (PeerProof(NONCE, "ws://b", PROOF), f"0d 93 {bin8(NONCE)} {fixstr('ws://b')} {bin8(PROOF)}"),
    (PeerConfirmation(PROOF), f"0e 91 {bin8(PROOF)}"),
    (Waiting(7), "0f 91 07"),
    (Waiting(7, 8), "0f 92 07 08"),
    (JoinLink(TRANSFER), f"10 91 {bin8(TRANSFER)}"),
    (JoinLink(TRANSFER, b"g" * 16), f"10 92 {bin8(TRANSFER)} {bin8(b'g' * 16)}"),
    (LinkJoined(PROOF), f"11 91 {bin8(PROOF)}"),
    (
        BeginCollective(7, b"d" * 16, "barrier()"),
        f"12 93 07 {bin8(b'd' * 16)} {fixstr('barrier()')}",
    ),
    (GroupBroken(3, 127, "it left"), f"14 93 03 7f {fixstr('it left')}"),
]


@pytest.mark.parametrize(("message", "written"), BYTES, ids=lambda each: type(each).__name__)
def test_a_message_has_the_bytes_of_the_specification(message: Any, written: str) -> None:
    frame = bytes.fromhex(written)
    assert native.encode_frame(message) == frame
    assert native.decode_frame(frame) == message


@pytest.mark.parametrize(("message", "written"), BYTES, ids=lambda each: type(each).__name__)
def test_a_map_a_text_or_bytes_in_the_place_of_an_array_is_refused(
    message: Any, written: str
) -> None:
    frame = native.encode_frame(message)
    for other in without_one_array(frame[1:]):
        with pytest.raises(ProtocolViolation):
            native.decode_frame(frame[:1] + msgpack.packb(other))


@pytest.mark.parametrize("tasks", [{"a": 5}, {-7: 5}, {}, "a", b"a", None, 1])
def test_a_batch_whose_tasks_are_not_an_array_is_refused(tasks: Any) -> None:
    for received in (0, 200, 70_000, 2**40):
        for body in ([received, tasks], {received: tasks}, {received: tasks, 1: 2}):
            frame = b"\x02" + msgpack.packb(body)
            with pytest.raises(ProtocolViolation):
                native.decode_frame(frame)
            with pytest.raises(ProtocolViolation):
                deque(native.decode_batch_in_steps(frame), maxlen=0)


@pytest.mark.parametrize("received", [0, 127, 200, 70_000, 2**40])
@pytest.mark.parametrize("count", [0, 1, 20, 70])
def test_a_batch_may_have_any_header_of_an_array(received: int, count: int) -> None:
    tasks = ((-7, 5),) * count
    batch = native.decode_frame(b"\x02" + msgpack.packb([received, tasks]))
    assert batch == (received, tasks)


@pytest.mark.parametrize("header", ["92", "dc0002", "dd00000002"])
@pytest.mark.parametrize(
    "received",
    ["05", "cc05", "cd0005", "ce00000005", "d005", "d10005", "d200000005", "d3" + "00" * 7 + "05"],
)
def test_a_batch_may_have_any_form_of_an_integer(header: str, received: str) -> None:
    for tasks, expected in (("90", ()), ("91c0", (None,)), ("dc0001c0", (None,))):
        frame = bytes.fromhex("02" + header + received + tasks)
        assert native.decode_frame(frame) == (5, expected)
        for other in ("80", "81c0c0", "a0", "c400"):
            with pytest.raises(ProtocolViolation):
                native.decode_frame(bytes.fromhex("02" + header + received + other))


def test_every_message_has_a_kind_of_its_own_and_can_be_read() -> None:
    kinds = [kind for kind, _ in MESSAGE_TO_WIRE.values()]
    assert sorted([*kinds, BATCH, CHUNK, PIECE]) == [*range(1, 21)]
    assert set(MESSAGE_FROM_WIRE) == set(kinds)


def test_the_frames_that_hold_secrets_are_marked_so() -> None:
    secret = (Hello, Welcome, PeerProof, PeerConfirmation, JoinLink)
    assert {MESSAGE_TO_WIRE[each][0] for each in secret} == SECRET_KINDS


def test_the_head_of_a_piece_has_the_bytes_of_the_specification() -> None:
    head = native.piece_head(7, 2**20)
    assert head == bytes.fromhex("13 000000000000 0000000000000007 0000000000100000")
    assert native.open_piece(head) == (7, 2**20)
    assert native.open_piece(native.encode_frame(GroupBroken(3, 1, "it left the group"))) is None


@pytest.mark.parametrize("body", ["92 07 09", "92 07 c0", "93 07 01 01", "90"])
def test_a_report_with_too_many_hops_or_fields_is_a_violation(body: str) -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_frame(bytes.fromhex("0f" + body))


@pytest.mark.parametrize("make", [Refused, Closing])
def test_an_error_is_encoded_as_its_code_and_text(make: Any) -> None:
    frame = native.encode_frame(make(ClosedDevice("over")))
    body = msgpack.unpackb(frame[1:])
    assert body[:2] == ["closed_device", "over"]
    assert str(native.decode_frame(frame).error) == "over"


def test_a_failure_message_must_contain_an_operation_failure() -> None:
    body = [[1], error_to_wire(ConnectionLost("why"))]
    with pytest.raises(ProtocolViolation, match="an operation cannot fail with 'connection_lost'"):
        native.decode_frame(b"\x08" + msgpack.packb(body))


def test_a_failure_names_the_tensors_that_it_makes_unusable() -> None:
    error = OperationFailed("why", operation="Numeric.Add", shapes="float32[2]", tensor=8)
    received = native.decode_frame(native.encode_frame(Failed((8, 9), error)))
    assert received.tensors == (8, 9)
    assert received.error.tensor == 8


ids = st.integers(0, 2**64 - 1)
texts = st.text(max_size=100)
secrets = st.binary(max_size=64)
resumes = st.none() | st.builds(Resume, ids, secrets, ids)
names = st.dictionaries(texts, ids, max_size=4)
hashes = st.binary(min_size=32, max_size=32)
tags = st.just(b"") | st.binary(min_size=16, max_size=16)
MESSAGES = st.one_of(
    st.builds(
        Hello,
        st.lists(st.integers(0, 65_535), min_size=1, max_size=64).map(tuple),
        st.none() | texts,
        resumes,
        texts,
        names,
    ),
    st.builds(Welcome, ids, ids, secrets, st.floats(0, 86_400), names, names, texts, ids),
    st.builds(Reply, ids, st.none() | ids | st.binary(max_size=50)),
    st.builds(Acknowledged, ids),
    st.builds(FetchRequest, ids, hashes, ids, tags),
    st.builds(Lent, ids, st.binary(min_size=1, max_size=256)),
    st.builds(PeerChallenge, st.integers(0, 65_535), hashes),
    st.builds(PeerProof, hashes, texts, hashes),
    st.builds(PeerConfirmation, hashes),
    st.builds(Waiting, ids, st.integers(0, MAX_HOPS)),
    st.builds(JoinLink, hashes, tags),
    st.builds(LinkJoined, hashes),
    st.builds(BeginCollective, ids, st.binary(min_size=16, max_size=16), texts),
    st.builds(GroupBroken, ids, st.integers(0, MAX_MEMBERS - 1), texts),
)


@given(MESSAGES)
def test_every_message_without_an_error_survives_encoding_and_decoding(message: Any) -> None:
    assert native.decode_frame(native.encode_frame(message)) == message


@pytest.mark.parametrize(
    "kind", [kind for kind in MESSAGE_TO_WIRE if kind not in (Refused, Failed, Closing)]
)
def test_every_kind_of_message_without_an_error_is_drawn(kind: type[Any]) -> None:
    # Without shrinking, which would take most of the time.
    found = find(
        MESSAGES,
        lambda message: type(message) is kind,
        settings=settings(max_examples=2000, phases=[Phase.generate]),
    )
    assert type(found) is kind


@given(st.data())
def test_a_message_with_one_part_replaced_is_refused_or_read(data: st.DataObject) -> None:
    message = data.draw(MESSAGES)
    kind, to_wire = MESSAGE_TO_WIRE[type(message)]
    body = list(to_wire(message))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.none() | st.booleans() | ids | texts | secrets | st.lists(ids))
    with contextlib.suppress(ProtocolViolation):
        native.decode_frame(bytes((kind,)) + msgpack.packb(body))


@pytest.mark.parametrize("versions", [[], [1] * 65, [-1], [65_536], ["1"], 1, None])
def test_invalid_versions_are_refused(versions: Any) -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_frame(b"\x01" + msgpack.packb([versions, None, None, "", {}]))


@pytest.mark.parametrize("settings", [[], None, "a", 1])
def test_settings_that_are_not_a_map_are_refused(settings: Any) -> None:
    with pytest.raises(ProtocolViolation, match="settings are a map"):
        native.decode_frame(b"\x01" + msgpack.packb([[1], None, None, "", settings]))


@pytest.mark.parametrize("value", [[1, 9, None], [1, 0, -1], [1, 0, "a"], [1, 2, "a"], [1, 3, 5]])
def test_a_reply_whose_value_does_not_match_its_type_mark_is_refused(value: list[Any]) -> None:
    with pytest.raises(ProtocolViolation):
        native.decode_frame(b"\x06" + msgpack.packb(value))
