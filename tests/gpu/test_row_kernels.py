"""Sums and softmax of rows on a GPU, alone and fused with the operations around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32, F64, DType
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends import Backend
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.fusion.fuser import StreamOperation
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.kernels import signature

pytestmark = pytest.mark.gpu

# Rows of a part of a warp, of a warp, and of a block, and numbers of rows that leave threads idle.
SHAPES: Any = [(64, 10), (3, 2), (7, 33), (2, 5, 32), (130, 16), (5, 1024), (3, 1025), (2, 5000)]


def drawn(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(array_dtype(dtype))


def softmax(x: Any) -> Any:
    power = np.exp(x - x.max(axis=-1, keepdims=True))
    return power / power.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_summed_and_normalized_as_by_numpy(gpu: Any, shape: Any, dtype: DType) -> None:
    cupy = gpu.array_module
    session = gpu.open_session()
    session.activate()
    array = drawn(shape, dtype) * 3
    x, wide = cupy.asarray(array), array.astype(np.float64)
    spec, axis = TensorSpec(shape, dtype), len(shape) - 1
    tolerance = 1e-6 if dtype is F32 else 1e-14
    for name, expected in (
        ("Softmax", softmax(wide)),
        ("LogSoftmax", np.log(softmax(wide))),
    ):
        found = session.bind(signature(f"Activation.{name}", spec, axis=axis))(x)
        assert found.dtype == array.dtype
        np.testing.assert_allclose(found.get(), expected, rtol=10 * tolerance, atol=tolerance)
    sums = session.bind(signature("Numeric.SumDim", spec, axis=axis, accumulator_len=1))(x)
    scale = np.abs(wide).sum(axis=-1, keepdims=True)
    assert sums.shape == (*shape[:-1], 1)
    assert (np.abs(sums.get() - wide.sum(axis=-1, keepdims=True)) / scale).max() < tolerance


def test_a_row_with_nan_or_infinity_leaves_the_others_alone(gpu: Any) -> None:
    cupy = gpu.array_module
    session = gpu.open_session()
    session.activate()
    array = drawn((6, 40), F32)
    array[1, 3], array[2, 39], array[4] = np.nan, np.inf, -np.inf
    spec = TensorSpec(array.shape, F32)
    for name in ("Softmax", "LogSoftmax"):
        found = session.bind(signature(f"Activation.{name}", spec, axis=1))(cupy.asarray(array))
        found = found.get()
        assert np.isnan(found[[1, 2, 4]]).all()
        assert np.isfinite(found[[0, 3, 5]]).all()
    array[4] = 0
    array[4, 7] = -np.inf
    found = session.bind(signature("Activation.Softmax", spec, axis=1))(cupy.asarray(array)).get()
    assert found[4, 7] == 0
    assert found[4, 8] == pytest.approx(1 / 39)


def test_softmax_has_the_bits_of_its_composition(gpu: Any) -> None:
    cupy = gpu.array_module
    session = gpu.open_session()
    session.activate()
    for shape in SHAPES:
        axis = len(shape) - 1
        x, spec = cupy.asarray(drawn(shape, F32)), TensorSpec(shape, F32)
        narrow = TensorSpec((*shape[:-1], 1), F32)
        largest = session.bind(signature("Numeric.MaxDim", spec, axis=axis, accumulator_len=1))(x)
        shifted = session.bind(signature("Numeric.Sub", spec, narrow))(x, largest)
        power = session.bind(signature("Float.Exp", spec))(shifted)
        sums = session.bind(signature("Numeric.SumDim", spec, axis=axis, accumulator_len=1))(power)
        expected = session.bind(signature("Numeric.Div", spec, narrow))(power, sums)
        found = session.bind(signature("Activation.Softmax", spec, axis=axis))(x)
        np.testing.assert_array_equal(found.get(), expected.get())


Step = tuple[str, tuple[int, ...], dict[str, Any]]


def compared(gpu: Any, arrays: Sequence[Any], steps: Sequence[Step], kept: set[int]) -> str:
    """Compare fused operations with single ones, bit by bit; return the optimization's name.

    Tensors count from 0: the arrays, then the results of the steps.
    """
    cupy = gpu.array_module
    fused = with_fusion(gpu)
    session = gpu.open_session()
    session.activate()
    values = [cupy.asarray(array) for array in arrays]
    specs = [TensorSpec(array.shape, F32) for array in arrays]
    operations = []
    last = {tensor: place for place, (_, inputs, _) in enumerate(steps) for tensor in inputs}
    for place, (name, inputs, parameters) in enumerate(steps):
        signed: Signature = signature(name, *[specs[each] for each in inputs], **parameters)
        run = session.bind(signed)
        values.append(run(*[values[each] for each in inputs]))
        specs.append(signed.outputs[0])
        output = len(values) - 1
        dying = {each for each in {*inputs, output} - kept if last.get(each, place) == place}
        calls = session.bind_elementwise(signed)
        operations.append(
            StreamOperation(signed, run, calls, inputs, (), (output,), frozenset(dying))
        )
    fusers = fused.fusers()  # type: ignore[attr-defined]
    for fuser in fusers:
        for operation in operations:
            fuser.fuse(operation)
    (fuser,) = [each for each in fusers if len(each) == len(operations)]
    assert fuser.properties().ready
    optimization = fuser.finish()
    given = [values[tensor] for tensor in optimization.inputs]
    assert optimization.execute(given) is None, "nothing is compiled yet"
    fused.fusion_runtime.compiler.wait()  # type: ignore[attr-defined]
    results = optimization.execute(given)
    assert {*optimization.outputs} == {each for each in kept if each >= len(arrays)}
    for tensor, result in zip(optimization.outputs, results, strict=True):
        expected = values[tensor]
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(result.get(), expected.get())
    return str(optimization.name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operations_around_softmax_are_fused(gpu: Any, shape: Any) -> None:
    axis = {"axis": len(shape) - 1}
    arrays = [drawn(shape, F32), drawn((*[1] * (len(shape) - 1), shape[-1]), F32, 1)]
    arrays.append(drawn(shape, F32, 2))
    steps: list[Step] = [
        ("Numeric.Add", (0, 1), {}), ("Activation.Softmax", (3,), axis),
        ("Numeric.Sub", (4, 2), {}), ("Numeric.MulScalar", (5,), {"rhs": 1 / 64}),
    ]  # fmt: skip
    assert compared(gpu, arrays, steps, {6}) == "cuda_rows"
    assert compared(gpu, arrays, steps, {3, 4, 6}) == "cuda_rows"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cross_entropy_is_fused(gpu: Any, shape: Any) -> None:
    axis = {"axis": len(shape) - 1}
    steps: list[Step] = [
        ("Activation.LogSoftmax", (0,), axis), ("Numeric.Mul", (2, 1), {}),
        ("Numeric.SumDim", (3,), {**axis, "accumulator_len": 1}), ("Numeric.Neg", (4,), {}),
    ]  # fmt: skip
    arrays = [drawn(shape, F32), drawn(shape, F32, 1)]
    assert compared(gpu, arrays, steps, {5}) == "cuda_rows"
    assert compared(gpu, arrays, steps, {2, 4, 5}) == "cuda_rows"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_normalization_is_fused(gpu: Any, shape: Any) -> None:
    mean = ("Numeric.MeanDim", {"axis": len(shape) - 1, "accumulator_len": 1})
    steps: list[Step] = [
        (mean[0], (0,), mean[1]), ("Numeric.Sub", (0, 3), {}), ("Numeric.Mul", (4, 4), {}),
        (mean[0], (5,), mean[1]), ("Numeric.AddScalar", (6,), {"rhs": 1e-5}),
        ("Float.Sqrt", (7,), {}), ("Numeric.Div", (4, 8), {}), ("Numeric.Mul", (9, 1), {}),
        ("Numeric.Add", (10, 2), {}),
    ]  # fmt: skip
    line = (*[1] * (len(shape) - 1), shape[-1])
    arrays = [drawn(shape, F32), drawn(line, F32, 1), drawn(line, F32, 2)]
    assert compared(gpu, arrays, steps, {11}) == "cuda_rows"
    assert compared(gpu, arrays, steps, {4, 8, 11}) == "cuda_rows"


@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 10), 0), ((4096, 1024), 0), ((64, 4), 0), ((3, 300, 70), 1)]
)
def test_operations_after_sums_of_columns_are_fused(gpu: Any, shape: Any, axis: int) -> None:
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    steps: list[Step] = [
        ("Numeric.SumDim", (0,), {"axis": axis, "accumulator_len": 1}),
        ("Numeric.MulScalar", (2,), {"rhs": 0.1}), ("Numeric.Sub", (1, 3), {}),
    ]  # fmt: skip
    arrays = [drawn(shape, F32), drawn(one, F32, 1)]
    assert compared(gpu, arrays, steps, {4}) == "cuda_columns"
    assert compared(gpu, arrays, steps, {2, 4}) == "cuda_columns"


def test_what_a_kernel_of_rows_cannot_compute_is_not_fused(gpu: Backend) -> None:
    fusers = with_fusion(gpu).fusers()  # type: ignore[attr-defined]
    session = gpu.open_session()
    refused = [
        signature("Activation.Softmax", TensorSpec((64, 10), F32), axis=0),
        signature("Numeric.SumDim", TensorSpec((4, 10), F32), axis=0, accumulator_len=1),
        signature("Numeric.SumDim", TensorSpec((4, 70_000), F32), axis=1, accumulator_len=1),
        signature("Numeric.SumDim", TensorSpec((4, 1), F32), axis=1, accumulator_len=1),
    ]
    for signed in refused:
        alone = StreamOperation(signed, session.bind(signed), (), (0,), (), (1,), frozenset())
        for fuser in fusers:
            fuser.reset()
            fuser.fuse(alone)
            assert len(fuser) == 0, f"{signed.describe()}: {math.prod(signed.outputs[0].shape)}"
