"""Fused kernels on a GPU give the bits of CuPy's single kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BOOL, F32, F64, I64, DType
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends import Backend
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.fusion.fuser import StreamOperation
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.kernels import signature
from support.random_programs import difference, drawn_program, run_eagerly, run_graph, run_stream

pytestmark = pytest.mark.gpu

UNARY = """
    Exp Log Log1p Erf Sqrt Recip Cos Cosh Sin Sinh Tan Tanh ArcCos ArcCosh ArcSin ArcSinh ArcTan
    ArcTanh Round Floor Ceil Trunc IsNan IsInf
"""
BINARY = "Add Sub Mul Div Greater GreaterEqual Lower LowerEqual"
WITH_NUMBER = "AddScalar SubScalar MulScalar DivScalar GreaterElem LowerEqualElem"
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 1e-40, 1e30, -1e30, math.inf, -math.inf, math.nan]


def operations(dtype: DType) -> list[tuple[str, list[DType], dict[str, Any]]]:
    """Return calls of the operations that kernels compute: name, dtypes, parameters."""
    found: list[tuple[str, list[DType], dict[str, Any]]] = []
    found += [(f"Float.{name}", [dtype], {}) for name in UNARY.split()]
    found += [(name, [dtype], {}) for name in ("Numeric.Abs", "Numeric.Neg")]
    found += [(f"Activation.{name}", [dtype], {}) for name in ("Relu", "Gelu")]
    found += [(f"Activation.{name}Backward", [dtype, dtype], {}) for name in ("Relu", "Gelu")]
    found += [(f"Numeric.{name}", [dtype, dtype], {}) for name in BINARY.split()]
    found += [
        (f"Numeric.{name}", [dtype], {"rhs": number})
        for name in [
            "AddScalar",
            "SubScalar",
            "MulScalar",
            "DivScalar",
            "GreaterElem",
            "LowerEqualElem",
        ]
        for number in (0.1, -3.0, 0.0, math.inf, math.nan)
    ]
    found += [("Numeric.Clamp", [dtype], {"min": low, "max": high}) for low, high in LIMITS]
    found += [("Float.PowfScalar", [dtype], {"rhs": n}) for n in (2.0, 3.0, -1.0, 0.5, 1.0, -2.5)]
    found += [("Float.Powf", [dtype, dtype], {}), ("Float.ArcTan2", [dtype, dtype], {})]
    found += [("Base.Equal", [dtype, dtype], {}), ("Base.EqualElem", [dtype], {"rhs": 0.5})]
    found += [("Base.MaskWhere", [dtype, BOOL, dtype], {})]
    found += [("Base.MaskFill", [dtype, BOOL], {"value": n}) for n in (0.0, 0.1, -math.inf)]
    found += [
        ("Bool.And", [BOOL, BOOL], {}),
        ("Bool.Or", [BOOL, BOOL], {}),
        ("Bool.Not", [BOOL], {}),
    ]
    return found


LIMITS = [(-1.0, 1.0), (0.0, math.inf), (-math.inf, 0.5), (-math.inf, math.inf), (math.nan, 1.0)]


def operand(dtype: DType, seed: int) -> Any:
    """Return 4,096 elements: special values in all pairs, and random ones."""
    draw = np.random.default_rng(seed)
    if dtype is BOOL:
        return draw.integers(0, 2, 4096).astype(bool)
    if dtype is I64:
        return draw.integers(-(2**60), 2**60, 4096)
    array = draw.normal(size=4096) * np.exp(draw.uniform(-8, 8, 4096))
    pairs = [(one, other) for one in SPECIAL for other in SPECIAL]
    array[: len(pairs)] = [pair[seed % 2] for pair in pairs]
    with np.errstate(all="ignore"):
        return array.astype(array_dtype(dtype))


def fused_result(gpu: Any, signed: Signature, arrays: list[Any]) -> Any:
    """Return the result of an operation that runs as a kernel of its own."""
    fused = with_fusion(gpu)
    fuser, *_ = fused.fusers()  # type: ignore[attr-defined]
    session = gpu.open_session()
    places = tuple(range(len(arrays)))
    calls = session.bind_elementwise(signed)
    alone = StreamOperation(
        signed, session.bind(signed), calls, places, (), (len(arrays),), frozenset()
    )
    fuser.fuse(alone)
    assert len(fuser) == 1, f"{signed.row} is not fused"
    optimization = fuser.finish()
    assert optimization.execute(arrays) is None, "nothing is compiled yet"
    fused.fusion_runtime.compiler.wait()  # type: ignore[attr-defined]
    (result,) = optimization.execute(arrays)
    return result.get()


def same(one: Any, other: Any) -> None:
    """Assert that arrays are equal bit by bit, but for the sign and payload of NaN."""
    assert one.dtype == other.dtype
    if one.dtype.kind == "f":
        assert (np.isnan(one) == np.isnan(other)).all()
        one, other = (np.where(np.isnan(each), 0, each) for each in (one, other))
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_each_operation_has_the_bits_of_cupys_function(gpu: Any, dtype: DType) -> None:
    cupy = gpu.array_module
    session = gpu.open_session()
    session.activate()
    for name, dtypes, parameters in operations(dtype):
        specs = [TensorSpec((4096,), each) for each in dtypes]
        signed = signature(name, *specs, **parameters)
        arrays = [cupy.asarray(operand(each, place)) for place, each in enumerate(dtypes)]
        expected = ArraySession.bind(session, signed)(*arrays).get()
        try:
            same(fused_result(gpu, signed, arrays), expected)
            same(session.bind(signed)(*arrays).get(), expected)
        except AssertionError as error:
            raise AssertionError(f"{name} {parameters}: {error}") from error


@pytest.mark.parametrize(
    ("shape", "other"),
    [((7, 5), (5,)), ((7, 5), (7, 1)), ((3, 4, 5), (4, 1)), ((3, 4, 5), (3, 1, 5)), ((9,), (1,))],
)
def test_operands_are_broadcast(gpu: Any, shape: Any, other: Any) -> None:
    cupy = gpu.array_module
    signed = signature("Numeric.Sub", TensorSpec(shape, F32), TensorSpec(other, F32))
    session = gpu.open_session()
    session.activate()
    arrays = [
        cupy.arange(math.prod(each), dtype=np.float32).reshape(each) for each in (shape, other)
    ]
    expected = (arrays[0] - arrays[1]).get()
    same(fused_result(gpu, signed, arrays), expected)
    same(session.bind(signed)(*arrays).get(), expected)


def test_operands_in_another_order_give_the_same_elements(gpu: Any) -> None:
    cupy = gpu.array_module
    spec = TensorSpec((6, 4), F32)
    session = gpu.open_session()
    session.activate()
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    turned, straight = cupy.asarray(array).T, cupy.asarray(array.T.copy())
    for name, arrays in (
        ("Float.Exp", [turned]),
        ("Numeric.Sub", [turned, straight]),
        ("Numeric.Mul", [straight, turned]),
        ("Base.MaskWhere", [straight, turned > 3, turned]),
    ):
        specs = [TensorSpec((6, 4), BOOL) if each.dtype == bool else spec for each in arrays]
        signed = signature(name, *specs)
        expected = ArraySession.bind(session, signed)(*arrays)
        same(session.bind(signed)(*arrays).get(), expected.get())


def test_random_programs_are_fused(gpu: Backend) -> None:
    fused = 0
    for seed in range(40):
        fused += compared(gpu, seed)
    assert fused > 40


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_fused_programs_give_the_bits_and_failures_of_single_operations(
    gpu: Backend, seed: int
) -> None:
    compared(gpu, seed)


def compared(gpu: Any, seed: int) -> int:
    """Run a random program in all ways; return how many operations were fused."""
    program = drawn_program(seed)
    expected = run_eagerly(program, gpu)
    fusing = with_fusion(gpu)
    compiler = fusing.fusion_runtime.compiler  # type: ignore[attr-defined]
    run_graph(program, fused=True, backend=fusing)
    run_stream(program, fused=True, backend=fusing)
    compiler.wait()
    found, plan = run_graph(program, fused=True, backend=fusing)
    streamed, session = run_stream(program, fused=True, backend=fusing)
    for name, outcomes in (("graph", found), ("batch", streamed)):
        problem = difference(outcomes, expected)
        assert problem is None, f"seed {seed}, {name}: {problem}"
    return plan.fused_count + session.interpreter.counts.operations_fused
