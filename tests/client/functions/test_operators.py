"""Operators match NumPy for all dtypes and for shapes that broadcast."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, mutually_broadcastable_shapes

import burn_remote as br
from burn_remote.arguments.arrays import as_dtype
from support.values import same

FLOATS: list[Any] = [np.float64, np.float32]
INTEGERS: list[Any] = [
    np.int64,
    np.int32,
    np.int16,
    np.int8,
    np.uint64,
    np.uint32,
    np.uint16,
    np.uint8,
]

ARITHMETIC = [operator.add, operator.sub, operator.mul]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
BITS = [operator.and_, operator.or_, operator.xor]


def pairs(dtypes: list[Any], **elements: Any) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    """Two arrays of one dtype whose shapes broadcast."""

    def of(dtype: Any, shapes: Any) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
        first, second = shapes.input_shapes
        within = elements or None
        return st.tuples(
            arrays(dtype, first, elements=within), arrays(dtype, second, elements=within)
        )

    shapes = mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=3)
    return st.tuples(st.sampled_from(dtypes), shapes).flatmap(lambda both: of(*both))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("act", ARITHMETIC + COMPARISONS)
@given(both=pairs(FLOATS + INTEGERS))
def test_arithmetic_and_comparisons_match_numpy(
    device: br.Device, act: Callable[[Any, Any], Any], both: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = (br.tensor(array, device=device) for array in both)
    same(act(x, y), act(*both))


@pytest.mark.parametrize("act", BITS)
@given(both=pairs([*INTEGERS, np.bool_]))
def test_bitwise_operators_match_numpy(
    device: br.Device, act: Callable[[Any, Any], Any], both: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = (br.tensor(array, device=device) for array in both)
    same(act(x, y), act(*both))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(both=pairs(INTEGERS, min_value=1, max_value=100), signs=st.tuples(*[st.booleans()] * 2))
def test_integers_divide_as_in_python(
    device: br.Device, both: tuple[np.ndarray, np.ndarray], signs: tuple[bool, bool]
) -> None:
    a, b = both
    if a.dtype.kind == "i":
        a, b = -a if signs[0] else a, -b if signs[1] else b
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)
    same(x // y, a // b)
    same(x % y, a % b)
    same(br.trunc_divide(x, y), np.trunc(a / b).astype(a.dtype))
    same(x / y, a.astype(np.float32) / b.astype(np.float32))


@given(
    both=pairs([np.float64], min_value=0.5, max_value=8.0),
    signs=st.tuples(st.sampled_from([1, -1]), st.sampled_from([1, -1])),
)
def test_floats_divide_as_pythons_do(
    device: br.Device, both: tuple[np.ndarray, np.ndarray], signs: tuple[int, int]
) -> None:
    a, b = both[0] * signs[0], both[1] * signs[1]
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)
    same(x / y, a / b)
    same(x // y, np.floor(a / b))
    same(x % y, a - np.floor(a / b) * b, 1e-12)
    same(abs(x) ** y, np.abs(a) ** b, 1e-14)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_numbers_may_be_either_operand(device: br.Device, dtype: Any) -> None:
    a = np.array([1, 2, 5], dtype)
    x = br.tensor(a, device=device)
    for act in [*ARITHMETIC, operator.floordiv, operator.mod, operator.pow, *COMPARISONS]:
        same(act(x, 2), act(a, dtype(2)))
        if act is not operator.sub or a.dtype.kind != "u":
            same(act(7, x), act(dtype(7), a))
    same(x / 2, a.astype(dtype if a.dtype.kind == "f" else np.float32) / 2)
    same(2 / x, (2 / a.astype(np.float64)).astype(dtype if a.dtype.kind == "f" else np.float32))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_match_numpy(device: br.Device, dtype: Any) -> None:
    a, b = np.array([1, 5, 100], dtype), np.array([0, 2, 3], dtype)
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)
    same(x >> y, a >> b)
    same(x << 1, a << dtype(1))
    same(1 << y, dtype(1) << b)
    same(~x, ~a)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_the_width_and_more_leave_nothing_but_the_sign(
    device: br.Device, dtype: Any
) -> None:
    limits = np.iinfo(dtype)
    a = np.array([1, limits.max, limits.min], dtype)
    x = br.tensor(a, device=device)
    number = -1 if limits.min else 7
    counts = [limits.bits - 1, limits.bits, 63, 64, 65, 127]
    for count in [*counts, -1] if limits.min else counts:
        b = np.array([count] * 3, dtype)
        y = br.tensor(b, device=device)
        same(x << y, np.left_shift(a, b))
        same(x >> y, np.right_shift(a, b))
        same(1 << y, np.left_shift(dtype(1), b))
        same(number >> y, np.right_shift(dtype(number), b))
        same(x << count, np.left_shift(a, dtype(count)))
        same(x >> count, np.right_shift(a, dtype(count)))
    compiled = br.compile(lambda x, count: (x << count, x >> count))
    for count in (1, 64, 3, 100):
        for one, way in zip(compiled(x, count), (np.left_shift, np.right_shift), strict=True):
            same(one, way(a, dtype(count)))


def test_powers_match_numpy(device: br.Device) -> None:
    a = np.array([-2.0, 0.0, 0.5, 3.0])
    x = br.tensor(a, device=device)
    same(x**3, a**3)
    same(x**-2, np.array([0.25, np.inf, 4, 1 / 9]), 1e-15)
    same(abs(x) ** 0.5, np.abs(a) ** 0.5, 1e-15)
    same(2**x, 2.0**a)
    n = br.tensor([3, 1, 2, 0], device=device)
    same(x**n, a ** np.array([3, 1, 2, 0]))
    same(n**n, np.array([27, 1, 4, 1]))


@pytest.mark.parametrize("first", [(2, 3), (4, 2, 3), (1, 2, 3), (3,), (0, 3)])
@pytest.mark.parametrize("second", [(3, 4), (4, 3, 2), (3,)])
@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_matrix_products_match_numpy(
    device: br.Device, first: Any, second: Any, dtype: Any
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 5, shape).astype(dtype) for shape in (first, second))
    same(br.tensor(a, device=device) @ br.tensor(b, device=device), a @ b)


@pytest.mark.parametrize("source", [*FLOATS, np.float16, *INTEGERS, np.bool_])
@pytest.mark.parametrize("target", [*FLOATS, np.float16, *INTEGERS, np.bool_])
def test_conversions_match_numpy(device: br.Device, source: Any, target: Any) -> None:
    a = np.array([0, 1, 2, 100]).astype(source)
    converted = br.tensor(a, device=device).astype(as_dtype(target))
    same(converted, a.astype(target))
