"""Details in which the array API standard, NumPy and PyTorch agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import burn_remote as br

TRUTHS = np.asarray([True, False])


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize("other", [True, False, 3])
def test_logical_functions_take_python_numbers_on_either_side(name: str, other: int) -> None:
    x = br.tensor(TRUTHS, device="local")
    expected = getattr(np, name)(TRUTHS, bool(other))
    np.testing.assert_array_equal(getattr(br, name)(x, other).numpy(), expected)
    np.testing.assert_array_equal(getattr(br, name)(other, x).numpy(), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_the_negative_of_unsigned_integers_wraps(dtype: Any) -> None:
    array = np.asarray([0, 1, 7, np.iinfo(dtype).max], dtype)
    result = -br.tensor(array, device="local")
    assert result.numpy().dtype == dtype
    np.testing.assert_array_equal(result.numpy(), -array)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.complex128])
def test_the_cross_product_takes_integers_and_complex_numbers(dtype: Any) -> None:
    first = np.arange(6).reshape(2, 3).astype(dtype)
    second = (np.arange(3) * 3 + 1).astype(dtype)
    x, y = br.tensor(first, device="local"), br.tensor(second, device="local")
    np.testing.assert_array_equal(br.cross(x, y).numpy(), np.cross(first, second))
    with pytest.raises(br.ShapeMismatch, match="must have the size 3"):
        br.cross(x[:, :2], y[:2])


def test_the_sign_bit_of_nan_is_its_own() -> None:
    array = np.asarray([np.nan, -np.nan, -0.0, 0.0, -1.5])
    found = br.signbit(br.tensor(array, device="local"))
    np.testing.assert_array_equal(found.numpy(), np.signbit(array))


def test_the_size_is_an_integer_that_an_index_takes() -> None:
    x = br.arange(12, device="local")
    assert isinstance(x.size, int)
    assert x[x.size - 1 : x.size].tolist() == [11]
    assert x[-x.size].item() == 0


@pytest.mark.parametrize("bounds", [(), (1,), (0, 1), (1, 2), (-2, -1), (2,)])
def test_flatten_joins_the_axes_that_pytorch_would(bounds: tuple[int, ...]) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    first, last = (*bounds, 0, -1)[:1][0], (bounds[1] if len(bounds) > 1 else -1)
    places = range(first % 3, last % 3 + 1)
    size = int(np.prod([array.shape[place] for place in places]))
    shape = (*array.shape[: places[0]], size, *array.shape[places[-1] + 1 :])
    found = br.tensor(array, device="local").flatten(*bounds)
    np.testing.assert_array_equal(found.numpy(), array.reshape(shape))


def test_flatten_refuses_bounds_in_the_wrong_order() -> None:
    with pytest.raises(br.UsageError, match="comes after"):
        br.zeros((2, 3, 4), device="local").flatten(2, 1)
    assert br.tensor(5.0, device="local").flatten().shape == (1,)


def test_eigenvalues_of_a_rotation_are_complex() -> None:
    rotation = np.asarray([[0.0, -1.0], [1.0, 0.0]])
    values, vectors = br.linalg.eig(br.tensor(rotation, device="local"))
    assert (values.dtype, vectors.shape) == (br.complex128, (2, 2))
    np.testing.assert_allclose(np.sort_complex(values.numpy()), [-1j, 1j])
    half = br.linalg.eigvals(br.tensor(rotation, dtype=br.float16, device="local"))
    assert half.dtype == br.complex64
    x = br.tensor(rotation, device="local").requires_grad_()
    abs(br.linalg.eigvals(x)).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), rotation, atol=1e-12)


def test_complex_numbers_that_are_not_zero_are_found() -> None:
    array = np.array([[0, 1j, -0.0], [2, 0, np.nan]])
    x = br.tensor(array, device="local")
    np.testing.assert_array_equal(br.argwhere(x).numpy(), np.argwhere(array))
    for ours, theirs in zip(br.nonzero(x), np.nonzero(array), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_complex_tensors_are_padded_with_complex_numbers() -> None:
    array = np.array([[1j, 2]])
    found = br.functional.pad(br.tensor(array, device="local"), (1, 2), value=3 - 1j)
    expected = np.pad(array, ((0, 0), (1, 2)), constant_values=3 - 1j)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_the_sign_of_complex_zeros_is_a_positive_zero() -> None:
    zeros = np.array([complex(0, 0), complex(-0.0, 0.0), complex(0.0, -0.0), complex(-0.0, -0.0)])
    signs = br.sign(br.tensor(zeros, device="local")).numpy()
    assert not np.signbit(signs.real).any()
    assert not np.signbit(signs.imag).any()


@pytest.mark.parametrize(
    "z, expected",
    [
        (complex(math.inf, 0), complex(math.inf, 0)),
        (complex(-math.inf, math.inf), complex(-1, 0)),
        (complex(math.inf, math.inf), complex(math.inf, math.nan)),
        (complex(-math.inf, math.nan), complex(-1, 0)),
        (complex(math.nan, 0), complex(math.nan, 0)),
        (complex(1e-12, 1e-12), complex(1e-12, 1e-12 + 1e-24)),
    ],
)
def test_complex_expm1_has_the_special_values_of_the_standard(
    z: complex, expected: complex
) -> None:
    found = br.expm1(br.tensor(np.array(z), device="local")).item()
    np.testing.assert_allclose([found.real, found.imag], [expected.real, expected.imag], rtol=1e-11)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_exp2_has_the_special_values_of_numpy(dtype: type) -> None:
    parts = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan]
    z: Any = np.array([complex(x, y) for x in parts for y in parts], dtype)
    found = br.exp2(br.tensor(z, device="local")).numpy()
    with np.errstate(all="ignore"):
        expected = np.exp2(z)
    np.testing.assert_allclose(found.real, expected.real, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.imag, expected.imag, rtol=1e-6, atol=1e-7)


def test_a_diagonal_far_outside_of_a_matrix_is_empty() -> None:
    for k in (2**63, -(2**63), 5, -4):
        assert not br.eye(3, 5, k=k, device="local").any().item()
    np.testing.assert_array_equal(br.eye(3, 5, k=4, device="local").numpy(), np.eye(3, 5, 4))
