"""Interpolation and Fourier transforms match their definitions."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(0)


def test_sampling_and_fourier_transforms_match_their_definitions(device: br.Device) -> None:
    a = RNG.random((1, 2, 3, 4))
    x = br.tensor(a, device=device)
    same(F.interpolate(x, scale_factor=2), a.repeat(2, 2).repeat(2, 3))
    same(F.interpolate(x, size=(3, 4), mode="bilinear"), a, 1e-12)
    same(F.interpolate(x[:, :, 0], size=8), a[:, :, 0].repeat(2, 2))
    real, imaginary = F.rfft(x)
    same(real, np.fft.rfft(a).real, 1e-12)
    same(imaginary, np.fft.rfft(a).imag, 1e-12)
    same(F.irfft(real, imaginary), a, 1e-12)
    with pytest.raises(br.UsageError, match="exactly one of size and scale_factor"):
        F.interpolate(x)


# What PyTorch 2.15 computes of [0, 1, 4, 9, 16] with this factor, for which 5 * 1.3 = 6.5.
FACTOR = 1.3
OF_A_FACTOR = {
    "nearest": [0.0, 0.0, 1.0, 4.0, 9.0, 9.0],
    "nearest-exact": [0.0, 1.0, 1.0, 4.0, 9.0, 16.0],
    "linear": [0.0, 0.65384615, 2.26923077, 4.96153846, 8.80769231, 14.11538462],
}
OF_A_FACTOR_CUBIC = [-0.06772019, 0.33828801, 1.95943332, 4.96751252, 8.66687528, 14.47293184]


@pytest.mark.parametrize("mode", OF_A_FACTOR)
def test_elements_are_the_reciprocal_of_the_scale_factor_apart(
    device: br.Device, mode: str
) -> None:
    x = br.tensor([[[0.0, 1.0, 4.0, 9.0, 16.0]]], dtype=br.float64, device=device)
    found = F.interpolate(x, scale_factor=FACTOR, mode=mode)
    same(found, np.array([[OF_A_FACTOR[mode]]]), 1e-8)
    whole = F.interpolate(x, size=6, mode=mode)
    same(F.interpolate(x, scale_factor=1.2, mode=mode), whole.numpy(), 1e-12)
    again = F.interpolate(x, scale_factor=FACTOR, mode=mode, recompute_scale_factor=True)
    same(again, whole.numpy())


def test_nearest_images_of_once_or_twice_the_size_ignore_the_rest_of_the_factor(
    device: br.Device,
) -> None:
    a = RNG.random((1, 2, 3, 8))
    x = br.tensor(a, device=device)
    # 3 * 2.3 = 6.9 and 8 * 1.1 = 8.8. PyTorch repeats rows and keeps columns.
    same(F.interpolate(x, scale_factor=(2.3, 1.1)), a.repeat(2, 2))
    # Signals are sampled 1 / 2.3 elements apart, as in PyTorch.
    same(F.interpolate(x[:, :, :, 0], scale_factor=2.3), a[:, :, [0, 0, 0, 1, 1, 2], 0])


def test_linear_modes_keep_an_axis_whose_size_stays_the_same(device: br.Device) -> None:
    a = RNG.random((1, 2, 4, 4))
    x = br.tensor(a, device=device)
    # 4 * 1.2 = 4.8. PyTorch copies the axis.
    same(F.interpolate(x[:, :, 0], scale_factor=1.2, mode="linear"), a[:, :, 0], 1e-12)
    found = F.interpolate(x, scale_factor=(1.2, 2), mode="bilinear")
    same(found, F.interpolate(x, scale_factor=(1, 2), mode="bilinear").numpy(), 1e-12)


def test_a_cubic_resize_by_a_factor_is_that_of_pytorch(device: br.Device) -> None:
    x = br.tensor([[[[0.0, 1.0, 4.0, 9.0, 16.0]]]], dtype=br.float64, device=device)
    found = F.interpolate(x, scale_factor=(1, FACTOR), mode="bicubic")
    same(found, np.array([[[OF_A_FACTOR_CUBIC]]]), 1e-8)


def test_a_resize_by_a_factor_has_the_gradient_of_its_weights(device: br.Device) -> None:
    x = br.ones((1, 1, 5), dtype=br.float64, device=device)
    grad = br.grad(lambda x: F.interpolate(x, scale_factor=FACTOR, mode="linear").sum())(x)
    columns = [
        F.interpolate(row, scale_factor=FACTOR, mode="linear").sum().item()
        for row in br.eye(5, dtype=br.float64, device=device)[:, None, None]
    ]
    same(grad[0, 0], np.array(columns), 1e-12)


def test_a_float16_resize_by_a_factor_is_rounded_once(device: br.Device) -> None:
    a = RNG.random((1, 1, 7)).astype(np.float16)
    wide = F.interpolate(
        br.tensor(a.astype(np.float32), device=device), scale_factor=FACTOR, mode="linear"
    )
    narrow = F.interpolate(br.tensor(a, device=device), scale_factor=FACTOR, mode="linear")
    same(narrow, wide.numpy().astype(np.float16))


def test_the_mode_area_averages(device: br.Device) -> None:
    a = RNG.random((1, 2, 4, 6))
    x = br.tensor(a, device=device)
    same(
        F.interpolate(x, size=(2, 3), mode="area"), a.reshape(1, 2, 2, 2, 3, 2).mean((3, 5)), 1e-12
    )
    same(
        F.interpolate(x[0], scale_factor=0.5, mode="area"), a[0].reshape(2, 4, 3, 2).mean(3), 1e-12
    )
