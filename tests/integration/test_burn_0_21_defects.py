"""Defects of Burn 0.21.0's server, as reproduced with it, are absent from this server.

Each test sends bytes that make Burn's own server hang, panic, or return another client's tensor.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32, I8, I16, I32, I64, U8, U16, U32, U64, DType
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES
from burn_remote_protocol.messages import Expose, Fetch
from burn_remote_protocol.operations.families import base, numeric
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.burn_sockets import BurnSockets
from support.recorded import golden
from support.servers import RunningServer, server

SPEC = TensorSpec((2, 3), F32)
INTEGERS: dict[DType, Any] = {
    I8: np.int8, I16: np.int16, I32: np.int32, I64: np.int64,
    U8: np.uint8, U16: np.uint16, U32: np.uint32, U64: np.uint64,
}  # fmt: skip


def used(spec: TensorSpec) -> TensorUse:
    return TensorUse(spec, TensorStatus.READ_ONLY)


def made(spec: TensorSpec) -> TensorUse:
    return TensorUse(spec, TensorStatus.NOT_INIT)


def filled(value: float) -> Any:
    return np.full(SPEC.shape, value, np.float32)


ADD: Signature = sign(numeric.ADD, used(SPEC), used(SPEC), made(SPEC))


def test_1_moves_whose_transfer_ids_are_0_1_1_1_all_arrive_in_order(
    first_server: RunningServer, second_server: RunningServer
) -> None:
    with BurnSockets(first_server.address) as source, BurnSockets(second_server.address) as target:
        for number, transfer in enumerate((0, 1, 1, 1)):
            source.upload(number, filled(number), F32)
            source.say(Expose(number, SPEC, 1, transfer, 1.0))
            target.say(Fetch(transfer, first_server.address, 100 + number, None))
        for number in reversed(range(4)):
            assert (target.array(100 + number, SPEC) == number).all()


def test_2_sessions_with_equal_tensor_ids_keep_their_own(first_server: RunningServer) -> None:
    with BurnSockets(first_server.address) as first, BurnSockets(first_server.address) as second:
        for number, sockets in enumerate((first, second)):
            sockets.upload(7, filled(number), F32)
        for number, sockets in enumerate((first, second)):
            assert (sockets.array(7, SPEC) == number).all()
    with BurnSockets(first_server.address) as third:
        assert isinstance(third.read(7, SPEC), OperationFailed)


def test_3_streams_of_a_session_execute_in_the_order_of_arrival(
    first_server: RunningServer,
) -> None:
    with BurnSockets(first_server.address) as sockets:
        sockets.upload(0, filled(1), F32, stream=1)
        for number in range(200):
            sockets.execute(ADD, number, 0, number + 1, stream=2 + number % 8)
        assert (sockets.array(200, SPEC, stream=99) == 201).all()


def test_4_after_a_failed_operation_this_session_and_all_others_are_usable(
    first_server: RunningServer,
) -> None:
    positions = TensorSpec((1,), I64)
    out = TensorSpec((1, 3), F32)
    select = sign(base.SELECT, used(SPEC), 0, used(positions), made(out))
    with BurnSockets(first_server.address) as sockets, BurnSockets(first_server.address) as other:
        sockets.upload(1, filled(1), F32)
        sockets.upload(2, np.array([99]), I64)
        sockets.execute(select, 1, 2, 3)
        failure = sockets.read(3, out)
        assert isinstance(failure, OperationFailed)
        assert "Select" in str(failure)
        for each in (sockets, other):
            each.upload(4, filled(2), F32)
            each.execute(ADD, 4, 4, 5)
            assert (each.array(5, SPEC) == 4).all()


def test_5_an_upload_of_20_mib_in_one_websocket_frame_arrives(first_server: RunningServer) -> None:
    array = np.arange(5 * 2**20, dtype=np.float32)
    assert array.nbytes < MAX_MESSAGE_BYTES
    with BurnSockets(first_server.address) as sockets:
        sockets.upload(1, array, F32)
        np.testing.assert_array_equal(sockets.array(1, TensorSpec(array.shape, F32)), array)


def test_6_integers_are_cast_between_all_their_widths(first_server: RunningServer) -> None:
    with BurnSockets(first_server.address) as sockets:
        for (number, (source, from_)), (target, to) in itertools.product(
            enumerate(INTEGERS.items()), INTEGERS.items()
        ):
            specs = TensorSpec((3,), source), TensorSpec((3,), target)
            sockets.upload(number, np.array([0, 1, 127], from_), source)
            sockets.execute(sign(base.CAST, used(specs[0]), made(specs[1])), number, 100)
            assert sockets.array(100, specs[1], to).tolist() == [0, 1, 127]


@pytest.mark.parametrize("dtype", [U8, U16, U32, U64], ids=str)
def test_7_unsigned_integers_can_be_read_after_their_upload(
    dtype: DType, first_server: RunningServer
) -> None:
    largest = np.iinfo(INTEGERS[dtype]).max
    with BurnSockets(first_server.address) as sockets:
        sockets.upload(1, np.array([0, 1, largest], INTEGERS[dtype]), dtype)
        seen = sockets.array(1, TensorSpec((3,), dtype), INTEGERS[dtype])
        assert seen.tolist() == [0, 1, largest]


def test_8_quantized_operations_get_responses_and_the_session_continues(
    first_server: RunningServer,
) -> None:
    # Burn's client panics before sending these operations; the bytes are those it would send.
    tasks = [one.payload for one in golden("Task") if "uantize/" in one.name]
    assert tasks
    with BurnSockets(first_server.address) as sockets:
        sockets.upload(1, filled(1), F32)
        for payload in tasks:
            sockets.requests.send(payload)
        answer = sockets.sync()
        assert answer is None or isinstance(answer, OperationFailed)
        sockets.upload(4, filled(2), F32)
        sockets.execute(ADD, 4, 4, 5)
        assert (sockets.array(5, SPEC) == 4).all()


def test_9_the_tensors_of_a_vanished_client_are_freed() -> None:
    with server() as running:
        sockets = BurnSockets(running.address)
        sockets.upload(1, filled(1), F32)
        sockets.say(Expose(1, SPEC, 1, 3, 1.0))
        assert (sockets.array(1, SPEC) == 1).all()
        assert running.metric("burn_remote_tensor_bytes") == 24
        sockets.requests.close()  # the other socket stays silent
        while running.metric("burn_remote_sessions"):
            pass
        assert running.metric("burn_remote_tensor_bytes") == 0
        sockets.responses.close()
