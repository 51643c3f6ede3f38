"""Tests of the rules for Fourier transforms along several axes."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import C64, C128, F64
from burn_remote_protocol.errors import DTypeMismatch, IndexOutOfRange, ShapeMismatch
from burn_remote_protocol.operations.families import fourier_rows
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import f32, i64, made

OPTIONS: dict[str, Any] = {"axes": [0, 2], "sizes": [8, 5], "norm": "Backward"}


@pytest.mark.parametrize("row", [fourier_rows.FFT, fourier_rows.INVERSE_FFT])
def test_transformed_axes_have_the_sizes_of_the_transform(row: Row) -> None:
    spectrum = TensorSpec((4, 3, 6), C128)
    assert made(row, spectrum, **OPTIONS) == (TensorSpec((8, 3, 5), C128),)


def test_the_last_axis_of_a_real_transform_has_half_the_frequencies_and_one() -> None:
    assert made(fourier_rows.REAL_FFT, f32(4, 3, 6), **OPTIONS) == (TensorSpec((8, 3, 3), C64),)


def test_an_inverse_real_transform_gives_all_samples_as_floats() -> None:
    found = made(fourier_rows.INVERSE_REAL_FFT, TensorSpec((8, 3, 3), C128), **OPTIONS)
    assert found == (TensorSpec((8, 3, 5), F64),)


@pytest.mark.parametrize(
    "row", [fourier_rows.FFT, fourier_rows.INVERSE_FFT, fourier_rows.INVERSE_REAL_FFT]
)
def test_frequencies_that_are_no_complex_numbers_are_refused(row: Row) -> None:
    with pytest.raises(DTypeMismatch, match="must be complex"):
        made(row, f32(4, 3, 6), **OPTIONS)


def test_integers_have_no_real_transform() -> None:
    with pytest.raises(DTypeMismatch, match="input"):
        made(fourier_rows.REAL_FFT, i64(4), axes=[0], sizes=[4], norm="Backward")


@pytest.mark.parametrize(
    ("axes", "sizes"), [([], []), ([0, 0], [4, 4]), ([0, 1], [4]), ([0], [0]), ([3], [4])]
)
def test_axes_that_repeat_or_lack_a_size_are_refused(axes: list[int], sizes: list[int]) -> None:
    with pytest.raises((ShapeMismatch, IndexOutOfRange)):
        made(fourier_rows.REAL_FFT, f32(4, 4, 4), axes=axes, sizes=sizes, norm="Backward")


def test_an_empty_axis_is_refused_whatever_the_number_of_samples() -> None:
    with pytest.raises(ShapeMismatch, match=r"float32\[4, 0\] cannot be transformed to 4 samples"):
        made(fourier_rows.REAL_FFT, f32(4, 0), axes=[1], sizes=[4], norm="Backward")
