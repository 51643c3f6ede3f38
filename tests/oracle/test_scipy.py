"""Comparison with SciPy: convolution, filters, interpolation, transforms, special functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.kernels import compute
from support.module_kernels import Array, normal, run

fft = pytest.importorskip("scipy.fft", reason="SciPy is in the dependency group oracle")
ndimage = pytest.importorskip("scipy.ndimage")
signal = pytest.importorskip("scipy.signal")
special = pytest.importorskip("scipy.special")
linalg = pytest.importorskip("scipy.linalg")
pytestmark = pytest.mark.oracle
SETTINGS = settings(deadline=None, max_examples=60)


def every_binade(dtype: type[np.floating[Any]], low: int, high: int) -> Array:
    """Return numbers of both signs from 2 to the power of ``low`` up to that of ``high``."""
    rng = np.random.default_rng(0)
    sizes = 2.0 ** rng.uniform(low, high, 200_000)
    return np.concatenate([sizes, -sizes, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(dtype)


def units(found: Array, exact: Array) -> Any:
    """Return the error of each result in units in the last place of the exact value."""
    # At a power of 2, the stricter spacing counts: that of the smaller numbers.
    size = np.nextafter(np.abs(exact).astype(found.dtype), found.dtype.type(0))
    return np.abs(found.astype(exact.dtype) - exact) / np.spacing(size)


@pytest.mark.parametrize(("dtype", "low", "bound"), [(np.float32, -100, 7), (np.float64, -900, 3)])
def test_the_error_function_has_the_documented_accuracy(
    dtype: type[np.floating[Any]], low: int, bound: float
) -> None:
    x = every_binade(dtype, low, 3)
    finite = x[np.isfinite(x) & (x != 0)]
    errors = units(compute("Float.Erf", finite), special.erf(finite.astype(np.float64)))
    assert errors.max() <= bound
    np.testing.assert_array_equal(
        compute("Float.Erf", x[-5:]), special.erf(x[-5:].astype(np.float64)).astype(dtype)
    )


PLAIN = {"Exp": np.exp, "Log1p": special.log1p, "Log": np.log, "Tanh": np.tanh, "Cosh": np.cosh}


@pytest.mark.parametrize("name", [*PLAIN])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_low_precision_functions_round_the_exact_results(name: str, dtype: Any) -> None:
    x = every_binade(dtype, -12, 4)
    with np.errstate(all="ignore"):
        exact = PLAIN[name](x.astype(np.float64))
        found = compute(f"Float.{name}", x)
        rounded = exact.astype(dtype)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    assert units(found[finite], exact[finite]).max() <= 4


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=3))
@SETTINGS
def test_convolutions_match_scipys_signal_convolutions(axes: list[tuple[int, int]]) -> None:
    sizes, kernel = zip(*axes, strict=True)
    rank = len(axes)
    x, weight = normal(1, *sizes), normal(2, *kernel)
    ones: dict[str, Any] = {"stride": (1,) * rank, "dilation": (1,) * rank, "groups": 1}
    padding = tuple(taps - 1 for taps in kernel)

    found = run(f"Conv{rank}d", x[None, None], weight[None, None], None, **ones, padding=padding)
    np.testing.assert_allclose(found[0, 0], signal.correlate(x, weight, "full"), atol=1e-10)
    spread = run(
        f"ConvTranspose{rank}d",
        *(x[None, None], weight[None, None], None),
        **ones,
        padding=(0,) * rank,
        padding_out=(0,) * rank,
    )
    np.testing.assert_allclose(spread[0, 0], signal.convolve(x, weight, "full"), atol=1e-10)


@given(st.integers(3, 9), st.integers(3, 9), st.integers(0, 2), st.integers(0, 2))
@SETTINGS
def test_poolings_match_scipys_filters(height: int, width: int, rows: int, columns: int) -> None:
    x, size = normal(1, height, width), (2 * rows + 1, 2 * columns + 1)
    options: dict[str, Any] = {"kernel_size": size, "stride": (1, 1), "padding": (rows, columns)}
    largest = run("MaxPool2d", x[None, None], **options, dilation=(1, 1), ceil_mode=False)
    expected = ndimage.maximum_filter(x, size, mode="constant", cval=-np.inf)
    np.testing.assert_array_equal(largest[0, 0], expected)
    means = run("AvgPool2d", x[None, None], **options, count_include_pad=True, ceil_mode=False)
    expected = ndimage.uniform_filter(x, size, mode="constant", cval=0.0)
    np.testing.assert_allclose(means[0, 0], expected, atol=1e-10)


@pytest.mark.parametrize("outputs", [(7, 3), (2, 9), (5, 5)])
def test_bilinear_interpolation_with_aligned_corners_matches_scipy(
    outputs: tuple[int, int],
) -> None:
    x = normal(1, 5, 4)
    axes = [np.linspace(0, size - 1, n) for size, n in zip(x.shape, outputs, strict=True)]
    expected = ndimage.map_coordinates(x, np.meshgrid(*axes, indexing="ij"), order=1)
    options: dict[str, Any] = {"output_size": outputs, "mode": "Bilinear", "align_corners": True}
    found = run("Interpolate", x[None, None], **options)
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-10)


@pytest.mark.parametrize("mode", [("Zeros", "constant"), ("Border", "nearest")])
def test_grid_samples_beyond_the_border_match_scipy(mode: tuple[str, str]) -> None:
    image, grid = normal(1, 5, 6), np.random.default_rng(2).uniform(-1.6, 1.6, (1, 8, 9, 2))
    found = compute(
        "Float.GridSample2d",
        *(image[None, None], grid),
        mode="Bilinear",
        padding_mode=mode[0],
        align_corners=True,
    )
    places = [(grid[0, ..., 1] + 1) / 2 * 4, (grid[0, ..., 0] + 1) / 2 * 5]
    # SciPy's constant border starts at once where ours fades over one element: a frame of zeros.
    framed = np.pad(image, 3) if mode[0] == "Zeros" else image
    moved = [place + (3 if mode[0] == "Zeros" else 0) for place in places]
    expected = ndimage.map_coordinates(framed, moved, order=1, mode=mode[1])
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-10)


@given(st.integers(1, 40), st.one_of(st.none(), st.integers(1, 50)))
@SETTINGS
def test_fourier_transforms_match_scipys(length: int, n: int | None) -> None:
    x = normal(1, 3, length)
    real, imaginary = run("Rfft", x, dim=1, n=n)
    np.testing.assert_allclose(real + 1j * imaginary, fft.rfft(x, n, axis=1), atol=1e-10)


def test_attention_matches_a_softmax_weighted_mean() -> None:
    query, key, value = normal(1, 1, 1, 4, 3), normal(2, 1, 1, 6, 3), normal(3, 1, 1, 6, 2)
    options: dict[str, Any] = {"scale": 0.7, "softcap": 2.0, "is_causal": False}
    found = run("Attention", query, key, value, None, None, **options)
    scores = 2 * np.tanh(query[0, 0] @ key[0, 0].T * 0.7 / 2)
    np.testing.assert_allclose(found[0, 0], special.softmax(scores, -1) @ value[0, 0], atol=1e-12)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
@SETTINGS
def test_matrix_products_match_blas(batch: int, rows: int, columns: int) -> None:
    a, b = normal(1, batch, rows, 7), normal(2, batch, 7, columns)
    found = compute("Float.Matmul", a, b)
    for one, left, right in zip(found, a, b, strict=True):
        expected = linalg.blas.dgemm(1.0, left, right)
        np.testing.assert_allclose(one, expected, atol=1e-12)
