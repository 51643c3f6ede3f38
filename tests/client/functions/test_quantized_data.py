"""Quantized tensors are sent and read with the integers and scales that were given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.quantized_storage import VALUE_RANGES

KINDS = [(value, packed) for value in VALUE_RANGES for packed in (None, False)]


@pytest.mark.parametrize(("value", "packed"), KINDS)
@pytest.mark.parametrize("shape", [(8,), (3, 16), (2, 3, 4)])
def test_integers_and_scales_survive_a_round_trip(
    device: br.Device, value: str, packed: bool | None, shape: tuple[int, ...]
) -> None:
    least, most = VALUE_RANGES[value]
    integers = np.random.default_rng(0).integers(least, most, shape, np.int8, endpoint=True)
    scheme = br.quant_scheme(value, packed=packed)
    read = br.read_quantized(br.quantized_tensor(integers, 0.5, scheme, device=device))
    np.testing.assert_array_equal(read.values, integers)
    np.testing.assert_array_equal(read.scales, np.array([0.5], np.float32))
    np.testing.assert_array_equal(read.dequantized(), integers * np.float32(0.5))


def test_each_block_has_its_own_scale(device: br.Device) -> None:
    integers = np.arange(16, dtype=np.int8).reshape(2, 8)
    scales = np.array([[1, 2], [4, 8]], np.float32)
    x = br.quantized_tensor(integers, scales, br.quant_scheme(block=4), device=device)
    read = br.read_quantized(x)
    expected = integers * np.repeat(scales, 4, axis=1)
    np.testing.assert_array_equal(read.dequantized(), expected)
    np.testing.assert_array_equal(x.dequantize().numpy(), expected)


@pytest.mark.parametrize(
    ("values", "scales", "error", "text"),
    [
        ([128], 1.0, br.UsageError, "integers from -127 to 127"),
        ([1.0], 1.0, br.UsageError, "integers from -127 to 127"),
        ([1, 2], [1.0, 2.0], br.ShapeMismatch, "scales must hold 1 numbers, not 2"),
    ],
)
def test_invalid_integers_and_scales_are_refused(
    device: br.Device, values: Any, scales: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        br.quantized_tensor(np.array(values), scales, br.quant_scheme(), device=device)


def test_only_quantized_tensors_are_read_as_integers_and_scales(device: br.Device) -> None:
    with pytest.raises(br.DTypeMismatch, match=r"not quantized; read it with x\.numpy\(\)"):
        br.read_quantized(br.ones(2, device=device))
