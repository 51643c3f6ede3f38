"""Samples of images at the points of a grid match their definition."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(0)
# Inside of the image, next to its edges, and far outside.
POINTS = RNG.uniform(-3.0, 3.0, (2, 4, 3, 2))
IMAGES = RNG.normal(size=(2, 3, 5, 4))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_grid_of_the_pixels_samples_the_image(device: br.Device, mode: str) -> None:
    a = RNG.random((1, 2, 3, 4))
    rows, columns = np.meshgrid(np.linspace(-1, 1, 3), np.linspace(-1, 1, 4), indexing="ij")
    grid = br.tensor(np.stack([columns, rows], -1)[None], device=device)
    same(F.grid_sample(br.tensor(a, device=device), grid, mode, align_corners=True), a, 1e-12)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("point", [(np.nan, 0.9), (np.inf, -0.9), (0.9, -np.inf), (-1.0, np.nan)])
def test_a_point_without_a_finite_position_samples_the_centre_of_the_border_mode(
    device: br.Device, point: tuple[float, float], align_corners: bool
) -> None:
    image = np.arange(9.0, dtype=np.float32).reshape(1, 1, 3, 3)
    grid = np.full((1, 1, 1, 2), point, np.float32)

    sampled = F.grid_sample(
        device.tensor(image),
        device.tensor(grid),
        padding_mode="border",
        align_corners=align_corners,
    )

    # As Burn 0.21's CPU server, also where the other coordinate is finite.
    assert sampled.item() == image[0, 0, 1, 1]


def cubic_weight(away: float) -> float:
    """Return Keys' kernel with the parameter -3/4."""
    away, a = abs(away), -0.75
    if away <= 1:
        return (a + 2) * away**3 - (a + 3) * away**2 + 1
    return a * away**3 - 5 * a * away**2 + 8 * a * away - 4 * a if away < 2 else 0.0


def reflected(place: int, size: int, align_corners: bool) -> int:
    """Return a pixel of the image continued by reflections, which repeats its edge or does not."""
    period = max(2 * (size - 1), 1) if align_corners else 2 * size
    place %= period
    return min(place, period - place if align_corners else period - 1 - place)


def bicubic_sample(
    images: np.ndarray, grid: np.ndarray, padding: str, align_corners: bool
) -> np.ndarray:
    height, width = images.shape[2:]
    result = np.zeros((*images.shape[:2], *grid.shape[1:3]))
    for at in np.ndindex(grid.shape[:3]):
        scales = ((width - 1, height - 1) if align_corners else (width, height)) / np.array(2)
        x, y = (grid[at] + 1) * scales - (0.0 if align_corners else 0.5)
        for row in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
            for column in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
                i, j = row, column
                if padding == "reflection":
                    i, j = reflected(i, height, align_corners), reflected(j, width, align_corners)
                if padding == "border":
                    i, j = np.clip(i, 0, height - 1), np.clip(j, 0, width - 1)
                if 0 <= i < height and 0 <= j < width:
                    weight = cubic_weight(y - row) * cubic_weight(x - column)
                    result[at[0], :, at[1], at[2]] += weight * images[at[0], :, i, j]
    return result


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_bicubic_samples_and_their_gradients_match_the_definition(
    device: br.Device, padding: str, align_corners: bool
) -> None:
    x, grid = br.tensor(IMAGES, device=device), br.tensor(POINTS, device=device)

    def sampled(images: br.Tensor, points: br.Tensor) -> br.Tensor:
        return F.grid_sample(images, points, "bicubic", padding, align_corners)

    expected = bicubic_sample(IMAGES, POINTS, padding, align_corners)
    same(sampled(x, grid), expected, 1e-10)
    shares = RNG.normal(size=expected.shape)
    of_images, of_points = br.vjp(sampled, x, grid)[1](br.tensor(shares, device=device))
    for argument, gradient in ((IMAGES, of_images), (POINTS, of_points)):
        step = RNG.normal(size=argument.shape) * 1e-6
        one, two = (
            bicubic_sample(
                IMAGES + (sign * step if argument is IMAGES else 0),
                POINTS + (sign * step if argument is POINTS else 0),
                padding,
                align_corners,
            )
            for sign in (1, -1)
        )
        slope = ((one - two) * shares).sum() / 2e-6
        same((gradient * br.tensor(step * 1e6, device=device)).sum(), slope, 1e-4)


def test_bicubic_samples_of_float16_have_its_dtype(device: br.Device) -> None:
    x = br.tensor(IMAGES, dtype=br.float16, device=device)
    grid = br.tensor(POINTS, dtype=br.float16, device=device)
    exact = bicubic_sample(x.numpy().astype(float), grid.numpy().astype(float), "border", False)
    found = F.grid_sample(x, grid, "bicubic", "border")
    assert found.dtype == br.float16
    same(found.astype(br.float64), exact, 3e-3)


def test_an_image_without_samples_is_sampled(device: br.Device) -> None:
    x = br.ones((2, 3, 4, 5), device=device)
    assert F.grid_sample(x, br.ones((2, 0, 6, 2), device=device), "bicubic").shape == (2, 3, 0, 6)


@pytest.mark.parametrize("mode", ["nearest-exact", "lanczos3", "linear"])
def test_a_mode_of_interpolations_only_is_refused_by_the_call(device: br.Device, mode: str) -> None:
    with pytest.raises(br.UsageError, match="mode must be one of bilinear, nearest, bicubic, not"):
        F.grid_sample(
            br.ones((1, 1, 4, 4), device=device), br.ones((1, 2, 2, 2), device=device), mode
        )


def test_invalid_arguments_of_bicubic_samples_are_refused(device: br.Device) -> None:
    x = br.ones((1, 1, 4, 4), device=device)
    with pytest.raises(br.ShapeMismatch, match="grid"):
        F.grid_sample(x, br.ones((2, 2, 2, 2), device=device), "bicubic")
    with pytest.raises(br.DTypeMismatch, match="grid"):
        F.grid_sample(x, br.ones((1, 2, 2, 2), dtype=br.float64, device=device), "bicubic")
    with pytest.raises(br.DTypeMismatch, match="input"):
        F.grid_sample(x.astype(br.int64), br.ones((1, 2, 2, 2), device=device), "bicubic")
