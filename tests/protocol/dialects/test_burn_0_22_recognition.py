"""Recognized messages are those that decoding in full finds."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects import burn_0_22_recognition
from burn_remote_protocol.dialects.burn_0_22 import RunGraph, decode_messages
from burn_remote_protocol.dialects.burn_0_22_recognition import MessageRecognizer
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.messages import Drop, Read, Seed, Sync
from burn_remote_protocol.operations.row import Operation
from support.recorded import recordings_0_22, sessions
from support.specs import f32

NUMBERS = st.one_of(
    st.integers(0, 127), st.integers(128, 2**16), st.integers(2**31, 2**33), st.just(2**64 - 1)
)
S = [1]


def tensor(number: int, status: str = "ReadOnly", size: int = 2) -> Any:
    return [[number], [[size]], status, "F32"]


def registered(operation: Any) -> Any:
    return {"Task": {"RegisterOperation": [S, operation]}}


def add(first: int, second: int, third: int, size: int = 2) -> Any:
    tensors = [tensor(first, size=size), tensor(second, size=size), tensor(third, "NotInit", size)]
    return registered({"NumericFloat": ["F32", {"Add": tensors}]})


def drop(number: int) -> Any:
    return registered({"Drop": tensor(number, "ReadWrite")})


def read(request: int, number: int, status: str = "ReadOnly") -> Any:
    return {"Task": {"ReadTensor": [request, S, tensor(number, status)]}}


def call(*tensors: int, scalars: Any = (0.5, -0.0), graph: int = 3) -> Any:
    """Return a call of a graph that binds tensors to the ids 0, 300, 600, and so on."""
    pairs = [[[300 * place], [tensor]] for place, tensor in enumerate(tensors)]
    numbers = [{"Float": scalar} for scalar in scalars]
    return {"Task": {"ExecuteGraph": [S, graph, [pairs, [2, 64], numbers, [[0, None, 1]]]]}}


def sync(request: int) -> Any:
    return {"Task": {"SyncBackend": [request, S]}}


def frame(*messages: Any) -> bytes:
    packed: bytes = msgpack.packb(messages)
    return packed


def outcome(decode: Callable[[bytes], object], written: bytes) -> str:
    """Return a decoded frame as text, without the addresses of views, or the text of a refusal."""
    try:
        return re.sub(r"<memory at \w+>", "view", repr(decode(written)))
    except ProtocolViolation:
        return "refused"


def in_steps(recognizer: MessageRecognizer) -> Callable[[bytes], list[object]]:
    """Return a function that decodes a frame as long frames are decoded."""
    return lambda written: [one for one in recognizer.each_message(written) if one is not None]


def in_full(*_: Any) -> None:
    raise AssertionError("a message was decoded in full")


@pytest.mark.parametrize("recording", recordings_0_22())
def test_recorded_sessions_are_decoded_alike_with_and_without_recognition(recording: str) -> None:
    for session in sessions(recording):
        recognizer = MessageRecognizer()
        frames = [
            each["payload"]
            for each in session["frames"]
            if each["dir"] == "c2s" and each["op"] == 2 and b"Init\x94" not in each["payload"]
        ]
        for each in frames * 2:
            assert outcome(recognizer.decode, each) == outcome(decode_messages, each)
            assert outcome(in_steps(recognizer), each) == outcome(decode_messages, each)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_numbers_of_any_length_are_read(rows: list[tuple[int, ...]]) -> None:
    recognizer = MessageRecognizer()
    for first, second, third, request in rows:
        written = frame(
            add(first, second, third), drop(first), read(request, third, "ReadWrite"), sync(request)
        )
        found = recognizer.decode(written)

        assert found == decode_messages(written)
        assert found[0] == Operation(found[0].signature, (first, second, third))  # type: ignore[union-attr]
        assert found[2:] == [Read(request, third, f32(2)), Drop((third,)), Sync(request)]


def test_a_program_that_repeats_its_messages_has_none_decoded_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(number: int) -> list[Any]:
        drops = [drop(number), drop(number + 1)]
        random.Random(number).shuffle(drops)
        return [add(number, 1, number + 1), *drops, read(number, 1), sync(number)]

    messages = [message for number in range(1000, 1100) for message in step(number)]
    recognizer = MessageRecognizer()
    recognizer.decode(frame(*step(1000), *step(1001)))
    seen = recognizer.unknown
    monkeypatch.setattr(burn_0_22_recognition, "decode_messages", in_full)

    # Frames of four cut the five messages of a step at another place each time.
    found = [
        message
        for place in range(0, len(messages), 4)
        for message in recognizer.decode(frame(*messages[place : place + 4]))
    ]

    assert recognizer.unknown == seen
    monkeypatch.undo()
    assert found == decode_messages(frame(*messages))


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=10))
def test_calls_of_graphs_bind_the_tensors_of_their_own_bytes(
    rows: list[tuple[int, int, int]],
) -> None:
    recognizer = MessageRecognizer()
    for first, second, third in rows:
        written = frame(call(first, second), read(third, second), call(third), call())
        for decode in (recognizer.decode, in_steps(recognizer)):
            found = decode(written)
            assert repr(found) == repr(decode_messages(written))
            (bound,) = [one for one in found if isinstance(one, RunGraph)][:1]
            assert bound.bindings.tensors == ((0, first), (300, second))


def test_calls_that_differ_only_in_tensors_are_decoded_in_full_twice_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recognizer = MessageRecognizer()
    numbers = [float(number) for number in range(200)]
    long = [call(1000, 2000, scalars=numbers, graph=graph) for graph in range(4)]
    assert len(frame(*long)) > 4 * 2048
    for written in (frame(call(1000, 2000), read(7, 1000)), frame(*long)) * 2:
        [*recognizer.each_message(written)]
    seen = recognizer.unknown
    for name in ("decode_messages", "each_message", "_call_alone"):
        monkeypatch.setattr(burn_0_22_recognition, name, in_full)

    found = recognizer.decode(frame(call(1001, 2001), read(8, 1001)))
    again = recognizer.decode(frame(call(1002, 2002), read(9, 1002)))
    long = [call(1001, 2001, scalars=numbers, graph=graph) for graph in range(4)]
    found_long = [*recognizer.each_message(memoryview(frame(*long)))]

    assert recognizer.unknown == seen
    monkeypatch.undo()
    assert found == decode_messages(frame(call(1001, 2001), read(8, 1001)))
    assert found_long == decode_messages(frame(*long))
    assert isinstance(found[0], RunGraph)
    assert isinstance(again[0], RunGraph)
    assert again[0].bindings.scalars is found[0].bindings.scalars


def test_calls_whose_numbers_never_repeat_are_decoded_once_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of an optimizer that counts its steps; what follows them is still recognized."""
    burn_0_22_recognition._CALLS.clear()
    recognizer = MessageRecognizer()
    recognizer.decode(frame(call(1000), add(1, 2, 1000), sync(7)))
    seen = recognizer.unknown
    monkeypatch.setattr(burn_0_22_recognition, "decode_messages", in_full)
    frames = [
        frame(call(number, scalars=(float(number),)), add(1, 2, number), sync(number))
        for number in range(1001, 1101)
    ]

    found = [recognizer.decode(each) for each in frames]

    assert recognizer.unknown - seen == len(frames)
    assert not burn_0_22_recognition._CALLS
    monkeypatch.undo()
    assert found == [decode_messages(each) for each in frames]


def test_the_hashes_of_calls_that_came_once_are_bounded_in_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(burn_0_22_recognition, "CALLS_NOTED", 8)
    recognizer = MessageRecognizer()
    for graph in range(30):
        recognizer.decode(frame(call(1, graph=graph)))
        assert len(recognizer._noted_calls) <= 8


def test_calls_of_many_tensors_or_slices_take_at_most_the_memory_that_is_documented() -> None:
    def bound(graph: int) -> Any:
        return call(*[1] * 700, graph=graph)

    def sliced(graph: int) -> Any:
        slices = [[place % 9, None, 1] for place in range(2000)]
        return {"Task": {"ExecuteGraph": [S, graph, [[], [], [], slices]]}}

    for make in (bound, sliced):
        burn_0_22_recognition._CALLS.clear()
        frames = [frame(make(graph)) for graph in range(50) for _ in range(2)]
        assert len(frames[-1]) < burn_0_22_recognition.LONGEST_CALL_BYTES
        recognizer = MessageRecognizer()
        tracemalloc.start()
        try:
            for each in frames:
                recognizer.decode(each)
            assert len(burn_0_22_recognition._CALLS) == 50
            both, _ = tracemalloc.get_traced_memory()
            del recognizer
            shared, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert shared < 22 * sum(map(len, frames[::2]))
        assert both - shared < 2 * 2**20


def test_frames_with_calls_of_graphs_are_never_wholes() -> None:
    recognizer = MessageRecognizer()
    for number in range(1000, 1010):
        written = frame(call(number), read(7, number))
        assert recognizer.recognize(written) is None
        recognizer.decode(written)


def test_numbers_of_a_call_that_look_like_ids_are_not_read_as_ones() -> None:
    (number,) = struct.unpack(">d", b"\x92\x91\x05\x91\x06\x92\x91\0")
    recognizer = MessageRecognizer()
    for tensor in (1000, 1001, 1002):
        written = frame(call(tensor, scalars=[number]), sync(2))
        assert recognizer.decode(written) == decode_messages(written)


def test_a_call_with_one_bit_changed_is_decoded_as_without_recognition() -> None:
    written = frame(call(300, 70_000), read(3, 300))
    recognizer = MessageRecognizer()
    for place in range(8 * len(written)):
        recognizer.decode(written)
        changed = bytearray(written)
        changed[place // 8] ^= 1 << place % 8
        found = outcome(recognizer.decode, bytes(changed))
        assert found == outcome(decode_messages, bytes(changed))
        recognizer.decode(written)
        assert outcome(in_steps(recognizer), bytes(changed)) == found


def test_the_known_calls_are_bounded_in_number_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burn_0_22_recognition, "CALLS_KEPT", 8)
    burn_0_22_recognition._CALLS.clear()
    recognizer = MessageRecognizer()
    for graph in range(30):
        for _ in range(2):
            recognizer.decode(frame(call(1, graph=graph, scalars=[0.5] * 40 * graph)))
        assert len(burn_0_22_recognition._CALLS) <= 8

    lengths = [sum(map(len, key)) for key in burn_0_22_recognition._CALLS]
    assert max(lengths) <= burn_0_22_recognition.LONGEST_CALL_BYTES


def test_messages_after_an_unknown_one_are_decoded_too() -> None:
    written = frame(add(1, 2, 3), {"Task": {"Seed": 5}}, sync(4))
    recognizer = MessageRecognizer()

    for _ in range(2):
        found = recognizer.decode(written)
        assert found[1:] == [Seed(5), Sync(4)]
        assert found == decode_messages(written)


def test_a_frame_that_differs_in_one_bit_is_decoded_as_without_recognition() -> None:
    written = frame(add(300, 301, 302), drop(300), read(70_000, 302), sync(3))
    recognizer = MessageRecognizer()
    for _ in range(2):
        recognizer.decode(written)
    for place in range(8 * len(written)):
        changed = bytearray(written)
        changed[place // 8] ^= 1 << place % 8
        found = outcome(recognizer.decode, bytes(changed))
        assert found == outcome(decode_messages, bytes(changed))


@pytest.mark.parametrize("length", [0, 1, 2, 20, 60, 100, -2, -1])
def test_a_frame_that_is_cut_off_is_refused(length: int) -> None:
    written = frame(add(1, 2, 3), sync(4))
    recognizer = MessageRecognizer()
    recognizer.decode(written)

    for decode in (recognizer.decode, in_steps(recognizer)):
        with pytest.raises(ProtocolViolation):
            decode(written[:length])


@pytest.mark.parametrize("extra", [b"\0", b"\xc0", frame(sync(4))[1:]])
def test_bytes_after_the_messages_of_a_frame_are_refused(extra: bytes) -> None:
    written = frame(add(1, 2, 3), sync(4))
    recognizer = MessageRecognizer()
    recognizer.decode(written)

    with pytest.raises(ProtocolViolation):
        recognizer.decode(written + extra)


def test_text_that_looks_like_a_tensor_is_not_read_as_one() -> None:
    name = b"\x94\x91\x07\x91\x90".decode("latin1")
    custom = {"Custom": [name, [tensor(1)], [tensor(8, "NotInit")], []]}
    packed = frame(registered(custom))
    raw = packed.replace(name.encode(), name.encode("latin1") + b"aa")
    recognizer = MessageRecognizer()

    for each in (packed, raw, packed, raw):
        assert outcome(recognizer.decode, each) == outcome(decode_messages, each)


def test_text_that_looks_like_a_message_is_not_read_as_one() -> None:
    name = "\x81\xa4Task"
    written = frame(
        registered({"Custom": [name, [tensor(1)], [tensor(8, "NotInit")], []]}), sync(1)
    )
    recognizer = MessageRecognizer()

    for each in (written, written.replace(name.encode(), b"a" + name.encode("latin1"))) * 2:
        assert outcome(recognizer.decode, each) == outcome(decode_messages, each)


def test_the_recognizer_keeps_a_bounded_number_of_messages_and_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(burn_0_22_recognition, "MESSAGES_KEPT", 8)
    monkeypatch.setattr(burn_0_22_recognition, "LAYOUTS_KEPT", 8)
    # Messages that other tests decoded would not be learned again.
    monkeypatch.setattr(burn_0_22_recognition, "_KNOWN", {})
    recognizer = MessageRecognizer()
    for size in range(30):
        written = frame(add(1, 2, 3, size))
        assert recognizer.decode(written) == decode_messages(written)

    assert len(burn_0_22_recognition._KNOWN) <= 8
    assert len(recognizer._layouts) <= 8
    assert len(recognizer._successors) <= 9


def repeated_frames(count: int) -> list[bytes]:
    """Frames of four messages of a program whose steps have five."""
    messages = [
        message
        for number in range(1000, 1000 + count)
        for message in (
            add(number, 1, number + 1), drop(number), read(number, 1), drop(7), sync(number)
        )
    ]  # fmt: skip
    return [frame(*messages[place : place + 4]) for place in range(0, len(messages), 4)]


def test_frames_that_a_program_repeats_are_recognized_undivided() -> None:
    recognizer = MessageRecognizer()
    undivided = 0
    for each in repeated_frames(100):
        known = recognizer.recognize(each)
        if known is None:
            recognizer.decode(each)
        else:
            undivided += 1
            assert known.messages() == decode_messages(each)
            assert [*known] == known.messages()
            assert known[1:3] == known.messages()[1:3]

    # The frames repeat after four steps, and each must come twice before it is expected.
    assert undivided >= 110


def test_an_undivided_frame_has_the_drop_that_follows_a_last_read() -> None:
    recognizer = MessageRecognizer()
    written = frame(read(5, 6, "ReadWrite"), sync(7))
    for _ in range(3):
        recognizer.decode(written)

    known = recognizer.recognize(written)

    assert known is not None
    assert known.messages() == [Read(5, 6, f32(2)), Drop((6,)), Sync(7)]
    assert len(known) == 2


def test_an_undivided_frame_with_one_bit_changed_has_the_messages_of_its_own_bytes() -> None:
    written = frame(add(300, 301, 302), drop(300), read(70_000, 302), sync(3))
    recognizer = MessageRecognizer()
    for _ in range(3):
        recognizer.decode(written)
    assert recognizer.recognize(written) is not None
    for place in range(8 * len(written)):
        changed = bytearray(written)
        changed[place // 8] ^= 1 << place % 8
        known = recognizer.recognize(bytes(changed))
        if known is not None:
            assert known.messages() == decode_messages(bytes(changed))
    assert recognizer.recognize(written[:-1]) is None
    assert recognizer.recognize(written + b"\0") is None


def test_recorded_sessions_that_are_repeated_give_equal_messages_undivided() -> None:
    for session in sessions(recordings_0_22()[0]):
        recognizer = MessageRecognizer()
        frames = [
            each["payload"]
            for each in session["frames"]
            if each["dir"] == "c2s" and each["op"] == 2 and b"Init\x94" not in each["payload"]
        ]
        for each in frames * 3:
            known = recognizer.recognize(each)
            if known is None:
                outcome(recognizer.decode, each)
            else:
                assert outcome(lambda _: known.messages(), each) == outcome(decode_messages, each)  # noqa: B023


def test_the_recognizer_keeps_a_bounded_number_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burn_0_22_recognition, "FRAMES_KEPT", 8)
    recognizer = MessageRecognizer()
    for size in range(30):
        for _ in range(3):
            recognizer.decode(frame(add(1, 2, 3, size), sync(4)))

    assert len(recognizer._frames) <= 8
    assert len(recognizer._next_frames) <= 8


def test_a_session_keeps_at_most_six_mebibytes_of_long_frames_that_came_twice() -> None:
    messages = [add(1, 2, 3, size) for size in range(30)]
    rng = random.Random(0)
    recognizer = MessageRecognizer()
    tracemalloc.start()
    try:
        for message in messages:
            recognizer.decode(frame(message))
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(2_000):
            written = frame(*rng.sample(messages, 14))
            recognizer.decode(written)
            recognizer.decode(written)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert recognizer._next_frames  # frames are kept
    assert after - before <= 6 * 2**20
