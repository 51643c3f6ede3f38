"""Tasks of the native dialect, against bytes that were written by hand."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.collectives import (
    CollectiveCall,
    CollectiveKind,
    EngineKind,
    GroupSpec,
    Reduction,
)
from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.dialects.native_tasks import (
    _DECODE_TASK,
    _ENCODE_TASK,
    DEFINE_TASK,
    DROP_TASK,
    MAX_SIGNATURES,
    READ_TASK,
    SLOW_TASKS,
    LastUses,
    decode_task,
    dropped_next,
    encode_task,
)
from burn_remote_protocol.dtypes import BOOL, F32
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.messages import (
    BeginUpload,
    Cleanup,
    Collective,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Fetch,
    FindFile,
    JoinGroup,
    KeepContent,
    LeaveGroup,
    ListPublished,
    LoadFile,
    OpenContent,
    OpenPublished,
    Publish,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Unpublish,
    Upload,
)
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.other_types import without_one_array
from support.recorded import golden

SPEC = TensorSpec((2, 3), F32)
SPEC_HEX = "92 920203 a3463332"  # [[2, 3], "F32"]
TRANSFER = b"t" * 32
TRANSFER_HEX = f"c420{TRANSFER.hex()}"
DIGEST = b"d" * 32
DIGEST_HEX = f"c420{DIGEST.hex()}"
NATIVE_BOOL = BOOL.wire

MEAN_TO_1 = CollectiveCall(CollectiveKind.REDUCE, (SPEC,), Reduction.MEAN, 1)
BARRIER = CollectiveCall(CollectiveKind.BARRIER)

# Negative integers ff, fe, … are the codes -1, -2, …
BYTES: list[tuple[Any, str]] = [
    (Drop((1, 2)), "92 fd 920102"),
    (Drop(()), "92 fd 90"),
    (Upload(3, TensorData(b"\1\2\3\4", (1,), F32)), "93 fc 03 93 c404 01020304 9101 a3463332"),
    (BeginUpload(4, SPEC, 24), f"94 fb 04 {SPEC_HEX} 18"),
    (Read(1, 2, SPEC), f"94 fa 01 02 {SPEC_HEX}"),
    (Sync(9), "92 f9 09"),
    (Seed(5), "92 f8 05"),
    (QueryDType(1, F32), "93 f7 01 a3463332"),
    (Cleanup(), "91 f6"),
    (
        DefineGraph(4096, 2, ((0, 0, 1), (1, 2)), (3,), ((1, 1, 0),)),
        "96 f3 cd1000 02 92 93 00 00 01 92 01 02 91 03 91 93 01 01 00",
    ),
    (
        Expose(5, SPEC, 2, TRANSFER, 30.0),
        f"96 f5 05 {SPEC_HEX} 02 {TRANSFER_HEX} cb403e000000000000",
    ),
    (
        JoinGroup(2, GroupSpec(TRANSFER, 1, ("ws://a", "ws://b"), 5.0)),
        f"97 f2 02 {TRANSFER_HEX} 01 92 a677733a2f2f61 a677733a2f2f62 cb4014000000000000"
        " cb4082c00000000000",
    ),
    (
        JoinGroup(2, GroupSpec(TRANSFER, 0, ("ws://a", "ws://b"), 5.0, engine=EngineKind.MEMORY)),
        f"98 f2 02 {TRANSFER_HEX} 00 92 a677733a2f2f61 a677733a2f2f62 cb4014000000000000"
        " cb4082c00000000000 01",
    ),
    (
        Collective(2, 7, MEAN_TO_1, (3,), (4,)),
        f"99 f1 02 07 04 01 01 91 {SPEC_HEX} 9103 9104",
    ),
    (Collective(2, 8, BARRIER, (), (5,)), "99 f1 02 08 06 00 00 90 90 9105"),
    (LeaveGroup(2), "92 f0 02"),
    (FindFile(5, "w.bin"), "93 ef 05 a5772e62696e"),
    (
        LoadFile(7, TensorSpec((2,), F32), "w.bin", 2**56 + 1, 256),
        "96 ee 07 929102a3463332 a5772e62696e cf0100000000000001 cd0100",
    ),
    (
        KeepContent(DIGEST, 7, (SPEC, TensorSpec((), BOOL))),
        f"94 ed {DIGEST_HEX} 07 92 {SPEC_HEX} 92 90 81 a4426f6f6c a64e6174697665",
    ),
    (OpenContent(5, DIGEST, 7, 2), f"95 ec 05 {DIGEST_HEX} 07 02"),
    (Publish(5, "w", 7, SPEC), f"95 eb 05 a177 07 {SPEC_HEX}"),
    (Unpublish(5, "w"), "93 ea 05 a177"),
    (ListPublished(5, None), "93 e9 05 c0"),
    (ListPublished(5, "w"), "93 e9 05 a177"),
    (OpenPublished(7, SPEC, "w"), f"94 e8 07 {SPEC_HEX} a177"),
    (Fetch(TRANSFER, "ws://a", 6, SPEC), f"95 f4 {TRANSFER_HEX} a677733a2f2f61 06 {SPEC_HEX}"),
]


@pytest.mark.parametrize(("task", "written"), BYTES, ids=lambda each: type(each).__name__)
def test_a_task_has_the_bytes_of_the_specification(task: Any, written: str) -> None:
    encoded = bytes.fromhex(written)
    assert encode_task(task) == encoded
    assert decode_task(unpack_frozen(encoded)) == task


@pytest.mark.parametrize(("task", "written"), BYTES, ids=lambda each: type(each).__name__)
def test_a_map_a_text_or_bytes_in_the_place_of_an_array_is_refused(task: Any, written: str) -> None:
    for other in without_one_array(encode_task(task)):
        with pytest.raises(ProtocolViolation):
            decode_task(unpack_frozen(msgpack.packb(other)))


@pytest.mark.parametrize("line", golden("OperationIr")[::97], ids=lambda line: line.name)
def test_an_unnumbered_operation_is_encoded_as_in_burn(line: Any) -> None:
    operation = decode_operation(line.tuples)
    encoded = b"\x92\xfe" + line.payload
    assert encode_task(Execute(operation)) == encoded
    assert decode_task(unpack_frozen(encoded)) == Execute(operation)


@pytest.mark.parametrize("line", golden("OperationIr")[::97], ids=lambda line: line.name)
def test_a_definition_is_a_number_and_an_operation_of_any_tensors(line: Any) -> None:
    signature = decode_operation(line.tuples).signature
    defined = decode_task(unpack_frozen(b"\x93\xff\x07" + line.payload))
    assert defined == Define(7, signature)
    assert decode_task(unpack_frozen(encode_task(defined))) == defined


def test_every_task_can_be_encoded() -> None:
    assert set(_ENCODE_TASK) == set(get_args(Task))


def test_the_codes_that_the_server_looks_for_are_those_of_the_tasks() -> None:
    assert unpack_frozen(encode_task(Drop(())))[0] == DROP_TASK
    assert unpack_frozen(encode_task(Read(1, 2, SPEC)))[0] == READ_TASK
    operation = decode_operation(golden("OperationIr")[0].tuples)
    assert unpack_frozen(encode_task(Define(0, operation.signature)))[0] == DEFINE_TASK
    slow: list[Any] = [
        Execute(operation),
        Cleanup(),
        Fetch(TRANSFER, "ws://a", 6, SPEC),
        Collective(0, 0, BARRIER, (), (1,)),
        FindFile(1, "w.bin"),
        LoadFile(1, SPEC, "w.bin", 0, 0),
        KeepContent(DIGEST, 1, (SPEC,)),
        OpenContent(1, DIGEST, 1, 1),
        Publish(1, "w", 1, SPEC),
        Unpublish(1, "w"),
        ListPublished(1, None),
        OpenPublished(1, SPEC, "w"),
    ]
    assert {unpack_frozen(encode_task(task))[0] for task in slow} == SLOW_TASKS


@pytest.mark.parametrize("name", ["", "n" * 256, "ü" * 128, "a\n", "\0", "\ud800", b"n", 1, ()])
def test_a_name_that_no_tensor_can_have_is_refused(name: Any) -> None:
    with pytest.raises(ProtocolViolation, match="name"):
        decode_task((-21, 5, name, 7, ((), "F32")))


@pytest.mark.parametrize(
    "task", [(-19, b"d" * 31, 7, (((), "F32"),)), (-19, DIGEST, 7, ()), (-20, 5, b"", 7, 1)]
)
def test_a_content_has_a_whole_digest_and_a_tensor(task: Any) -> None:
    with pytest.raises(ProtocolViolation):
        decode_task(task)


@pytest.mark.parametrize("number", [-1, MAX_SIGNATURES, 2**64, None])
def test_a_number_outside_of_the_table_of_signatures_is_refused(number: Any) -> None:
    with pytest.raises(ProtocolViolation):
        decode_task((DEFINE_TASK, number, golden("OperationIr")[0].tuples))


def test_a_malformed_group_is_refused_without_quoting_its_secret() -> None:
    secret = b"\xa5" * 32
    with pytest.raises(ProtocolViolation) as refused:
        decode_task((-14, 0, secret, 0, 5, None))
    assert "\\xa5" not in str(refused.value)


def test_calls_of_collectives_are_decoded_and_checked_although_equal_ones_were_before() -> None:
    wire = (-15, 0, 7, 0, 0, 0, (((1, 2), "F32"),), (3,), (4,))
    task = decode_task(wire)
    assert isinstance(task, Collective)
    again = decode_task(wire)
    assert isinstance(again, Collective)
    assert again.call is task.call
    booleans = CollectiveCall(CollectiveKind.BROADCAST, (TensorSpec((2,), BOOL),))
    for _ in range(2):
        (sent,) = unpack_frozen(b"\x91" + encode_task(Collective(0, 0, booleans, (3,), (4,))))
        decoded = decode_task(sent)
        assert isinstance(decoded, Collective)
        assert decoded.call == booleans
    for malformed in [
        (-15, 0, 7, False, 0, 0, (((1, 2), "F32"),), (3,), (4,)),
        (-15, 0, 7, 0, 0, 0.0, (((1, 2), "F32"),), (3,), (4,)),
        (-15, 0, 7, 0, 0, 0, (((True, 2), "F32"),), (3,), (4,)),
    ]:
        with pytest.raises(ProtocolViolation):
            decode_task(malformed)


@pytest.mark.parametrize("transfer", [0, 5, 2**32, True, b"short", "t" * 32, None, -1])
def test_a_guessable_transfer_id_is_refused(transfer: Any) -> None:
    for task in [
        (-11, 5, ((2, 3), "F32"), 2, transfer, 30.0),
        (-12, transfer, "ws://a", 6, ((2, 3), "F32")),
    ]:
        with pytest.raises(ProtocolViolation, match="a transfer id"):
            decode_task(task)


def test_a_large_number_may_be_a_transfer_id() -> None:
    number = 2**63 + 12345
    task = decode_task((-11, 5, ((2, 3), "F32"), 2, number, 30.0))
    assert task == Expose(5, SPEC, 2, number, 30.0)


@pytest.mark.parametrize(
    "task",
    [
        None, 5, "drop", (), ((),), ([1],), (-13,), (-99, 1), (0.5, 1), (None,), (-3,), (-3, 1),
        (-3, (1, "a")), (-3, (1, -1)), (-4, 1, (b"123", (2, 3), "F32")), (-5, 1, ((2,), "F32")),
        (-5, 1, ((2,), "F32"), -1), (-6, 1, 2, None), (-6, 1, 2, ((2,), "F33")), (-7, -1),
        (-8, 2**64), (-9, 1, "F33"), (-10, 1), (-11, 1), (-12, 1),
        (-14, 0, TRANSFER, 2, ("ws://a", "ws://b"), 5.0), (-14, 0, TRANSFER, 0, (), 5.0),
        (-14, 16, TRANSFER, 0, ("ws://a",), 5.0), (-14, 0, b"short", 0, ("ws://a",), 5.0),
        (-14, 0, TRANSFER, 0, ("ws://a",), 0), (-14, 0, TRANSFER, 0, ("ws://a",), 1e9),
        (-15, 0, 0, 7, 0, 0, (), (), ()), (-15, 0, 0, 0, 5, 0, (), (), ()),
        (-15, 0, -1, 0, 0, 0, (), (), ()), (-15, 0, 0, 0, 0, 0, (((2,), "F33"),), (), ()),
        (-16, 16), (-16,),
    ],
)  # fmt: skip
def test_invalid_tasks_are_refused(task: Any) -> None:
    with pytest.raises(ProtocolViolation):
        decode_task(task)


def test_a_tensor_of_too_many_elements_is_refused_before_memory_is_allocated() -> None:
    with pytest.raises(LimitExceeded):
        decode_task((-5, 1, ((2**40, 2**40), "F32"), 2**62))


@given(
    st.integers(min(_DECODE_TASK) - 1, 1),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.floats(),
        lambda inner: st.lists(inner, max_size=4).map(tuple),
    ),
)
def test_nonsense_is_refused_as_a_violation(code: int, rest: Any) -> None:
    task = (code, *rest) if type(rest) is tuple else (code, rest)
    try:
        decode_task(task)
    except (ProtocolViolation, LimitExceeded) as error:
        assert len(str(error)) < 2000


DEFINE = (DEFINE_TASK, 3, "an operation")


@pytest.mark.parametrize(
    ("tasks", "dropped"),
    [
        ([(0, 1, 2), (DROP_TASK, (1, 2))], (1, 2)),
        ([(0, 1, 2), DEFINE, (DROP_TASK, (1,))], (1,)),
        ([(0, 1, 2), DEFINE, DEFINE, (DROP_TASK, (1,))], ()),  # looks no further than two tasks
        ([(0, 1, 2), (0, 2, 3), (DROP_TASK, (1,))], ()),  # another operation comes first
        ([(0, 1, 2)], ()),
        ([(0, 1, 2), (DROP_TASK, 5)], ()),
        ([(0, 1, 2), (DROP_TASK,)], ()),
        ([(0, 1, 2), ()], ()),
        ([(0, 1, 2), None], ()),
        ([(0, 1, 2), "nonsense"], ()),
    ],
)
def test_the_drops_right_after_an_operation_are_found(
    tasks: list[Any], dropped: tuple[int, ...]
) -> None:
    assert dropped_next(tasks, 0) == dropped


@pytest.mark.parametrize(
    ("tasks", "used_last"),
    [
        ([(0, 1, 2), (-3, (1,))], [{1}, set()]),
        ([(0, 1, 2), (-3, (9,))], [set(), set()]),
        (
            [(0, 1, 2), (0, 2, 3), (4096, 3, 4, (0.5,)), (-3, (1, 2))],
            [{1}, {2}, set(), set()],
        ),
        (
            [(0, 1, 2), (0, 1, 3), (-3, (1,)), (0, 4, 5), (-3, (4,))],
            [set(), {1}, set(), {4}, set()],
        ),
        ([(0, 1, 2), *[(0, 5, 6)] * 3, (-3, (1,))], [{1}, set(), set(), set(), set()]),
        ([(0, 1, 2), (-6, 5, 1, ((2,), 3)), (-3, (1,))], [set()] * 3),
        ([(0, 1, 2)], [set()]),
        ([(0, 1, 2), (), (-3, (1,))], [set()] * 3),
        ([(0, 1, 2), 7], [set()] * 2),
        ([(0, 1, 2), (None, 1)], [set()] * 2),
        ([(0, 1, 2), (-3,)], [set()] * 2),
        ([(0, 1, 2), (-3, 1)], [set()] * 2),
        ([(0, 1, 2), (-3, (1, []))], [set()] * 2),
        ([(0, 1, 2), (0, [1]), (-3, (1,))], [set()] * 3),
        ([(0, 1, 2), (0, (1,), 3), (-3, (1,))], [set()] * 3),
    ],
)
def test_the_last_uses_of_dropped_tensors_are_found(
    tasks: list[Any], used_last: list[set[int]]
) -> None:
    last_uses = LastUses(tasks)
    assert [last_uses.of(place) for place in range(len(tasks))] == used_last


def test_only_numbers_are_hashed_to_find_the_last_uses() -> None:
    class Colliding(tuple[int, ...]):
        """Tuples whose hashes a client chose, so that a dictionary of them takes long."""

        __slots__ = ()

        def __hash__(self) -> int:
            raise AssertionError("it was hashed")

    wrong = tuple(Colliding((1, number)) for number in range(100))
    last_uses = LastUses([(0, 1, 2), (0, *wrong, 3), (-3, (1,))])
    assert not last_uses.of(0)
    last_uses = LastUses([(0, 1, 2), (0, *wrong), (-3, (1,))])
    assert not last_uses.of(0)


def test_finding_the_last_uses_visits_each_task_once() -> None:
    visits = 0

    class Counting(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            nonlocal visits
            visits += 1
            return super().__getitem__(place)

    tasks = Counting([(0, 1, 2)] * 1000 + [(-3, (1,))] + [(0, 1, 2)] * 1000)
    last_uses = LastUses(tasks)
    for place in range(len(tasks)):
        last_uses.of(place)
    assert visits <= len(tasks) + 1


def test_a_dtype_is_asked_for_by_its_wire_value() -> None:
    assert msgpack.unpackb(encode_task(QueryDType(1, BOOL)), use_list=False)[2] == (
        tuple(NATIVE_BOOL) if isinstance(NATIVE_BOOL, list) else NATIVE_BOOL
    )
