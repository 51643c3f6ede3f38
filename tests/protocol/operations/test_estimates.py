"""Estimates of cost and scratch memory, against numbers that were counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import F32, DType, QuantScheme
from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.estimates.shared_costs import CONVERSION_COST, QUANTIZED_COST
from burn_remote_protocol.operations.row import Call, Estimates
from burn_remote_protocol.tensors import TensorSpec
from support.recorded import recorded_operations, recordings
from support.specs import f16, f32, i64

QUANTIZED = DType.quantized(QuantScheme("Q8S", "F32", "Native", None, "Symmetric"))
BLOCKS = DType.quantized(QuantScheme("Q8S", "F32", "Native", (4,), "Symmetric"))


def call(*inputs: Any, out: TensorSpec, **parameters: Any) -> Call:
    return Call(inputs, parameters, (out,))


@pytest.mark.parametrize(
    ("estimate", "of", "cost", "workspace"),
    [
        (estimates.VIEW, call(f32(1000), out=f32(1000)), 0, 0),
        (estimates.UNKNOWN, call(f16(1000), out=f16(1000)), 1_000_000, 0),
        # 3 for each of 6 outputs, 1 for each of 2 + 3 inputs that are broadcast
        (estimates.elementwise(3), call(f32(2, 1), f32(3), out=f32(2, 3)), 3 * 6 + 5, 0),
        (estimates.elementwise(3, 8), call(f32(6), out=f32(6)), 3 * 6 + 6, 48),
        (estimates.elementwise(3, 8, integers=2), call(i64(6), out=i64(6)), 3 * 6 + 6, 12),
        (estimates.elementwise(0, call_cost=500), call(f32(6), out=f32(6)), 506, 0),
        # the larger side counts, whichever it is
        (estimates.per_element(2, 4), call(f32(100), out=f32(1)), 2 * 101, 400),
        # 3 lines along the last axis of 3 x 5
        (estimates.along_rows(1, 50, 7), call(f32(3, 5), out=f32(3, 1), axis=1), 18 + 150, 21),
        (estimates.along_rows(1, 50, 7), call(f32(0, 5), out=f32(0, 1), axis=1), 50, 7),
        (estimates.positions(1, 50, 7), call(f32(3, 5), out=f32(3, 5), dim=1), 30 + 150, 21),
        # the axis is moved to the end by a copy of 60 bytes
        (estimates.positions(1, 50, 7), call(f32(3, 5), out=f32(3, 5), dim=0), 30 + 250, 35 + 60),
        # 15 elements, lengths of 5 (3 bits), 3 lines
        (estimates.ranked(2, 9), call(f32(3, 5), out=f32(3, 5), dim=1), 2 * 15 * 3 + 900, 135),
        (estimates.CAT, call((f32(2), f32(3)), out=f32(5), dim=0), 2 * 10 + 2000, 0),
        # two operations for each of 40 x 60 outputs and 50 steps
        (estimates.MATMUL, call(f32(40, 50), f32(50, 60), out=f32(40, 60)), 2 * 2400 * 50, 0),
        # integers as float64: both inputs, and the output twice
        (
            estimates.MATMUL,
            call(i64(40, 50), i64(50, 60), out=i64(40, 60)),
            240_000,
            8 * (5000 + 4800),
        ),
        # 100 products of one by one
        (estimates.MATMUL, call(f32(100, 1, 1), f32(100, 1, 1), out=f32(100, 1, 1)), 50_100, 0),
    ],
)
def test_an_estimate_matches_the_count_by_hand(
    estimate: Estimates, of: Call, cost: int, workspace: int
) -> None:
    assert estimated(estimate, of) == (cost, workspace)


def test_floats_of_16_bits_are_converted_to_32_and_back() -> None:
    converting = estimates.per_element(1)
    cost, workspace = estimated(converting, call(f16(10), out=f16(10)))
    assert cost == 20 + CONVERSION_COST * 20
    assert workspace == 4 * 20


def test_an_operation_that_only_moves_elements_converts_none() -> None:
    _, workspace = estimated(estimates.per_element(1, converts=False), call(f16(10), out=f16(10)))
    assert workspace == 0


@pytest.mark.parametrize(("dtype", "each"), [(QUANTIZED, 1), (BLOCKS, 4)])
def test_quantized_tensors_of_one_scale_are_moved_as_they_are(dtype: DType, each: int) -> None:
    spec = TensorSpec((8,), dtype)
    moving = estimates.per_element(1, converts=False)
    cost, workspace = estimated(moving, call(spec, out=spec))
    assert cost == 16 + QUANTIZED_COST * 16
    assert workspace == each * 16


def test_computing_with_quantized_tensors_takes_their_elements_as_float32() -> None:
    spec = TensorSpec((8,), QUANTIZED)
    _, workspace = estimated(estimates.per_element(1), call(spec, out=f32(8)))
    assert workspace == 4 * 8


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_convolution_costs_a_multiple_of_its_multiplications(kernel: int) -> None:
    def cost(channels: int) -> int:
        x, weight, out = f32(1, channels, 8, 8), f32(4, channels, kernel, kernel), f32(1, 4, 8, 8)
        padding = kernel // 2
        parameters = {
            "stride": (1, 1), "padding": (padding, padding), "dilation": (1, 1), "groups": 1,
        }  # fmt: skip
        return estimated(estimates.CONVOLUTION, Call((x, weight, None), parameters, (out,)))[0]

    products = 4 * 8 * 8 * kernel * kernel
    # Beyond what a call costs, twice the channels take twice the time.
    assert cost(64) - cost(32) >= 32 * products
    assert cost(64) - cost(32) == 2 * (cost(32) - cost(16))


@pytest.mark.parametrize("recording", recordings())
def test_each_operation_of_burns_clients_has_an_estimate(recording: str) -> None:
    for name, wire in recorded_operations(recording):
        signature = decode_operation(wire).signature
        cost, workspace = estimated(signature.row.estimates, signature.call)
        assert type(cost) is int, name
        assert type(workspace) is int, name
        assert cost >= 0
        assert workspace >= 0


def test_a_spec_without_elements_costs_no_more_than_the_call() -> None:
    assert estimated(estimates.elementwise(3), call(TensorSpec((0, 9), F32), out=f32(0, 9))) == (
        0,
        0,
    )
