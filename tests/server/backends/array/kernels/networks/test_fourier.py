"""Fourier transforms follow the definition, and their inverse restores the signal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.tensors import TensorSpec
from support.module_kernels import Array, call_kernel, normal, run, spec_of


def cut(x: Array, dim: int, n: int) -> Array:
    """Truncate ``x`` or pad it with zeros to ``n`` along ``dim``."""
    moved = np.moveaxis(x, dim, 0)
    result = np.zeros((n, *moved.shape[1:]), moved.dtype)
    result[: min(n, len(moved))] = moved[:n]
    return np.moveaxis(result, 0, dim)


@given(st.integers(0, 2), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 12)))
@settings(deadline=None)
def test_a_spectrum_matches_its_definition(dim: int, length: int, n: int | None) -> None:
    shape = [2, 3, 2]
    shape[dim] = length
    signal = normal(1, *shape)
    samples = length if n is None else n
    real, imaginary = run("Rfft", signal, dim=dim, n=n)
    places = np.arange(samples)
    waves = np.exp(-2j * np.pi * np.outer(places[: samples // 2 + 1], places) / samples)
    expected = np.moveaxis(np.tensordot(waves, cut(signal, dim, samples), (1, dim)), 0, dim)
    np.testing.assert_allclose(real + 1j * imaginary, expected, rtol=1e-9, atol=1e-9)


@given(st.integers(0, 1), st.integers(1, 9))
def test_the_inverse_restores_the_signal(dim: int, length: int) -> None:
    signal = normal(2, *((length, 3) if dim == 0 else (3, length)))
    real, imaginary = run("Rfft", signal, dim=dim, n=None)
    found = run("IRfft", real, imaginary, dim=dim, n=length)
    np.testing.assert_allclose(found, signal, rtol=1e-9, atol=1e-9)
    if length > 1 and length % 2 == 0:
        default = run("IRfft", real, imaginary, dim=dim, n=None)
        np.testing.assert_allclose(default, signal, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_dtype_is_kept(dtype: type[np.floating]) -> None:
    real, imaginary = run("Rfft", normal(3, 8, dtype=dtype), dim=0, n=None)
    assert real.dtype == imaginary.dtype == run("IRfft", real, imaginary, dim=0, n=4).dtype == dtype


def test_invalid_axes_and_sizes_are_refused() -> None:
    x = np.zeros((2, 3))
    with pytest.raises(ShapeMismatch, match=r"^Rfft: dim is 2, expected one of the 2 axes"):
        call_kernel("Rfft", x, dim=2, n=None)
    with pytest.raises(ShapeMismatch, match=r"^Rfft: n is 0, expected at least 1"):
        call_kernel("Rfft", x, dim=1, n=0)
    with pytest.raises(ShapeMismatch, match=r"^IRfft: n is 0, expected at least 1"):
        call_kernel("IRfft", x[:, :1], x[:, :1], dim=1, n=None)
    with pytest.raises(ShapeMismatch, match=r"^IRfft: shape of input_im"):
        call_kernel("IRfft", x, x[:1], dim=1, n=None)


def test_a_wrong_declared_size_is_refused() -> None:
    x = np.zeros((2, 4))
    wrong = TensorSpec((2, 4), spec_of(x).dtype)
    with pytest.raises(ShapeMismatch, match=r"shape of spectrum is \[2, 3\], expected \[2, 4\]"):
        call_kernel("Rfft", x, dim=1, n=None, out=(wrong, wrong))
