"""Tests of the rules for Fourier transforms, CTC losses and quantized tensors."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, Unsupported
from burn_remote_protocol.operations.families import floats, layers, sampling
from burn_remote_protocol.tensors import TensorSpec
from support.specs import f16, f32, i64, made

PER_TENSOR = QuantScheme("Q8S", "F32", "Native", None, "Symmetric")
PER_BLOCK = QuantScheme("Q8S", "F32", "Native", (16,), "Symmetric")


@pytest.mark.parametrize(("size", "n", "bins"), [(16, None, 9), (7, None, 4), (6, 8, 5), (8, 1, 1)])
def test_a_real_signal_has_half_the_frequencies_and_one(size: int, n: int, bins: int) -> None:
    spectrum = f32(2, bins, 3)

    assert made(sampling.RFFT, f32(2, size, 3), dim=1, n=n) == (spectrum, spectrum)


@pytest.mark.parametrize(("bins", "n", "size"), [(9, None, 16), (5, 8, 8), (4, 7, 7)])
def test_an_inverse_transform_gives_an_even_length_by_default(bins: int, n: int, size: int) -> None:
    spectrum = f32(2, bins)

    assert made(sampling.IRFFT, spectrum, spectrum, dim=1, n=n) == (f32(2, size),)


def test_transforms_of_empty_signals_or_invalid_axes_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="at least 1 sample"):
        made(sampling.RFFT, f32(0), dim=0, n=None)
    with pytest.raises(ShapeMismatch, match="too few frequencies"):
        made(sampling.IRFFT, f32(1), f32(1), dim=0, n=None)
    with pytest.raises(ShapeMismatch, match="too few frequencies"):
        made(sampling.IRFFT, f32(0), f32(0), dim=0, n=4)
    with pytest.raises(ShapeMismatch, match="not an axis"):
        made(sampling.RFFT, f32(4), dim=1, n=None)


def test_both_parts_of_a_spectrum_must_have_one_shape_and_dtype() -> None:
    with pytest.raises(ShapeMismatch, match="input_im"):
        made(sampling.IRFFT, f32(5), f32(4), dim=0, n=None)
    with pytest.raises(DTypeMismatch, match="input_im"):
        made(sampling.IRFFT, f32(5), f16(5), dim=0, n=None)


CTC = (f32(7, 2, 5), i64(2, 3), i64(2), i64(2))


def test_there_is_one_ctc_loss_per_sequence() -> None:
    assert made(layers.CTC_LOSS, *CTC, blank=0) == (f32(2),)
    assert made(layers.CTC_LOSS_BACKWARD, *CTC, f32(2), blank=4) == (CTC[0],)


@pytest.mark.parametrize(
    ("position", "spec"), [(0, f32(7, 2)), (1, i64(3, 3)), (1, i64(3)), (2, i64(3)), (3, i64(2, 1))]
)
def test_targets_and_lengths_must_suit_the_batch(position: int, spec: Any) -> None:
    inputs: list[Any] = list(CTC)
    inputs[position] = spec

    with pytest.raises(ShapeMismatch):
        made(layers.CTC_LOSS, *inputs, blank=0)


def test_the_blank_is_one_of_the_classes() -> None:
    with pytest.raises(ShapeMismatch, match="blank=5 is not one of the 5 classes"):
        made(layers.CTC_LOSS, *CTC, blank=5)


def test_lengths_are_integers() -> None:
    with pytest.raises(DTypeMismatch, match="input_lengths"):
        made(layers.CTC_LOSS, *CTC[:2], f32(2), CTC[3], blank=0)


@pytest.mark.parametrize(("scheme", "scales"), [(PER_TENSOR, f32(1)), (PER_BLOCK, f32(2, 2))])
def test_a_quantized_tensor_keeps_its_shape(scheme: QuantScheme, scales: TensorSpec) -> None:
    quantized = TensorSpec((2, 32), DType.quantized(scheme))

    assert made(floats.QUANTIZE, f32(2, 32), scales, scheme=scheme) == (quantized,)
    assert made(floats.DEQUANTIZE, quantized) == (f32(2, 32),)
    assert made(floats.DEQUANTIZE, quantized, requested=(f16(2, 32),)) == (f16(2, 32),)


def test_there_is_a_scale_for_each_block() -> None:
    with pytest.raises(ShapeMismatch, match=r"float32\[2, 32\] has 4 scales"):
        made(floats.QUANTIZE, f32(2, 32), f32(1), scheme=PER_BLOCK)


def test_blocks_fit_into_their_axes() -> None:
    with pytest.raises(ShapeMismatch, match=r"blocks of 16 do not fit into axis 1"):
        made(floats.QUANTIZE, f32(2, 20), f32(2, 2), scheme=PER_BLOCK)


def test_only_quantized_tensors_are_dequantized() -> None:
    with pytest.raises(DTypeMismatch, match="must be quantized"):
        made(floats.DEQUANTIZE, f32(2))


def test_signals_and_frequencies_are_floats() -> None:
    with pytest.raises(DTypeMismatch, match="signal is int64"):
        made(sampling.RFFT, i64(4), dim=0, n=None)
    with pytest.raises(DTypeMismatch, match="input_re is int64"):
        made(sampling.IRFFT, i64(4), i64(4), dim=0, n=None)
    with pytest.raises(ShapeMismatch, match="not an axis"):
        made(sampling.IRFFT, f32(4), f32(4), dim=1, n=None)


def test_probabilities_are_floats_and_targets_integers() -> None:
    with pytest.raises(DTypeMismatch, match="log_probs is int64"):
        made(layers.CTC_LOSS, i64(7, 2, 5), *CTC[1:], blank=0)
    with pytest.raises(DTypeMismatch, match="targets is float32"):
        made(layers.CTC_LOSS, CTC[0], f32(2, 3), *CTC[2:], blank=0)


def test_the_gradient_of_a_ctc_loss_is_like_the_loss() -> None:
    with pytest.raises(ShapeMismatch, match="blank=5"):
        made(layers.CTC_LOSS_BACKWARD, *CTC, f32(2), blank=5)
    with pytest.raises(DTypeMismatch, match="grad_loss is float16"):
        made(layers.CTC_LOSS_BACKWARD, *CTC, f16(2), blank=0)
    with pytest.raises(ShapeMismatch, match="grad_loss is"):
        made(layers.CTC_LOSS_BACKWARD, *CTC, f32(3), blank=0)


def test_elements_and_scales_of_a_quantization_are_floats_of_one_level() -> None:
    with pytest.raises(DTypeMismatch, match="tensor is int64"):
        made(floats.QUANTIZE, i64(2, 32), f32(1), scheme=PER_TENSOR)
    with pytest.raises(DTypeMismatch, match="scales is int64"):
        made(floats.QUANTIZE, f32(2, 32), i64(1), scheme=PER_TENSOR)
    with pytest.raises(Unsupported, match="scales of two levels"):
        made(floats.QUANTIZE, f32(2, 32), (f32(1), f32(1)), scheme=PER_TENSOR)


def test_quantized_tensors_become_floats() -> None:
    quantized = TensorSpec((2, 32), DType.quantized(PER_TENSOR))
    with pytest.raises(DTypeMismatch, match="the output is int64"):
        made(floats.DEQUANTIZE, quantized, requested=(i64(2, 32),))
