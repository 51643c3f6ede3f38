"""Upload, computation and reads in every precision, in both dialects."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br

NUMBERS = [0.1, -2.5, 65504.0, 1e-7, np.inf, -np.inf, np.nan, 0.0, -0.0]

HELD = {
    br.float16: np.dtype(np.float16),
    br.bfloat16: np.dtype(ml_dtypes.bfloat16),
    # Burn's flex32: float32 on the wire, but a device may compute with less precision.
    br.flex32: np.dtype(np.float32),
}


@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_rounded_numbers_survive_a_round_trip(device: br.Device, dtype: br.DType) -> None:
    rounded = np.array(NUMBERS).astype(HELD[dtype])
    x = device.tensor(np.array(NUMBERS), dtype=dtype)

    found = x.numpy()
    assert (x.dtype, found.dtype) == (dtype, HELD[dtype])
    assert found.tobytes() == rounded.tobytes()

    doubled = x + x
    assert doubled.dtype is dtype
    with np.errstate(all="ignore"):
        expected = (rounded.astype(np.float32) * 2).astype(HELD[dtype])
    np.testing.assert_array_equal(doubled.numpy().astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_matrix_products_keep_their_dtype(device: br.Device, dtype: br.DType) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(HELD[dtype]) for shape in ((5, 700), (700, 3)))
    product = device.tensor(a, dtype=dtype) @ device.tensor(b, dtype=dtype)

    assert product.dtype is dtype
    found = product.numpy().astype(np.float64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    eps = float(ml_dtypes.finfo(HELD[dtype]).eps)  # type: ignore[no-untyped-call]
    # The sum is in float32 and is rounded once.
    np.testing.assert_allclose(found, exact, rtol=eps / 2, atol=1e-4)


@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_every_precision_converts_to_every_other(device: br.Device, dtype: br.DType) -> None:
    x = device.tensor(np.array([0.1, 300.0, -1e-3], np.float32))
    rounded = np.array([0.1, 300.0, -1e-3], np.float32).astype(HELD[dtype])
    np.testing.assert_array_equal(x.astype(dtype).numpy(), rounded)
    back = x.astype(dtype).astype(br.float32)
    np.testing.assert_array_equal(back.numpy(), rounded.astype(np.float32))
