"""Covariances and correlations agree with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br

RANDOM = np.random.default_rng(21)
VARIABLES = RANDOM.normal(size=(3, 7))
OTHERS = RANDOM.normal(size=(2, 7))
FREQUENCIES = np.array([1, 2, 3, 1, 0, 2, 1])
IMPORTANCES = RANDOM.uniform(size=7)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": True},
    {"ddof": 0},
    {"ddof": 2},
    {"fweights": FREQUENCIES},
    {"aweights": IMPORTANCES},
    {"fweights": FREQUENCIES, "aweights": IMPORTANCES},
    {"fweights": FREQUENCIES, "aweights": IMPORTANCES, "ddof": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda given: "-".join(given) or "plain")
def test_covariances_are_those_of_numpy(options: dict[str, Any], device: br.Device) -> None:
    x, y = br.tensor(VARIABLES, device=device), br.tensor(OTHERS, device=device)
    for found, expected in [
        (br.cov(x, **options), np.cov(VARIABLES, **options)),
        (br.cov(x[0], **options), np.cov(VARIABLES[0], **options)),
        (br.cov(x, y, **options), np.cov(VARIABLES, OTHERS, **options)),
        (br.cov(x.T, y.T, rowvar=False, **options), np.cov(VARIABLES, OTHERS, **options)),
    ]:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, strict=True)


def test_correlations_are_those_of_numpy(device: br.Device) -> None:
    x, y = br.tensor(VARIABLES, device=device), br.tensor(OTHERS, device=device)
    for found, expected in [
        (br.corrcoef(x), np.corrcoef(VARIABLES)),
        (br.corrcoef(x, y), np.corrcoef(VARIABLES, OTHERS)),
        (br.corrcoef(x[0]), np.corrcoef(VARIABLES[0])),
        (br.corrcoef(x[0], y[0]), np.corrcoef(VARIABLES[0], OTHERS[0])),
    ]:
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_complex_variables_have_hermitian_covariances(device: br.Device) -> None:
    array = VARIABLES + 1j * VARIABLES[::-1] ** 2
    x = br.tensor(array, device=device)
    np.testing.assert_allclose(br.cov(x).numpy(), np.cov(array), rtol=1e-12)
    np.testing.assert_allclose(br.corrcoef(x).numpy(), np.corrcoef(array), rtol=1e-12)


def test_weights_of_another_length_are_refused(device: br.Device) -> None:
    with pytest.raises(br.ShapeMismatch, match=r"fweights are int64\[2\], but .* 7 observations"):
        br.cov(br.tensor(VARIABLES, device=device), fweights=np.array([1, 2]))


def test_one_observation_of_several_variables_is_a_row_without_rowvar(device: br.Device) -> None:
    row = VARIABLES[:1]
    found = br.cov(br.tensor(row, device=device), rowvar=False, bias=True)
    np.testing.assert_array_equal(found.numpy(), np.zeros((7, 7)), strict=True)
    both = br.cov(br.tensor(row, device=device), OTHERS[:1, :3], rowvar=False, bias=True)
    assert both.shape == (10, 10)
