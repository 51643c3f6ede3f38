"""Inference of signatures, and their bounded cache."""

from __future__ import annotations

import math

import numpy as np
import pytest

import burn_remote as br
from burn_remote.dispatch.signatures import SIGNATURES_PER_ROW, Signatures, infer
from burn_remote_protocol.operations.families import base, convolution_rows, numeric
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorStatus
from support.runners import RecordingDevice
from support.specs import f32, flags, i64


def test_equal_calls_share_one_signature(device: RecordingDevice) -> None:
    x = br.zeros((2, 3), device=device)
    y = br.ones((2, 3), device=device)
    x + y
    y + x
    first, second = device.runner.operations[-2:]
    assert first.signature is second.signature


def test_a_spec_that_takes_the_place_of_a_freed_one_has_its_own_signature(
    device: RecordingDevice,
) -> None:
    # A freed spec's id is soon that of another.
    for size in range(1, 2 * SIGNATURES_PER_ROW, 7):
        x = br.zeros((size,), device=device)
        assert (x + x).shape == (size,)
        assert br.exp(x).shape == (size,)
        del x


def test_signatures_found_by_identity_are_bounded_and_keep_their_specs() -> None:
    signatures = Signatures(numeric.ADD)
    signed = infer(numeric.ADD, (f32(2), f32(2)))
    for _ in range(SIGNATURES_PER_ROW + 1):
        spec = f32(2)
        assert signatures.remember(id(spec), signed, (spec,)) is signed
        del spec
    assert len(signatures.recent) <= SIGNATURES_PER_ROW
    assert all(key == id(specs[0]) for key, (_, specs) in signatures.recent.items())


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (1.0, 2.0), (math.inf, -math.inf)])
def test_numbers_with_different_bits_have_different_signatures(
    device: RecordingDevice, one: float, other: float
) -> None:
    x = br.zeros((2,), device=device)
    x * one
    x * other
    first, second = (operation.signature.call for operation in device.runner.operations[-2:])
    assert math.copysign(1, first.parameters["rhs"]) * first.parameters["rhs"] == abs(one)
    assert str(second.parameters["rhs"]) == str(other)


def test_nan_hits_the_cache(device: RecordingDevice) -> None:
    x = br.zeros((2,), device=device)
    x * math.nan
    x * math.nan
    first, second = device.runner.operations[-2:]
    assert first.signature is second.signature


def test_the_oldest_signature_is_evicted() -> None:
    signatures = Signatures(numeric.ADD_SCALAR)
    spec = f32(2)
    for number in range(SIGNATURES_PER_ROW + 1):
        signatures.add((spec, number), (spec,), (Scalar.of(float(number)),))
    assert len(signatures.known) == SIGNATURES_PER_ROW
    assert (spec, 0) not in signatures.known
    assert (spec, SIGNATURES_PER_ROW) in signatures.known


def test_inputs_are_read_only_and_outputs_uninitialized() -> None:
    signature = infer(base.SELECT, (f32(4, 5), i64(3)), (1,))
    assert signature.kind == "BaseFloat"
    assert signature.outputs == (f32(4, 3),)
    assert [use.status for use in signature.input_uses] == [TensorStatus.READ_ONLY] * 2
    assert signature.arguments[-1].status is TensorStatus.NOT_INIT


def test_a_list_of_tensors_is_one_input() -> None:
    signature = infer(base.CAT, ((f32(1, 2), f32(3, 2)),), (0,))
    assert signature.outputs == (f32(4, 2),)
    assert len(signature.input_uses) == 2


def test_an_optional_output_is_present_if_its_input_is() -> None:
    row = convolution_rows.DEFORMABLE_CONV2D_BACKWARD
    x, offset, weight, bias, grad = (
        f32(1, 3, 5, 5), f32(1, 18, 3, 3), f32(4, 3, 3, 3), f32(4), f32(1, 4, 3, 3),
    )  # fmt: skip
    options = ((1, 1), (0, 0), (1, 1), 1, 1)
    signature = infer(row, (x, offset, weight, None, bias, grad), (options,))
    assert signature.outputs == (x, offset, weight, bias)
    assert signature.arguments[-2] is None


def test_an_error_names_the_operation_and_its_tensors() -> None:
    with pytest.raises(br.ShapeMismatch, match=r"Numeric\.Add\(float32\[2\], float32\[3\]\)"):
        infer(numeric.ADD, (f32(2), f32(3)))
    with pytest.raises(br.DTypeMismatch, match=r"Base\.MaskFill\(float32\[2\].*astype"):
        infer(base.MASK_FILL, (f32(2), f32(2)), (Scalar.of(0.0),))
    with pytest.raises(br.ShapeMismatch, match=r"Base\.Cat\(float32\[2\], float32\[3, 1\]\)"):
        infer(base.CAT, ((f32(2), f32(3, 1)),), (0,))


def test_a_result_beyond_the_limits_is_a_shape_mismatch() -> None:
    with pytest.raises(br.ShapeMismatch, match="elements of a tensor"):
        infer(base.REPEAT_DIM, (f32(2),), (0, 2**60))


def test_a_mask_has_the_dtype_family_of_its_tensor() -> None:
    assert infer(base.MASK_FILL, (flags(2), flags(2)), (Scalar.of(True),)).kind == "BaseBool"


def test_threads_may_infer_signatures_concurrently() -> None:
    import threading

    signatures = Signatures(numeric.ADD_SCALAR)
    spec = f32(2)

    def ask(offset: int) -> None:
        for number in np.arange(1500) + offset:
            signatures.add((spec, int(number)), (spec,), (Scalar.of(float(number)),))

    threads = [threading.Thread(target=ask, args=(1500 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(signatures.known) <= SIGNATURES_PER_ROW + len(threads)
