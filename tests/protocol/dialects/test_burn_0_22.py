"""Messages of Burn 0.22: recorded ones are understood, others refused with what was expected."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dialects import burn_0_22
from burn_remote_protocol.dialects.bounded_unpacking import MAX_VALUE_BYTES
from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply
from burn_remote_protocol.dialects.burn_0_22 import (
    Alias,
    AllReduce,
    Bindings,
    Close,
    ExposeLocally,
    FetchLocally,
    FetchUnsupported,
    Profile,
    RunGraph,
    SessionInit,
    decode_init,
    decode_messages,
    encode_init,
    ends_with_close,
    is_burn_frame,
    packed_messages,
)
from burn_remote_protocol.dialects.burn_0_22_responses import (
    IncompatibleProtocol,
    NoSuchDevice,
    SessionInfo,
    Unauthorized,
    decode_opening,
    decode_reply,
    encode_info,
    encode_profile,
    encode_refusal,
    encode_reply,
)
from burn_remote_protocol.dtypes import F32, I32
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.messages import (
    Drop,
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Upload,
)
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice, TensorData
from support.recorded import DATA, golden
from support.specs import f32

MESSAGES = [
    json.loads(line) for line in (DATA / "messages-0.22.jsonl").read_text("utf-8").splitlines()
]
S = [1]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in MESSAGES if one["name"].startswith(f"{kind}/")]


def tensor(status: str = "ReadOnly", identifier: int = 7) -> Any:
    return [[identifier], [[2]], status, "F32"]


def _decoded(frame: bytes) -> list[Any]:
    return [*decode_messages(frame)]


def decoded(*tasks: Any) -> list[Any]:
    return decode_messages(msgpack.packb([{"Task": task} for task in tasks]))


CAPABILITY = [*range(1, 33)]
LONG = {"WebSocket": ["ws", "a" * 300, 1]}
PEER = {"WebSocket": ["ws", "node-b", 3000]}
NUMBER = int.from_bytes(bytes(range(1, 9)), "little")
BINDINGS = [[[[0], [300]]], [2, 3], [{"Float": 0.5}], [[0, 2, 1]]]


@pytest.mark.parametrize(
    ("task", "messages"),
    [
        ({"Seed": 5}, [Seed(5)]),
        (
            {"RegisterTensor": [S, [7], [bytes(8), [2], "F32"]]},
            [Upload(7, TensorData(bytes(8), (2,), F32))],
        ),
        ({"RegisterAlias": [S, [8], [7]]}, [Alias(8, 7)]),
        ({"ReadTensor": [5, S, tensor()]}, [Read(5, 7, f32(2))]),
        ({"ReadTensor": [5, S, tensor("ReadWrite")]}, [Read(5, 7, f32(2)), Drop((7,))]),
        ({"SyncBackend": [6, S]}, [Sync(6)]),
        ({"DTypeUsage": [4, "I32"]}, [QueryDType(4, I32)]),
        (
            {"ExposeTensorRemote": [S, tensor(), 1, CAPABILITY, PEER]},
            [Expose(7, f32(2), 1, NUMBER, 86_400.0)],
        ),
        (
            {"RegisterTensorRemote": [S, [CAPABILITY, PEER], [9]]},
            [Fetch(NUMBER, "ws://node-b:3000", 9, None)],
        ),
        ({"ExposeTensorLocal": [S, tensor("ReadWrite"), 3]}, [ExposeLocally(7, f32(2), 3, True)]),
        ({"RegisterTensorLocal": [S, 3, [9]]}, [FetchLocally(3, 9)]),
        ({"ProfileStart": [2, S]}, [Profile(2, "ProfileStart")]),
        ({"ProfileEnd": [2, S, [1, 300], [True]]}, [Profile(2, "ProfileEnd")]),
        ({"ProfileAbandon": [S, [1, 300]]}, []),
        (
            {"RegisterAndExecuteGraph": [S, 9, [{"Drop": tensor()}], [[], [], [], []]]},
            [RunGraph(9, msgpack.packb([{"Drop": tensor()}]), Bindings((), (), (), ()))],
        ),
        (
            {"ExecuteGraph": [S, 9, BINDINGS]},
            [
                RunGraph(
                    9,
                    None,
                    Bindings(((0, 300),), (2, 3), (Scalar("Float", 0.5),), (Slice(0, 2, 1),)),
                )
            ],
        ),
    ],
)
def test_a_task_is_decoded(task: Any, messages: list[Any]) -> None:
    assert decoded(task) == messages


def test_a_frame_holds_tasks_in_order() -> None:
    frame = [{"Task": {"Seed": 1}}, {"Task": {"SyncBackend": [2, S]}}, {"Close": [3]}]

    assert decode_messages(msgpack.packb(frame)) == [Seed(1), Sync(2), Close(3)]


def test_the_number_of_a_capability_counts_as_random() -> None:
    (recorded,) = [one for one in MESSAGES if one["name"] == "Data/TensorRequest/3"]

    assert recorded["value"]["TensorRequest"] < 2**63
    assert is_secret(recorded["value"]["TensorRequest"])


def test_a_peer_that_is_no_websocket_fails_only_the_tensor() -> None:
    (message,) = decoded({"RegisterTensorRemote": [S, [CAPABILITY, {"Pigeon": [1]}], [9]]})

    assert isinstance(message, FetchUnsupported)
    assert "not over 'Pigeon'" in str(message.error)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"Nothing": [1]}, r"expected a task \(Seed, RegisterOperation"),
        ({"SyncBackend": [1]}, "a request and a stream, an array of 2"),
        ({"SyncBackend": [-1, S]}, "a request, an unsigned 64-bit integer"),
        ({"RegisterTensor": [S, [7], [b"", [2], "F32"]]}, "expected 8 bytes"),
        ({"ReadTensor": [5, S, tensor(identifier=-1)]}, "the id of a tensor"),
        ({"ExposeTensorRemote": [S, tensor(), -1, CAPABILITY, PEER]}, "a count"),
        ({"ExposeTensorRemote": [S, tensor(), 1, CAPABILITY[1:], PEER]}, "array of 32"),
        ({"ExposeTensorRemote": [S, tensor(), 1, [256] * 32, PEER]}, "32 bytes of a capability"),
        ({"RegisterTensorRemote": [S, [CAPABILITY, {"WebSocket": ["ws", "a", -1]}], [9]]}, "port"),
        ({"RegisterTensorRemote": [S, [CAPABILITY, LONG], [9]]}, "host"),
        ({"ExecuteGraph": [S, 9, [[], [-1], [], []]]}, "the size of a dimension"),
        ({"ExecuteGraph": [S, 9, [[], [], [5], []]]}, "a scalar"),
        ({"ExecuteGraph": [S, 9, [[[0]], [], [], []]]}, "not a body of ExecuteGraph"),
        ({"RegisterOperation": [S, {"Module": {"Rfft": []}}]}, "Module that Burn 0.22 has"),
    ],
)  # fmt: skip
def test_a_malformed_task_is_an_error_in_its_place(task: Any, says: str) -> None:
    before, error, after = decoded({"Seed": 1}, task, {"Seed": 2})

    assert (before, after) == (Seed(1), Seed(2))
    assert isinstance(error, ProtocolViolation)
    with pytest.raises(ProtocolViolation, match=says):
        raise error


@pytest.mark.parametrize("frame", [b"", b"\xc1\xc1", b"\x05", b"\x92\x01"])
def test_a_frame_that_is_no_array_of_messages_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_messages(frame)


GRAPH = {"RegisterAndExecuteGraph": [S, 9, [{"Init": [tensor()]}], [[], [2], [], []]]}
BYTES = {"RegisterTensor": [S, [7], [bytes(3000), [3000], "U8"]]}


@pytest.mark.parametrize(
    "tasks",
    [
        [{"Seed": 1}, {"SyncBackend": [2, S]}, {"ReadTensor": [5, S, tensor("ReadWrite")]}],
        [{"Seed": 1}, GRAPH, {"Seed": 2}],
        [{"Seed": 1}, BYTES, {"Nothing": [1]}, {"ExecuteGraph": [S, 9, [[[0]], [], [], []]]}],
    ],
)
def test_messages_that_are_divided_before_they_are_decoded_are_the_same(tasks: list[Any]) -> None:
    frame = msgpack.packb([{"Task": task} for task in tasks])

    divided = [each for packed in packed_messages(frame) for each in packed.decode()]

    assert [*map(shown, divided)] == [*map(shown, decode_messages(frame))]


def shown(message: Any) -> str:
    """Describe a message, with elements as bytes."""
    if isinstance(message, Upload):
        data = message.data
        message = Upload(message.tensor, TensorData(bytes(data.bytes), data.shape, data.dtype))
    return str(message)


def test_elements_count_once_in_the_memory_of_a_message() -> None:
    (packed,) = packed_messages(msgpack.packb([{"Task": BYTES}]))
    assert 3000 < packed.unpacked_bytes < 10_000


def test_errors_of_messages_keep_no_decoded_values_alive() -> None:
    malformed = {"Task": {"ExecuteGraph": [S, 9, [[[0]], [], [], []]]}}
    (error,) = decode_messages(msgpack.packb([malformed]))
    assert isinstance(error, ProtocolViolation)
    assert (error.__traceback__, error.__context__) == (None, None)


@pytest.mark.parametrize("session", [5, 200, 2**16, 2**32, 2**64 - 1])
def test_a_frame_that_ends_the_session_is_known_by_its_end(session: int) -> None:
    assert ends_with_close(msgpack.packb([{"Task": {"Seed": 1}}, {"Close": [session]}]))
    assert not ends_with_close(msgpack.packb([{"Close": [session]}, {"Task": {"Seed": 1}}]))


def test_large_uploads_of_one_frame_are_not_copied() -> None:
    sizes = [MAX_VALUE_BYTES, 4 * MAX_VALUE_BYTES, 0, 300]
    frame = msgpack.packb(
        [{"Task": {"Seed": 5}}]
        + [
            {"Task": {"RegisterTensor": [S, [number], [bytes(size), [size], "U8"]]}}
            for number, size in enumerate(sizes)
        ]
        + [{"Task": {"SyncBackend": [6, S]}}]
    )

    first, *uploads, last = _decoded(frame)

    assert (first, last) == (Seed(5), Sync(6))
    assert [upload.tensor for upload in uploads] == [0, 1, 2, 3]
    assert [len(upload.data.bytes) for upload in uploads] == sizes
    assert uploads[0].data.bytes.obj is frame
    assert uploads[3].data.bytes.obj is not frame


@pytest.mark.parametrize("cut", [1, 30, 300_000])
def test_a_large_frame_that_ends_early_is_refused(cut: int) -> None:
    upload = {"RegisterTensor": [S, [1], [bytes(MAX_VALUE_BYTES), [MAX_VALUE_BYTES], "U8"]]}
    frame = msgpack.packb([{"Task": upload}, {"Task": {"Seed": 2**40}}] * 2)

    with pytest.raises(ProtocolViolation, match="not MessagePack"):
        decode_messages(frame[:-cut])
    with pytest.raises(ProtocolViolation, match="5 bytes follow"):
        decode_messages(frame + bytes(5))


def test_a_large_message_without_elements_is_refused() -> None:
    names = [[[place], [[2]], "ReadOnly", "F32"] for place in range(4000)]
    cat = {"BaseFloat": {"Cat": [names * 10, 0, tensor("NotInit")]}}
    frame = msgpack.packb([{"Task": {"RegisterOperation": [S, cat]}}])
    assert len(frame) > MAX_VALUE_BYTES

    with pytest.raises(ProtocolViolation, match="more than"):
        decode_messages(frame)


def test_recorded_messages_of_clients_are_decoded() -> None:
    recorded = of_kind("RemoteMessage")
    assert len(recorded) > 40
    for one in recorded:
        frame = b"\x91" + bytes.fromhex(one["hex"])
        if "/Init/" in one["name"]:
            assert encode_init(decode_init(frame)) == frame
        else:
            assert not [each for each in decode_messages(frame) if isinstance(each, Exception)]


def test_recorded_responses_are_encoded_to_the_same_bytes() -> None:
    for one in of_kind("TaskResponse"):
        frame = bytes.fromhex(one["hex"])
        if "/Init/" in one["name"]:
            assert encode_info(SessionInfo(one["value"][0]["Init"][2])) == frame
            assert isinstance(decode_opening(frame), SessionInfo)
        elif "/InitRefused/" in one["name"]:
            opening = decode_opening(frame)
            assert not isinstance(opening, SessionInfo)
            assert encode_refusal(opening) == frame
        elif "/ProfileStart/" in one["name"]:
            assert encode_profile(one["value"][1], "ProfileStart") == frame
        else:
            assert b"".join(encode_reply(decode_reply(frame))) == frame


def test_golden_bindings_are_decoded() -> None:
    (line,) = golden("GraphBindings", "0.22")
    (message,) = decoded({"ExecuteGraph": [S, 7, line.lists]})

    assert message.bindings.sizes == (2, 3, 784)
    assert message.bindings.tensors == ((0, 300), (1, 301))


def test_golden_execution_errors_are_decoded() -> None:
    for line in golden("ExecutionError", "0.22"):
        frame = msgpack.packb([{"ReadTensor": {"Err": line.lists}}, 5])
        reply = decode_reply(frame)
        assert isinstance(reply.value, OperationFailed)
        assert reply.value.reason == "scale"


@pytest.mark.parametrize(
    ("refusal", "wire"),
    [
        (Unauthorized(), "Unauthorized"),
        (NoSuchDevice(2), {"NoSuchDevice": [2]}),
        (IncompatibleProtocol(), {"IncompatibleProtocol": [2]}),
    ],
)
def test_refusals_have_the_form_of_burn(refusal: Any, wire: Any) -> None:
    assert msgpack.unpackb(encode_refusal(refusal)) == [{"InitRefused": wire}, 0]
    assert decode_opening(encode_refusal(refusal)) == refusal


def test_a_failed_read_and_a_failed_sync_have_the_form_of_burn() -> None:
    failed = OperationFailed("no room")
    for is_sync, name in ((False, "ReadTensor"), (True, "SyncBackend")):
        frame = b"".join(encode_reply(BurnReply(5, failed), is_sync=is_sync))
        assert msgpack.unpackb(frame) == [{name: {"Err": {"Generic": ["no room"]}}}, 5]


def test_init_is_decoded_and_never_shows_its_token() -> None:
    init = SessionInit(2, 2**64 - 1, 1, b"secret")

    assert decode_init(encode_init(init)) == init
    assert "secret" not in repr(init)


@pytest.mark.parametrize(
    "wire",
    [
        [], {"Init": [5]}, [{"Init": [5]}], [{"Init": [2, [1], 0, b""]}, {"Task": {"Seed": 1}}],
        [{"Init": [2, [1], -1, b""]}], [{"Init": [2, [1], 0, "text"]}],
        [{"Init": [2, [1], 0, bytes(5000)]}], [{"Close": [1]}], [{"Init": [True, [1], 0, b""]}],
    ],
)  # fmt: skip
def test_another_first_message_is_refused(wire: Any) -> None:
    with pytest.raises(ProtocolViolation):
        decode_init(msgpack.packb(wire))


@pytest.mark.parametrize(
    ("first", "is_burn"),
    [(b"\x91\x81", True), (b"\x90", True), (b"\xdc\x00\x01", True), (b"\xdd", True),
     (b"\x01\x95", False), (b"\x81", False), (b"", False), (b"\x80", False)],
)  # fmt: skip
def test_the_first_byte_tells_burns_frames_from_native_ones(first: bytes, is_burn: bool) -> None:
    assert is_burn_frame(first) is is_burn


# -- collectives ------------------------------------------------------------------------------


def test_an_all_reduce_has_its_devices_and_its_reduction() -> None:
    reduce = {"AllReduce": [tensor("ReadWrite", 3), tensor("NotInit", 4), "Mean", [[0, 0], [1, 9]]]}

    (found,) = decoded({"RegisterOperation": [S, {"Distributed": reduce}]})

    assert found == AllReduce(3, 4, f32(2), f32(2), Reduction.MEAN, ((0, 0), (1, 9)), is_last=True)


def test_waiting_for_collectives_is_no_task() -> None:
    assert decoded({"RegisterOperation": [S, {"Distributed": "SyncCollective"}]}) == []


@pytest.mark.parametrize("first", [0.0, 1.0, float("nan")])
def test_equal_numbers_of_other_types_or_signs_in_calls_of_graphs_stay_different(
    first: float,
) -> None:
    def bound(scalar: Any, size: int) -> Any:
        bindings = [[[[7], [8]]], [size], [scalar], []]
        packed = msgpack.packb([{"Task": {"ExecuteGraph": [[0], 1, bindings]}}])
        (message,) = burn_0_22.decode_messages(packed)
        assert isinstance(message, burn_0_22.RunGraph)
        return repr(message.bindings[1:])

    scalars = [{"Float": first}, {"Float": -first}, {"Int": 1}, {"UInt": 1}, {"Bool": True}]
    alone = []
    for scalar in scalars:
        burn_0_22._BOUND_VALUES.clear()
        alone.append(bound(scalar, 3))
    assert [bound(scalar, 3) for scalar in scalars * 2] == alone * 2
    assert bound(scalars[0], 4) != alone[0]


def test_equal_numbers_of_two_calls_of_graphs_are_decoded_once() -> None:
    bindings = [[[[7], [8]]], [64], [{"Float": 0.1}, {"Int": 1}], [[0, None, 1]]]
    packed = msgpack.packb([{"Task": {"ExecuteGraph": [[0], 1, bindings]}}])
    (first,), (second,) = (burn_0_22.decode_messages(packed) for _ in range(2))

    assert isinstance(first, burn_0_22.RunGraph)
    assert isinstance(second, burn_0_22.RunGraph)
    assert first.bindings.scalars is second.bindings.scalars


def test_bound_values_that_are_refused_are_refused_each_time() -> None:
    bindings = [[], [-1], [], []]
    packed = msgpack.packb([{"Task": {"ExecuteGraph": [[0], 1, bindings]}}])
    for _ in range(2):
        (found,) = burn_0_22.decode_messages(packed)
        assert isinstance(found, ProtocolViolation)


def test_a_bounded_number_of_bound_values_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burn_0_22, "BOUND_VALUES_KEPT", 4)
    burn_0_22._BOUND_VALUES.clear()
    for size in range(20):
        bindings = [[], [size], [], []]
        burn_0_22.decode_messages(msgpack.packb([{"Task": {"ExecuteGraph": [[0], 1, bindings]}}]))
    long = [[], [1] * 4096, [], []]
    burn_0_22.decode_messages(msgpack.packb([{"Task": {"ExecuteGraph": [[0], 1, long]}}]))

    assert len(burn_0_22._BOUND_VALUES) <= 4
    assert all(len(key) <= burn_0_22.LONGEST_BOUND_VALUES_BYTES for key in burn_0_22._BOUND_VALUES)
