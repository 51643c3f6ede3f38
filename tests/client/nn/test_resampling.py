"""Interpolation, grid sampling and Fourier transforms match their definitions."""

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
    rows, columns = np.meshgrid(np.linspace(-1, 1, 3), np.linspace(-1, 1, 4), indexing="ij")
    grid = br.tensor(np.stack([columns, rows], -1)[None], device=device)
    same(F.grid_sample(x, grid, align_corners=True), a, 1e-12)
    real, imaginary = F.rfft(x)
    same(real, np.fft.rfft(a).real, 1e-12)
    same(imaginary, np.fft.rfft(a).imag, 1e-12)
    same(F.irfft(real, imaginary), a, 1e-12)
    with pytest.raises(br.UsageError, match="exactly one of size and scale_factor"):
        F.interpolate(x)
