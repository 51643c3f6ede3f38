"""Upload, reads, computation and moves of quantized tensors, in both dialects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.dtypes import DType
from support.servers import RunningServer

VALUES = ["Q8S", "Q8F", "Q4S", "Q4F", "Q2S", "Q2F"]
BLOCKS = [None, 16, (2, 32)]

X = np.random.default_rng(7).standard_normal((6, 64)).astype(np.float32)


def scheme_of(value: str, block: int | tuple[int, int] | None) -> br.QuantScheme:
    return br.quant_scheme(value, block=block)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("value", VALUES)
def test_quantization_errors_are_at_most_half_a_scale(
    device: br.Device, value: str, block: int | tuple[int, int] | None
) -> None:
    quantized = br.quantize(device.tensor(X), scheme_of(value, block))
    integers, scales = read = br.read_quantized(quantized)
    assert integers.shape == X.shape
    np.testing.assert_array_equal(read.dequantized(), quantized.dequantize().numpy())
    per_number = (
        np.broadcast_to(scales, (1,))
        if block is None
        else np.repeat(
            np.repeat(scales, X.shape[0] // scales.shape[0], 0), X.shape[1] // scales.shape[1], 1
        )
    )
    # In an asymmetric range, only the negative side reaches the largest magnitude.
    slack = 1 if value in ("Q4F", "Q2F", "Q8F") else 0.5
    assert np.all(np.abs(read.dequantized() - X) <= slack * per_number * (1 + 1e-6))


@pytest.mark.parametrize("value", VALUES)
def test_integers_and_scales_survive_a_round_trip(device: br.Device, value: str) -> None:
    scheme = br.quant_scheme(value, block=3)
    least, most = {"8": (-127, 127), "4": (-7, 7), "2": (-1, 1)}[value[1]]
    values = np.random.default_rng(1).integers(least, most, (5, 9), endpoint=True)
    scales = np.arange(1, 16, dtype=np.float32).reshape(5, 3)
    tensor = br.quantized_tensor(values, scales, scheme, device=device)
    assert tensor.dtype is DType.quantized(scheme)
    back = br.read_quantized(tensor)
    np.testing.assert_array_equal(back.values, values)
    np.testing.assert_array_equal(back.scales, scales)


def test_a_quantized_tensor_larger_than_a_chunk_survives_a_round_trip(device: br.Device) -> None:
    values = np.random.default_rng(2).integers(-127, 128, (1500, 1000))
    tensor = br.quantized_tensor(values, 0.5, br.quant_scheme(), device=device)
    np.testing.assert_array_equal(br.read_quantized(tensor).values, values)


def test_matrix_products_accept_quantized_tensors(device: br.Device) -> None:
    weights = br.quantize(device.tensor(X))
    numbers = weights.dequantize().numpy()
    moved = device.tensor(X) @ weights.permute_dims((1, 0))
    np.testing.assert_allclose(moved.numpy(), X @ numbers.T, rtol=1e-4, atol=1e-4)
    product = weights @ device.tensor(X.T)
    assert product.dtype is br.float32
    np.testing.assert_allclose(product.numpy(), numbers @ X.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_a_quantized_tensor_moves_between_servers(
    first_server: RunningServer, second_server: RunningServer, dialect: str
) -> None:
    with (
        br.RemoteDevice(first_server.address, dialect=dialect) as a,
        br.RemoteDevice(second_server.address, dialect=dialect) as b,
    ):
        quantized = br.quantize(a.tensor(X), br.quant_scheme("Q4S", block=16))
        moved = quantized.to(b)
        here, there = br.read_quantized(quantized), br.read_quantized(moved)
        np.testing.assert_array_equal(there.values, here.values)
        np.testing.assert_array_equal(there.scales, here.scales)


def test_invalid_arguments_are_refused_in_the_callers_line(native_device: br.Device) -> None:
    x = native_device.tensor(X)
    with pytest.raises(br.ShapeMismatch, match="blocks of 48 do not fit into axis 1"):
        br.quantize(x, br.quant_scheme(block=48))
    with pytest.raises(br.ShapeMismatch, match="has 1 scales"):
        br.quantize(x, br.quant_scheme(), scales=native_device.tensor([1.0, 2.0]))
    with pytest.raises(br.UsageError, match=r"value must be one of .*, not 'Q3S'"):
        br.quant_scheme("Q3S")
    with pytest.raises(br.UsageError, match="block=300"):
        br.quant_scheme(block=300)
    with pytest.raises(br.UsageError, match="integers from -7 to 7"):
        br.quantized_tensor([8], 1.0, br.quant_scheme("Q4S"), device=native_device)
    with pytest.raises(br.DTypeMismatch, match="is not quantized"):
        br.read_quantized(x)
    with pytest.raises(br.DTypeMismatch, match="only floating-point"):
        br.quantize(x.astype(br.int32))


def test_scales_equal_burn_flexs_bit_for_bit(native_device: br.Device) -> None:
    # ops/qtensor.rs, quantize_dynamic: 2 * largest absolute value / (most - least).
    rows = np.random.default_rng(4).standard_normal((200, 16)).astype(np.float32)
    for value, span in {"Q8S": 254, "Q8F": 255, "Q4S": 14, "Q4F": 15, "Q2S": 2, "Q2F": 3}.items():
        scales = br.read_quantized(native_device.tensor(rows).quantize(scheme_of(value, 16))).scales
        for row, scale in zip(rows, scales[:, 0], strict=True):
            largest = max(map(abs, row))
            assert scale == np.float32(2) * largest / np.float32(span)


def test_nan_does_not_affect_other_numbers(device: br.Device) -> None:
    x = np.array([np.nan, 1, -2], np.float32)
    read = br.read_quantized(device.tensor(x).quantize())
    assert read.values.tolist() == [0, 64, -127]
    assert read.scales == np.float32(2) / np.float32(127)


def test_infinity_makes_other_numbers_saturate_as_in_burn(native_device: br.Device) -> None:
    # The scale would be infinite, so Burn uses the smallest one.
    read = br.read_quantized(native_device.tensor([np.inf, 1.0, -2.0, 0.0]).quantize())
    assert read.values.tolist() == [127, 127, -127, 0]
    assert read.scales == np.finfo(np.float32).smallest_normal


def test_zeros_remain_zeros(device: br.Device) -> None:
    for scheme in (scheme_of("Q8S", None), scheme_of("Q4F", 2)):
        quantized = br.zeros((3, 4), device=device).quantize(scheme)
        assert quantized.dequantize().tolist() == np.zeros((3, 4)).tolist()


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), ()])
def test_empty_tensors_and_single_numbers_are_quantized(
    native_device: br.Device, shape: tuple[int, ...], block: int | None
) -> None:
    x = np.full(shape, 3, np.float32)
    read = br.read_quantized(native_device.tensor(x).quantize(scheme_of("Q4S", block)))
    assert read.values.shape == read.dequantized().shape == shape
    np.testing.assert_allclose(read.dequantized(), x, rtol=1e-6)


@pytest.mark.parametrize("make", [br.zeros_like, br.ones_like, br.empty_like])
def test_creation_functions_accept_quantized_dtypes(device: br.Device, make: Any) -> None:
    like = device.tensor(X).quantize(br.quant_scheme("Q4S", block=16))
    made = make(like)
    assert (made.shape, made.dtype) == (like.shape, like.dtype)
    if make is not br.empty_like:
        number = 1 if make is br.ones_like else 0
        np.testing.assert_allclose(made.dequantize().numpy(), np.full(X.shape, number), rtol=1e-6)


def test_a_reshape_that_breaks_blocks_is_refused_in_the_callers_line(
    native_device: br.Device,
) -> None:
    quantized = native_device.tensor(X).quantize(br.quant_scheme(block=16))
    calls: list[Callable[[], object]] = [
        lambda: quantized.T,
        lambda: quantized.reshape(64, 6),
        lambda: quantized[:, 3:9],
        lambda: br.concat([quantized, quantized[:, :16], quantized[:, :16]], axis=1)[:, :20],
    ]
    for call in calls:
        with pytest.raises(br.ShapeMismatch, match=r"blocks of 16 do not fit .* dequantize first"):
            call()
    np.testing.assert_array_equal(
        quantized.dequantize().T.numpy().T, quantized.dequantize().numpy()
    )


@pytest.mark.parametrize(
    "scheme",
    [
        br.QuantScheme("E4M3", "F32", "Native", None, "Symmetric"),
        br.QuantScheme("Q4S", "F32", ("PackedU32", 1), None, "Symmetric"),
        br.QuantScheme("Q8S", "F32", ("PackedNative", 0), None, "Symmetric"),
    ],
    ids=lambda scheme: f"{scheme.value}-{scheme.store}",
)
def test_schemes_that_no_burn_backend_supports_are_refused_in_the_callers_line(
    native_device: br.Device, scheme: br.QuantScheme
) -> None:
    x = native_device.tensor(X)
    calls: list[Callable[[], object]] = [
        lambda: x.quantize(scheme),
        lambda: br.quantized_tensor(np.zeros((2, 2), int), 1.0, scheme, device=native_device),
    ]
    for call in calls:
        with pytest.raises(br.Unsupported, match=f"{scheme.value} values stored as"):
            call()


def test_reading_a_quantized_tensor_as_an_array_is_refused(
    native_device: br.Device,
) -> None:
    with pytest.raises(br.DTypeMismatch, match=r"dequantize\(\).numpy\(\).*read_quantized"):
        native_device.tensor(X).quantize().numpy()


def test_arithmetic_on_quantized_tensors_is_refused_with_advice(native_device: br.Device) -> None:
    x = native_device.tensor(X)
    quantized = x.quantize()
    calls: list[Callable[[], object]] = [
        lambda: quantized + 1,
        lambda: quantized + quantized,
        lambda: x * quantized,
        lambda: quantized.sum(),
        lambda: quantized > 0,
        lambda: quantized.astype(br.int32),
        lambda: br.functional.linear(x, quantized),
    ]
    for call in calls:
        with pytest.raises(br.DTypeMismatch, match=r"x\.dequantize\(\)"):
            call()
