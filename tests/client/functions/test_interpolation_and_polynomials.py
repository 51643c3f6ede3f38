"""Interpolation and polynomials agree with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br

PLACES = np.array([-1.0, 0.0, 2.0, 2.5, 7.0])
VALUES = np.array([3.0, -1.0, 4.0, 4.5, 0.0])
AT = np.array([[-5, -1, -0.5, 0, 1.3], [2.4, 2.5, 6.9, 7, 99]])


@pytest.mark.parametrize(
    "options", [{}, {"left": -9}, {"right": 8.5}, {"left": 0, "right": 1}, {"period": 4.5}]
)
def test_interpolation_is_that_of_numpy(options: dict[str, Any], device: br.Device) -> None:
    x, xp, fp = (br.tensor(one, device=device) for one in (AT, PLACES, VALUES))
    expected = np.interp(AT, PLACES, VALUES, **options)
    np.testing.assert_allclose(br.interp(x, xp, fp, **options).numpy(), expected, rtol=1e-12)
    # Points as lists and arrays are sent to the tensor's device.
    found = br.interp(x, PLACES.tolist(), VALUES, **options)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_one_point_is_a_constant_and_nan_stays_nan(device: br.Device) -> None:
    x = br.tensor(np.array([-1.0, 2.0, 3.0, np.nan]), device=device)
    found = br.interp(x, [2.0], [5.0], left=0.0)
    np.testing.assert_array_equal(found.numpy(), np.interp(x.numpy(), [2.0], [5.0], left=0.0))
    found = br.interp(x, PLACES, VALUES)
    np.testing.assert_allclose(found.numpy(), np.interp(x.numpy(), PLACES, VALUES))


def test_points_where_the_line_is_steep_have_their_exact_value(device: br.Device) -> None:
    places, values = np.array([0.0, 5e-324, 1.0]), np.array([1.0, 1e300, 2.0])
    found = br.interp(br.tensor(places, device=device), places, values)
    np.testing.assert_array_equal(found.numpy(), values)


@pytest.mark.parametrize(
    "values", [[np.inf, np.inf, 1.0], [1.0, np.inf, np.inf], [-np.inf, 1.0, np.nan]], ids=str
)
def test_infinite_points_give_the_lines_of_numpy(values: list[float], device: br.Device) -> None:
    at, places = np.array([-1, 0, 0.5, 1, 1.5, 2, 3, np.nan]), [0.0, 1.0, 2.0]
    found = br.interp(br.tensor(at, device=device), places, values)
    np.testing.assert_array_equal(found.numpy(), np.interp(at, places, values))


def test_interpolation_has_the_gradient_of_its_lines(device: br.Device) -> None:
    x = br.tensor([0.5, 2.25], dtype=br.float64, device=device).requires_grad_()
    fp = br.tensor(VALUES, device=device).requires_grad_()
    br.interp(x, PLACES, fp).sum().backward()
    assert x.grad is not None
    assert fp.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [2.5, 1.0])
    np.testing.assert_allclose(fp.grad.numpy(), [0, 0.75, 0.25 + 0.5, 0.5, 0])


def test_points_of_different_lengths_are_refused(device: br.Device) -> None:
    with pytest.raises(br.ShapeMismatch, match="vectors of one length"):
        br.interp(br.zeros(2, device=device), [0.0, 1.0], [0.0])


@pytest.mark.parametrize("coefficients", [[], [2], [1, -2, 0, 3.5]])
def test_polynomials_have_the_values_of_numpy(coefficients: Any, device: br.Device) -> None:
    x = br.tensor(AT, device=device)
    expected = np.polyval(coefficients, AT)
    np.testing.assert_allclose(br.polyval(coefficients, x).numpy(), expected, rtol=1e-12)
    if coefficients:
        p = br.tensor(np.array(coefficients, float), device=device)
        np.testing.assert_allclose(br.polyval(p, x).numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(br.polyval(p, AT).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("x", [np.array([200, 3], np.uint8), np.array([-100], np.int16)])
@pytest.mark.parametrize("coefficients", [[300, 200], np.array([3, 200], np.uint8)])
def test_polynomials_of_integers_have_the_values_of_numpy(
    x: Any, coefficients: Any, device: br.Device
) -> None:
    found = br.polyval(coefficients, br.tensor(x, device=device))
    np.testing.assert_array_equal(found.numpy(), np.polyval(coefficients, x), strict=True)


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_fitted_polynomials_are_those_of_numpy(
    degree: int, weighted: bool, device: br.Device
) -> None:
    random = np.random.default_rng(4)
    x, y, w = random.normal(size=20), random.normal(size=(20, 2)), random.uniform(size=20)
    options: Any = {"w": w} if weighted else {}
    tensors = br.tensor(x, device=device), br.tensor(y, device=device)
    expected = np.polyfit(x, y, degree, **options)
    np.testing.assert_allclose(br.polyfit(*tensors, degree, **options).numpy(), expected, rtol=1e-9)
    found = br.polyfit(tensors[0], tensors[1][:, 0], degree, **options)
    np.testing.assert_allclose(found.numpy(), expected[:, 0], rtol=1e-9)
