"""Promotion of operands: results, dtypes and the operations that are issued."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burn_remote as br
from support.runners import RecordingDevice

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]

ARITHMETIC = [
    "add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum", "pow",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
]  # fmt: skip
OF_INTEGERS = ["bitwise_and", "bitwise_or", "bitwise_xor"]


@pytest.fixture(scope="module")
def local() -> Iterator[br.LocalDevice]:
    with br.LocalDevice() as device:
        yield device


def both(
    local: br.LocalDevice, name: str, first: str, second: str, numbers: tuple[list[int], list[int]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the result of a function here and in array-api-strict."""
    arrays = [
        np.array(listed, dtype) for listed, dtype in zip(numbers, (first, second), strict=True)
    ]
    ours = getattr(br, name)(*[br.tensor(array, device=local) for array in arrays])
    theirs = getattr(strict, name)(*map(strict.asarray, arrays))
    return ours.numpy(), np.asarray(theirs)


def pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in names for b in names if a != b and {a, b} & {"uint64"} == set()]


@pytest.mark.parametrize("first, second", pairs(INTEGERS) + pairs(FLOATS))
@pytest.mark.parametrize("name", ARITHMETIC)
def test_functions_promote_as_the_standard(
    local: br.LocalDevice, name: str, first: str, second: str
) -> None:
    ours, theirs = both(local, name, first, second, ([1, 7, 100], [1, 3, 2]))
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("first, second", pairs(INTEGERS))
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_bitwise_functions_promote_as_the_standard(
    local: br.LocalDevice, name: str, first: str, second: str
) -> None:
    ours, theirs = both(local, name, first, second, ([1, 7, 100], [1, 3, 2]))
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


@given(
    first=st.lists(st.integers(1, 100), min_size=3, max_size=3),
    second=st.lists(st.integers(1, 100), min_size=3, max_size=3),
)
def test_integers_and_floats_compute_in_the_dtype_of_the_floats(
    local: br.LocalDevice, first: list[int], second: list[int]
) -> None:
    whole, real = np.array(first, np.int32), np.array(second, np.float32)
    x, y = br.tensor(whole, device=local), br.tensor(real, device=local)
    for apply in (operator.add, operator.sub, operator.mul, operator.truediv, operator.lt):
        expected = apply(whole.astype(np.float32), real)
        assert np.array_equal(apply(x, y).numpy(), expected)
        assert np.array_equal(apply(y, x).numpy(), apply(real, whole.astype(np.float32)))


@pytest.mark.parametrize(
    "call, dtype, values",
    [
        (lambda n, t, h: n * 0.5, br.float32, [0.5, 1.5]),
        (lambda n, t, h: 0.5 - n, br.float32, [-0.5, -2.5]),
        (lambda n, t, h: n / 2, br.float32, [0.5, 1.5]),
        (lambda n, t, h: n**0.5, br.float32, [1.0, 3**0.5]),
        (lambda n, t, h: 2.0**n, br.float32, [2.0, 8.0]),
        (lambda n, t, h: n // 0.5, br.float32, [2.0, 6.0]),
        (lambda n, t, h: n % 0.75, br.float32, [0.25, 0.0]),
        (lambda n, t, h: t + 1, br.int64, [2, 1]),
        (lambda n, t, h: t * 2.5, br.float32, [2.5, 0.0]),
        (lambda n, t, h: 1 - t, br.int64, [0, 1]),
        (lambda n, t, h: t * n, br.int32, [1, 0]),
        (lambda n, t, h: n + True, br.int32, [2, 4]),
        (lambda n, t, h: t / t.astype(br.int8), br.float32, [1.0, np.nan]),
        (lambda n, t, h: h * n, br.float16, [0.5, 4.5]),
        (lambda n, t, h: h * True, br.float16, [0.5, 1.5]),
        (lambda n, t, h: h + n.astype(br.float64), br.float64, [1.5, 4.5]),
        (lambda n, t, h: h + n.astype(br.bfloat16), br.float32, [1.5, 4.5]),
        (lambda n, t, h: br.where(t, n, h), br.float16, [1.0, 1.5]),
        (lambda n, t, h: br.where(t, n, 0.5), br.float32, [1.0, 0.5]),
        (lambda n, t, h: br.maximum(n, 1.5), br.float32, [1.5, 3.0]),
        (lambda n, t, h: br.maximum(n, h), br.float16, [1.0, 3.0]),
        (lambda n, t, h: n.clip(1.5, 2), br.float32, [1.5, 2.0]),
        (lambda n, t, h: br.concat([n, h]), br.float16, [1.0, 3.0, 0.5, 1.5]),
        (lambda n, t, h: br.stack([t, n]), br.int32, [[1, 0], [1, 3]]),
        (lambda n, t, h: n @ h, br.float16, 5.0),
        (lambda n, t, h: br.vecdot(n, h), br.float16, 5.0),
        (lambda n, t, h: br.outer(n, t), br.int32, [[1, 0], [3, 0]]),
        (lambda n, t, h: br.atan2(h, n.astype(br.float32)), br.float32, None),
        (lambda n, t, h: n == 0.5, br.bool, [False, False]),
        (lambda n, t, h: n > 2.5, br.bool, [False, True]),
        (lambda n, t, h: t == 1, br.bool, [True, False]),
        (lambda n, t, h: np.float64(0.5) * n, br.float32, [0.5, 1.5]),
    ],
)  # fmt: skip
def test_mixed_kinds_promote_as_documented(
    local: br.LocalDevice,
    call: Callable[[br.Tensor, br.Tensor, br.Tensor], br.Tensor],
    dtype: br.DType,
    values: Any,
) -> None:
    n = br.tensor([1, 3], dtype=br.int32, device=local)
    t = br.tensor([True, False], device=local)
    h = br.tensor([0.5, 1.5], dtype=br.float16, device=local)
    result = call(n, t, h)
    assert result.dtype is dtype
    if values is not None:
        expected = np.array(values, np.dtype(dtype))
        assert np.array_equal(result.numpy(), expected, equal_nan=dtype.is_floating)


def test_large_integers_are_compared_exactly_with_floats(local: br.LocalDevice) -> None:
    x = br.tensor([2**24 + 1], device=local)
    assert not (x == 2.0**24).item()
    assert (x != 2.0**24).item()
    assert (x > 2.0**24).item()


@pytest.mark.parametrize(
    ("name", "floats"),
    [
        *itertools.product(
            ["eq", "ne", "lt", "le", "gt", "ge"], [br.bfloat16, br.float16, br.float32]
        ),
        *[("eq", br.complex64), ("ne", br.complex64)],  # complex numbers have no order
    ],
)
@pytest.mark.parametrize("integers", [br.uint8, br.int16, br.uint16, br.int32, br.uint32, br.int64])
def test_comparisons_do_not_round_integers_to_the_dtype_of_the_floats(
    name: str, floats: br.DType, integers: br.DType, local: br.LocalDevice
) -> None:
    compare = getattr(operator, name)
    limit = np.iinfo(np.dtype(integers)).max
    numbers = [0, 1, 255, 257, 2049, 32767, 65505, 2**24 + 1, 2**31 - 1]
    first = np.array([one for one in numbers if one <= limit], np.dtype(integers))[:, None]
    with np.errstate(over="ignore"):
        second = first.ravel().astype(np.dtype(floats))
    wide = np.complex128 if floats is br.complex64 else np.float64
    expected = compare(first.astype(wide), second.astype(wide))
    x, y = br.tensor(first, device=local), br.tensor(second, device=local)
    np.testing.assert_array_equal(compare(x, y).numpy(), expected)
    exchanged = compare(second.astype(wide), first.astype(wide))
    np.testing.assert_array_equal(compare(y, x).numpy(), exchanged)


def test_searches_do_not_round_what_they_search_for(local: br.LocalDevice) -> None:
    halves = br.tensor([0.1, 2048], dtype=br.float16, device=local)
    integers = br.tensor([2049, 2**24 + 1], device=local)
    assert not br.isin(integers, halves).any().item()
    assert not br.isin(halves, integers).any().item()
    assert not br.isin(2.0**24, integers).item()
    assert not br.isin(2049, halves).item()
    assert not br.isin(0.1, halves).item()
    assert br.searchsorted(halves, integers).numpy().tolist() == [2, 2]
    assert br.searchsorted(halves, 2049).item() == 2
    assert br.searchsorted(integers, 2.0**24).item() == 1
    assert not br.array_equal(integers[:1], halves[1:])
    assert not (integers == complex(2**24)).any().item()


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("signed", [np.int8, np.int64])
def test_signed_integers_are_compared_exactly_with_uint64(
    name: str, signed: Any, local: br.LocalDevice
) -> None:
    compare = getattr(operator, name)
    first = np.array([-1, 0, 5, np.iinfo(signed).max], signed)[:, None]
    second = np.array([0, 5, 127, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    x, y = br.tensor(first, device=local), br.tensor(second, device=local)
    np.testing.assert_array_equal(compare(x, y).numpy(), compare(first, second))
    np.testing.assert_array_equal(compare(y, x).numpy(), compare(second, first))
    assert not br.array_equal(x[0], y[-1:])


def test_gradients_pass_conversions(local: br.LocalDevice) -> None:
    w = br.tensor([1.0, 2.0], device=local, requires_grad=True)
    x = br.tensor([3.0, 4.0], dtype=br.float64, device=local)
    (w * x).sum().backward()
    assert w.grad.dtype is br.float32
    assert w.grad.numpy().tolist() == [3.0, 4.0]
    u = br.tensor([1.0, 5.0], device=local, requires_grad=True)
    br.maximum(u, x).sum().backward()
    assert u.grad.numpy().tolist() == [0.0, 1.0]


def test_equal_dtypes_need_one_operation() -> None:
    device = RecordingDevice()
    x, y = br.ones((2,), device=device), br.ones((2,), device=device)
    before = len(device.runner.operations)
    x + y, x * 2, x < y, br.maximum(x, 0.5)
    assert len(device.runner.operations) - before == 4
    x + br.ones((2,), dtype=br.int8, device=device)
    assert len(device.runner.operations) - before == 7


def test_nothing_is_sent_before_a_refusal() -> None:
    device = RecordingDevice()
    n = br.ones((2,), dtype=br.int8, device=device)
    x, y = br.ones((3,), device=device), br.ones((2,), device=device)
    before = len(device.runner.operations)
    with pytest.raises(br.ShapeMismatch):
        n + x
    with pytest.raises(br.DTypeMismatch):
        n & y
    with pytest.raises(br.DTypeMismatch):
        br.ones((2,), dtype=br.uint8, device=device).astype(br.uint8) + 256
    assert len(device.runner.operations) - before == 1
