"""Bounded unpacking in both forms, and the values that it refuses."""

from __future__ import annotations

import re
import tracemalloc
from random import Random

import msgpack
import pytest

from burn_remote_protocol.dialects import bounded_unpacking as module
from burn_remote_protocol.dialects.bounded_unpacking import (
    MAX_LIST_LENGTH,
    MAX_UNPACKED_BYTES_PER_BYTE,
    MAX_VALUE_BYTES,
    STEP_BYTES,
    completed,
    unpack_around_buffer,
    unpack_frozen,
    unpack_frozen_in_steps,
    unpack_lists,
    unpacked_bytes,
)
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.frozen_map import FrozenMap

VALUE = {"a": [1, {"b": [2.5, None]}]}


def test_the_frozen_form_is_hashable() -> None:
    frozen = unpack_frozen(msgpack.packb(VALUE))
    assert frozen == FrozenMap([("a", (1, FrozenMap([("b", (2.5, None))])))])
    hash(frozen)


def test_a_map_differs_from_the_array_of_its_pairs() -> None:
    for array, as_map in (([], {}), ([["a", 1]], {"a": 1})):
        first, second = (unpack_frozen(msgpack.packb(value)) for value in (array, as_map))
        assert first != second and second != first
        assert len({first: 0, second: 1}) == 2
        assert type(first) is tuple and type(second) is FrozenMap
        again = unpack_frozen(msgpack.packb(as_map))
        assert again == second and hash(again) == hash(second)


def test_the_plain_form_has_lists_and_dictionaries() -> None:
    assert unpack_lists(memoryview(msgpack.packb(VALUE))) == VALUE
    assert unpack_lists(msgpack.packb({1: 2})) == {1: 2}


@pytest.mark.parametrize("unpack", [unpack_frozen, unpack_lists])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",  # a byte that MessagePack does not use
        b"\x01\x02",  # two values
        b"\x92\x01",  # a truncated array
        b"\xdc" + (MAX_LIST_LENGTH + 1).to_bytes(2, "big"),  # an array with too large a count
        b"\xde" + (MAX_LIST_LENGTH + 1).to_bytes(2, "big"),  # a map with too large a count
        b"\x91" * 2000 + b"\x01",  # nested too deeply
        b"\xa1\xff",  # text that is not UTF-8
    ],
    ids=["nothing", "unused", "two", "short", "array", "map", "deep", "text"],
)  # fmt: skip
def test_anything_but_one_bounded_value_is_a_violation(unpack: object, body: bytes) -> None:
    assert callable(unpack)
    with pytest.raises(ProtocolViolation, match="not MessagePack"):
        unpack(body)


def test_elements_in_short_lists_are_unpacked_without_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[int] = []
    monkeypatch.setattr(module, "_check_completeness", lambda body: checked.append(len(body)))
    reply, long = [7, 2, bytes(16 * 1024)], [7, [0] * 65, bytes(16 * 1024)]
    assert unpack_lists(msgpack.packb(reply)) == reply
    assert not checked
    assert unpack_lists(msgpack.packb(long)) == long
    assert len(checked) == 1


def test_an_array_of_the_greatest_length_is_unpacked() -> None:
    assert len(unpack_lists(msgpack.packb([0] * MAX_LIST_LENGTH))) == MAX_LIST_LENGTH


@pytest.mark.parametrize("unpack", [unpack_frozen, unpack_lists])
@pytest.mark.parametrize("size", [1000, 3000, 60_000])
@pytest.mark.parametrize("header", [b"\xdc\x0f\xa0", b"\xdd\0\0\x0f\xa0", b"\xde\x0f\xa0"])
def test_nested_announcements_of_long_lists_allocate_little(
    header: bytes, size: int, unpack: object
) -> None:
    assert callable(unpack)
    depth = min(1000, size // (len(header) + 1))  # a map's values are nested behind its keys
    body = (header + (b"\x01" if header[0] == 0xDE else b"")) * depth
    body += b"\x01" * (size - len(body))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation, match="not MessagePack"):
            unpack(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body) + 60_000  # the unpacker itself takes 45 KB


@pytest.mark.parametrize("unpack", [unpack_frozen, unpack_lists])
def test_a_malformed_value_in_nested_lists_leaks_no_memory(unpack: object) -> None:
    assert callable(unpack)
    body = b"\xdc\x01\x00" * 1000 + b"\xa1\xff" + b"\xc0" * 255_000  # text that is not UTF-8
    tracemalloc.start()
    try:
        for _ in range(3):
            with pytest.raises(ProtocolViolation, match="not MessagePack"):
                unpack(body)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 1_000_000  # 2 MB for each call with versions of msgpack before 1.2.1


NESTED = b"\xdc\x01\xf4" + (b"\x91" * 1000 + b"\xc0") * 500


def test_a_deeply_nested_value_is_unpacked_in_short_steps() -> None:
    assert len([*unpack_frozen_in_steps(NESTED)]) >= len(NESTED) // STEP_BYTES
    assert len(completed(unpack_frozen_in_steps(NESTED))) == 500


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_place_of_a_step_does_not_change_the_value(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"text \N{SNOWMAN}" * 20: [2.5, 2**64 - 1, -(2**63), b"\x91" * 300, None, {}, [[[]]]]}
    body = msgpack.packb([value] * 9)
    expected = unpack_frozen(body)
    monkeypatch.setattr(module, "STEP_BYTES", size)
    found = completed(unpack_frozen_in_steps(body))
    assert found == expected
    assert type(found[0]) is FrozenMap


@pytest.mark.parametrize(
    "body",
    [
        NESTED + b"\x01",
        NESTED + b"\x01" * STEP_BYTES,
        NESTED[:-1],
        NESTED[:-1] + b"\xc1",
        b"\xdc\x10\x01" + b"\x01" * 4097 * 9,
        b"\x91" * 1025 + NESTED,
        b"\x92\xa1\xff" + NESTED,
    ],
    ids=["more", "many more", "short", "unused", "array", "deep", "text"],
)
def test_a_long_value_that_is_malformed_is_a_violation(body: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not MessagePack"):
        completed(unpack_frozen_in_steps(body))


BEFORE = re.compile(rb"\x93\x01")
LARGE = bytes(range(256)) * (MAX_VALUE_BYTES // 256 + 1)


def test_a_large_buffer_in_its_place_is_not_unpacked_or_copied() -> None:
    body = msgpack.packb([1, LARGE, "rest"])
    value, buffer = completed(unpack_around_buffer(body, BEFORE))
    assert value == (1, b"", "rest")
    assert buffer is not None
    assert bytes(buffer) == LARGE
    assert buffer.obj is body


def test_a_small_value_is_unpacked_whole() -> None:
    assert completed(unpack_around_buffer(msgpack.packb([1, b"ab"]), BEFORE)) == ((1, b"ab"), None)


@pytest.mark.parametrize(
    "body",
    [
        msgpack.packb([2, LARGE, "rest"]),  # not at the position of the buffer
        msgpack.packb([1, [LARGE], "rest"]),
        msgpack.packb([1, LARGE, LARGE]),  # two buffers
        msgpack.packb([1, LARGE, "rest"])[:-10],  # a truncated buffer
        msgpack.packb([1, *[[None] * 4000] * 200]),
        b"\x93\x01\xc6" + bytes(MAX_VALUE_BYTES + 1),
    ],
    ids=["elsewhere", "within", "two", "short", "lists", "empty"],
)
def test_a_large_message_without_exactly_one_large_buffer_is_never_unpacked(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[int] = []
    monkeypatch.setattr(msgpack, "unpackb", lambda body, **_: unpacked.append(len(body)))
    with pytest.raises(LimitExceeded, match="without the elements"):
        completed(unpack_around_buffer(body, BEFORE))
    assert not unpacked


def _array(element: bytes, count: int) -> bytes:
    return b"\xdc" + count.to_bytes(2, "big") + element * count


@pytest.mark.parametrize(
    "element",
    [
        pytest.param(b"\x91" * 1000 + b"\xc0", id="nested arrays"),
        pytest.param(b"\x81\xa0" * 1000 + b"\xc0", id="nested maps"),
        pytest.param(b"\x80", id="empty maps"),
        pytest.param(b"\x90", id="empty arrays"),
        pytest.param(b"\x82\xa2ab\xc0\xa2cd\xc0", id="maps of two pairs"),
        pytest.param(b"\x8f" + b"".join(b"\xa2a%c\xc0" % (97 + n) for n in range(15)), id="maps"),
        pytest.param(b"\xe0", id="negative numbers of one byte"),
        pytest.param(b"\xd0\x81", id="numbers of one byte"),
        pytest.param(b"\xcd\x02\x01", id="numbers of two bytes"),
        pytest.param(b"\xcf" + b"\x7f" * 8, id="numbers of eight bytes"),
        pytest.param(b"\xcb" + b"\x7f" * 8, id="floats"),
        pytest.param(b"\xa2ab", id="texts"),
        pytest.param(b"\xa3\xe2\x98\x83", id="texts of one wide character"),
        pytest.param(b"\xbf" + b"\xf0\x9f\x98\x80" * 7 + b"abc", id="texts of wide characters"),
        pytest.param(b"\xa5\xf0\x9f\x98\x80a", id="texts of two wide characters"),
        pytest.param(b"\xc4\x02ab", id="buffers"),
        pytest.param(b"\xd4\x01\x01", id="extensions"),
        pytest.param(b"\xc7\x00\x01", id="empty extensions"),
        pytest.param(b"\xd6\xff\x00\x00\x00\x01", id="times"),
        pytest.param(b"\x94\x07\xcd\x04\x01\xcd\x04\x02\xcd\x04\x03", id="invocations"),
        pytest.param(b"\x92\xfd\x91\x05", id="drops"),
    ],
)
def test_the_bound_of_unpacked_memory_covers_what_python_allocates(element: bytes) -> None:
    body = _array(element, max(1, min(MAX_LIST_LENGTH, 200_000 // len(element))))
    unpack_frozen(body)  # what is allocated once only
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        value = unpack_frozen(body)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value
    assert after - before <= unpacked_bytes(body) + 4096
    assert unpacked_bytes(memoryview(body)) == unpacked_bytes(body)
    assert unpacked_bytes(body) <= MAX_UNPACKED_BYTES_PER_BYTE * len(body)


def test_the_bound_of_a_body_is_the_sum_of_what_its_bytes_may_begin() -> None:
    each = [unpacked_bytes(bytes([byte])) for byte in range(256)]
    assert max(each) == MAX_UNPACKED_BYTES_PER_BYTE
    for size in (0, 1, 584, 585, 586, 5_000):
        greatest = bytes([0x80]) * size
        assert unpacked_bytes(greatest) == MAX_UNPACKED_BYTES_PER_BYTE * size
        mixed = Random(size).randbytes(size)
        assert unpacked_bytes(mixed) == sum(each[byte] for byte in mixed)
