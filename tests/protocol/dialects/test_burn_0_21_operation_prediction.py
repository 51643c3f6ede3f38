"""Predicted operations are recognized as by a search, and no others match the prediction."""

from __future__ import annotations

import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects import burn_0_21_operation_prediction
from burn_remote_protocol.dialects.burn_0_21_operation_prediction import (
    LAYOUTS_KEPT,
    OperationPredictor,
)
from burn_remote_protocol.dialects.burn_0_21_recognition import (
    OperationTemplate,
    recognize_operation,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.operations.families import numeric
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.recorded import recordings, sessions

NUMBERS = st.one_of(
    st.integers(0, 127), st.integers(128, 2**16), st.integers(2**31, 2**33), st.just(2**64 - 1)
)


def add(*shape: int) -> Signature:
    use = TensorUse(TensorSpec(shape, F32), TensorStatus.READ_ONLY)
    return sign(numeric.ADD, use, use, use._replace(status=TensorStatus.NOT_INIT))


def frame(signature: Signature, ids: list[int], position: int = 0, stream: int = 0) -> bytes:
    tail: bytes = msgpack.packb([position, [stream]])
    return OperationTemplate(signature).write(ids, (), tail, msgpack.packb)


def never(_: bytes) -> None:
    raise AssertionError("a search was made")


@pytest.mark.parametrize("recording", recordings())
def test_recorded_sessions_are_decoded_alike_with_and_without_prediction(recording: str) -> None:
    for session in sessions(recording):
        expected = OperationPredictor()
        frames = [each["payload"] for each in session["frames"] if each["dir"] == "c2s"]
        for each in frames * 2:
            assert expected.recognize(each) == recognize_operation(each)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_numbers_of_any_length_are_read(rows: list[tuple[int, ...]]) -> None:
    expected = OperationPredictor()
    signature = add(2, 3)
    for first, second, third, position, stream in rows:
        seen = expected.recognize(frame(signature, [first, second, third], position, stream))
        assert seen == Operation(signature, (first, second, third))


def test_repeated_operations_are_recognized_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signatures = [add(2), add(3, 4), add(5)]
    expected = OperationPredictor()
    for number in range(2):
        for signature in signatures:
            expected.recognize(frame(signature, [number] * 3))
    monkeypatch.setattr(burn_0_21_operation_prediction, "split_operation", never)
    for number in range(2, 5):
        for signature in signatures:
            written = frame(signature, [number] * 3, position=number)
            assert expected.recognize(written) == Operation(signature, (number,) * 3)


def test_a_frame_that_differs_in_one_bit_does_not_match_the_prediction() -> None:
    signature = add(2)
    written = frame(signature, [300, 301, 302], 5000, 70_000)
    expected = OperationPredictor()
    for _ in range(2):
        expected.recognize(written)
    for bit in range(8 * len(written)):
        changed = bytearray(written)
        changed[bit // 8] ^= 1 << bit % 8
        seen = expected.recognize(bytes(changed))
        assert seen == recognize_operation(bytes(changed))
        expected.recognize(written)


def test_frames_without_an_operation_are_not_predicted() -> None:
    expected = OperationPredictor()
    expected.recognize(frame(add(2), [1, 2, 3]))
    for other in (b"", b"\x81", random.Random(0).randbytes(100), bytes(10_000)):
        assert expected.recognize(other) is None


def test_predictions_for_a_client_that_never_repeats_itself_are_bounded() -> None:
    expected = OperationPredictor()
    for number in range(LAYOUTS_KEPT + 10):
        expected.recognize(frame(add(1 + number), [1, 2, 3]))
    assert len(expected._layouts) <= LAYOUTS_KEPT
    assert len(expected._successors) <= LAYOUTS_KEPT
