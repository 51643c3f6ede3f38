"""Compiled kernels give the bits of NumPy, for each function and dtype."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from burn_remote_protocol.messages import Define, DefineGraph
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.interface import ElementwiseCall
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.cpu.block_optimization import is_exact
from burn_remote_server.fusion.cpu.elementwise_fuser import ElementwiseOptimization
from burn_remote_server.fusion.fuser import StreamOperation
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession
from support.kernels import Array, signature
from support.random_programs import forced_fusion, same_bits

pytest.importorskip("llvmlite", reason="the extra fusion is not installed")

from burn_remote_server.fusion.cpu.kernel_compiler import opened_compiler

FLOATS = (F32, F64)
SIGNED = (I8, I16, I32, I64)
INTEGERS = (*SIGNED, U8, U16, U32, U64)

UNARY = {
    "Float.Sqrt": FLOATS,
    "Float.Recip": FLOATS,
    "Float.Round": FLOATS,
    "Float.Floor": FLOATS,
    "Float.Ceil": FLOATS,
    "Float.Trunc": FLOATS,
    "Float.IsNan": FLOATS,
    "Float.IsInf": FLOATS,
    "Numeric.Abs": FLOATS + INTEGERS,
    "Int.BitwiseNot": INTEGERS,
    "Bool.Not": (BOOL,),
}
BINARY = {
    "Numeric.Add": FLOATS + INTEGERS,
    "Numeric.Sub": FLOATS + INTEGERS,
    "Numeric.Mul": FLOATS + INTEGERS,
    "Numeric.Div": FLOATS,
    "Numeric.Greater": FLOATS + INTEGERS,
    "Numeric.GreaterEqual": FLOATS + INTEGERS,
    "Numeric.Lower": FLOATS + INTEGERS,
    "Numeric.LowerEqual": FLOATS + INTEGERS,
    "Base.Equal": (*FLOATS, *INTEGERS, BOOL),
    "Int.BitwiseAnd": INTEGERS,
    "Int.BitwiseOr": INTEGERS,
    "Int.BitwiseXor": INTEGERS,
    "Bool.And": (BOOL,),
    "Bool.Or": (BOOL,),
}


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    with compiled_at_once(), np.errstate(all="ignore"):
        yield


def operation(name: str, *specs: TensorSpec, **parameters: Any) -> StreamOperation:
    """Return an operation on the tensors 0, 1 …; its result is the tensor 9."""
    signed = signature(name, *specs, **parameters)
    session = NumpyBackend().open_session()
    calls = session.bind_elementwise(signed)
    inputs = tuple(range(len(specs)))
    return StreamOperation(signed, session.bind(signed), calls, inputs, (), (9,), frozenset())


def assert_same_bits(name: str, *arrays: Array, dtypes: Any = None, **parameters: Any) -> None:
    """Compare a kernel of one operation with the operation."""
    dtypes = dtypes or [next(d for d in DTYPES if array_dtype(d) == a.dtype) for a in arrays]
    specs = [TensorSpec(a.shape, dtype) for a, dtype in zip(arrays, dtypes, strict=True)]
    single = operation(name, *specs, **parameters)
    assert is_exact(single)
    compiler = opened_compiler()
    assert compiler is not None
    optimization = ElementwiseOptimization(single.signature.outputs[0].shape, [single], compiler)
    compiled = compiler.counts.compiled
    seen = optimization.execute(arrays)
    assert seen is not None
    assert compiler.counts.compiled >= compiled
    assert optimization.runs_compiled
    assert same_bits(seen[0], single.run(*arrays)), name


DTYPES: tuple[DType, ...] = (*FLOATS, *INTEGERS, BOOL)


def numbers(dtype: DType, count: int, seed: int = 0) -> Array:
    """Return random bits of a dtype, and numbers near 1."""
    wanted = array_dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype is BOOL:
        return random.random(count) < 0.5
    bits: Array = random.integers(0, 256, count * wanted.itemsize, np.uint8).view(wanted)
    if wanted.kind == "f":
        bits[::3] = random.standard_normal(len(bits[::3]))
    return bits


def special(dtype: DType) -> Array:
    """Return the special values of a dtype."""
    wanted = array_dtype(dtype)
    if dtype is BOOL:
        return np.array([False, True])
    if wanted.kind == "f":
        limits: Any = np.finfo(wanted)
        positive = [
            0.0,
            0.5,
            1.5,
            2.5,
            1.0,
            3.0,
            limits.max,
            limits.tiny,
            limits.smallest_subnormal,
        ]
        positive += [np.inf, np.nan, 2.0**23, 2.0**52, 2.0**31, 1 / 3]
        return np.array([*positive, *[-value for value in positive]], wanted)
    bounds = np.iinfo(wanted)
    return np.array([bounds.min, bounds.max, 0, 1, bounds.max // 2, bounds.min // 2], wanted)


def pairs(dtype: DType) -> tuple[Array, Array]:
    """Return all pairs of edges, then pairs of random numbers."""
    edges = np.array([*itertools.product(special(dtype), repeat=2)])
    both = [np.concatenate([edges[:, place], numbers(dtype, 20_000, place)]) for place in range(2)]
    return both[0], both[1]


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, dtypes in UNARY.items() for dtype in dtypes]
)
def test_functions_of_one_element_have_the_bits_of_numpy(name: str, dtype: DType) -> None:
    values = np.concatenate([special(dtype), numbers(dtype, 200_000)])
    assert_same_bits(name, values)


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, dtypes in BINARY.items() for dtype in dtypes]
)
def test_functions_of_two_elements_have_the_bits_of_numpy(name: str, dtype: DType) -> None:
    assert_same_bits(name, *pairs(dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("limits", [(0, 5), (0, np.inf), (-np.inf, 1), (1, 0)])
def test_clamps_have_the_bits_of_numpy(dtype: DType, limits: tuple[float, float]) -> None:
    low, high = limits
    values = np.concatenate([special(dtype), numbers(dtype, 20_000)])
    assert_same_bits("Numeric.Clamp", values, min=low, max=high)
    if dtype in FLOATS:  # zeros of the other sign
        assert_same_bits("Numeric.Clamp", values, min=-0.0, max=high)


@pytest.mark.parametrize("size", range(1, 40))
def test_extremes_of_zeros_do_not_depend_on_the_place(size: int) -> None:
    for value in (0.0, -0.0):
        values = np.full(size, value, np.float32)
        assert_same_bits("Numeric.Clamp", values, min=0.0, max=float("inf"))
        assert_same_bits("Numeric.Clamp", values, min=float("-inf"), max=-0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_choose_as_numpy_does(dtype: DType) -> None:
    one, other = pairs(dtype)
    mask = numbers(BOOL, len(one), 7)
    assert_same_bits("Base.MaskWhere", one, mask, other)
    if dtype is not BOOL:
        assert_same_bits("Base.MaskFill", one, mask, value=7)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", FLOATS + INTEGERS)
def test_casts_have_the_bits_of_numpy(source: DType, target: DType) -> None:
    if source in FLOATS and target not in FLOATS:
        return  # saturates
    name = "Base.Cast"
    if target in FLOATS and source not in FLOATS:
        name = "Bool.IntoFloat" if source is BOOL else "Int.IntoFloat"
    elif source is BOOL:
        name = "Bool.IntoInt"
    values = np.concatenate([special(source), numbers(source, 20_000)])
    assert_same_bits(name, values, out=TensorSpec(values.shape, target))


@pytest.mark.parametrize("dtype", FLOATS)
def test_small_powers_have_the_bits_of_numpy(dtype: DType) -> None:
    values = np.concatenate([special(dtype), numbers(dtype, 20_000)])
    for exponent in (2, 3, -1):
        assert_same_bits("Numeric.PowiScalar", values, rhs=exponent)
        assert_same_bits("Float.PowfScalar", values, rhs=float(exponent))


@pytest.mark.parametrize("shapes", [
    ((7, 1, 5), (1, 3, 1)), ((4, 6), (6,)), ((4, 6), (4, 1)), ((9,), (1,)),
    ((2, 3, 4, 5), (3, 1, 5)),
])  # fmt: skip
def test_operands_are_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    one, other = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    assert_same_bits("Numeric.Sub", one, other)
    assert_same_bits("Numeric.Div", other, one)


def test_elements_at_any_address_are_read() -> None:
    memory = bytearray(4 * 101)
    unaligned = np.frombuffer(memoryview(memory)[1:401], np.float32)
    assert not unaligned.flags.aligned
    assert_same_bits("Numeric.Add", unaligned, np.ones(100, np.float32))


@pytest.mark.parametrize("name", ["Float.Erf", "Activation.Gelu"])
def test_the_error_function_has_the_bits_of_the_server(name: str) -> None:
    steps = np.linspace(-6, 6, 100_001, dtype=np.float32)
    assert_same_bits(name, np.concatenate([special(F32), steps, numbers(F32, 20_000)]))


@pytest.mark.parametrize("name", ["Float.Erf", "Activation.Gelu"])
def test_the_error_function_of_doubles_is_not_compiled(name: str) -> None:
    assert not is_exact(operation(name, TensorSpec((8,), F64)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_of_the_logistic_function_has_the_bits_of_the_server(dtype: DType) -> None:
    pairs = [*itertools.product(special(dtype), repeat=2)]
    first, second = (np.array(column, array_dtype(dtype)) for column in zip(*pairs, strict=True))
    assert_same_bits("Activation.SigmoidBackward", first, second)


@pytest.mark.parametrize("name", ["Float.Exp", "Float.Tanh", "Float.Sin"])
def test_functions_that_are_not_rounded_exactly_are_not_compiled(name: str) -> None:
    assert not is_exact(operation(name, TensorSpec((8,), F32)))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_floats_of_16_bits_are_not_compiled(dtype: DType) -> None:
    spec = TensorSpec((8,), dtype)
    assert not is_exact(operation("Numeric.Add", spec, spec))


def test_a_multiplication_and_an_addition_are_rounded_separately() -> None:
    size = 10_000
    spec = TensorSpec((size,), F32)
    multiply, add = (signature(f"Numeric.{name}", spec, spec) for name in ("Mul", "Add"))
    a, b, c = (np.random.default_rng(seed).standard_normal(size, np.float32) for seed in range(3))
    joined = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (joined != a * b + c).any()
    with forced_fusion():
        session = EngineSession(backend=with_fusion(NumpyBackend()))
        session.run(Define(0, multiply), Define(1, add))
        for tensor, array in enumerate((a, b, c)):
            session.tensors.store(tensor, array)
        session.run(DefineGraph(4096, 3, ((0, 0, 1), (1, 3, 2)), (4,)), (4096, 0, 1, 2, 3))
    assert (session.tensors.array(3) == a * b + c).all()


def test_a_function_without_a_ufunc_is_compiled_by_its_operation() -> None:
    fill = operation("Base.MaskFill", TensorSpec((4,), F32), TensorSpec((4,), BOOL), value=1.0)
    (call,) = fill.calls
    assert isinstance(call, ElementwiseCall)
    assert len(call.constants) == 1
    assert is_exact(fill)
