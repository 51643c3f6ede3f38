"""Comparisons up to a tolerance and of whole tensors agree with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br

NUMBERS = np.array([0.0, 1.0, 1.0 + 1e-6, 1e9, np.inf, -np.inf, np.nan, -0.0])


@pytest.mark.parametrize("equal_nan", [False, True])
@pytest.mark.parametrize("tolerances", [{}, {"rtol": 0.1}, {"atol": 2.0}, {"rtol": 0, "atol": 0}])
def test_isclose_is_that_of_numpy_for_each_pair(
    tolerances: dict[str, float], equal_nan: bool, device: br.Device
) -> None:
    x = br.tensor(NUMBERS, device=device)
    found = br.isclose(x[:, None], x, equal_nan=equal_nan, **tolerances)
    expected = np.isclose(NUMBERS[:, None], NUMBERS, equal_nan=equal_nan, **tolerances)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("number", [1, 1.0, np.inf, np.nan, True, 1 + 1e-7j])
def test_isclose_takes_a_number_on_either_side(number: Any, device: br.Device) -> None:
    x = br.tensor(NUMBERS, device=device)
    np.testing.assert_array_equal(br.isclose(x, number).numpy(), np.isclose(NUMBERS, number))
    np.testing.assert_array_equal(br.isclose(number, x).numpy(), np.isclose(number, NUMBERS))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16", "float32", "complex64"])
def test_isclose_takes_every_dtype_that_numpy_takes(dtype: Any, device: br.Device) -> None:
    first, second = np.array([0, 1, 200]).astype(dtype), np.array([1, 1, 2]).astype(dtype)
    found = br.isclose(br.tensor(first, device=device), br.tensor(second, device=device))
    np.testing.assert_array_equal(found.numpy(), np.isclose(first, second))


def test_comparing_whole_tensors_reads_one_bool(device: br.LocalDevice) -> None:
    x = br.tensor(NUMBERS, device=device)
    requests = device.traffic.requests
    assert br.allclose(x, x * (1 + 1e-9), equal_nan=True)
    assert not br.allclose(x, x)
    assert br.array_equal(x[:6], NUMBERS[:6])
    assert not br.array_equal(x, x)
    assert br.array_equal(x, x, equal_nan=True)
    assert device.traffic.requests - requests == 5
    assert not br.array_equal(x, x[:2])
    assert device.traffic.requests - requests == 5


def test_a_tensor_is_compared_with_a_list_or_a_number(device: br.LocalDevice) -> None:
    x = br.tensor([1.0, 2.0], device=device)
    assert br.array_equal(x, [1, 2])
    assert not br.array_equal([1, 3], x)
    assert br.array_equal(x[0], 1)


def test_two_numbers_are_refused() -> None:
    with pytest.raises(br.ArgumentMismatch, match="expected a tensor"):
        br.isclose(1.0, 2.0)


@pytest.mark.parametrize("other", ["a", [1.0], None])
@pytest.mark.parametrize("function", [br.isclose, br.allclose])
def test_anything_but_a_tensor_an_array_or_a_number_is_refused(
    function: Any, other: Any, device: br.Device
) -> None:
    x = br.tensor([1.0], device=device)
    for arguments in ((x, other), (other, x)):
        with pytest.raises(br.ArgumentMismatch, match=f"not {type(other).__name__}"):
            function(*arguments)
