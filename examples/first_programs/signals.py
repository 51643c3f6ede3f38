"""Signals, images and simulations: an FFT convolution, a stack of images and the heat equation."""

from __future__ import annotations

import numpy as np

import burn_remote as br


def convolution(signal: np.ndarray, kernel: np.ndarray, device: br.Device) -> np.ndarray:
    """Convolve two signals by their spectra."""
    size = len(signal) + len(kernel) - 1
    x, k = br.tensor(signal, device=device), br.tensor(kernel, device=device)
    return br.fft.irfft(br.fft.rfft(x, n=size) * br.fft.rfft(k, n=size), n=size).numpy()


def image_stack(images: np.ndarray, device: br.Device) -> tuple[np.ndarray, np.ndarray]:
    """Normalize 8-bit images ``[n, height, width, 3]``; mark pixels brighter than their mean."""
    x = br.tensor(images, device=device).astype(br.float32) / 255
    gray = x @ br.tensor([0.299, 0.587, 0.114], device=device)
    darkest, brightest = gray.min(axis=(1, 2), keepdims=True), gray.max(axis=(1, 2), keepdims=True)
    gray = (gray - darkest) / (brightest - darkest)
    gray[:, 0, :] = 0.0
    bright = gray > gray.mean(axis=(1, 2), keepdims=True)
    values, counts = br.read([gray, bright.sum(axis=(1, 2))])
    return values, counts


def heat_equation(start: np.ndarray, steps: int, device: br.Device) -> np.ndarray:
    """Let heat spread over a plate ``[rows, columns]`` whose border is kept cold."""
    heat = br.tensor(start, device=device)

    @br.compile
    def step(u: br.Tensor) -> br.Tensor:
        inner = u[1:-1, 1:-1]
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return br.pad(inner + 0.2 * (around - 4 * inner), (1, 1, 1, 1))

    for _ in range(steps):
        heat = step(heat)
    return heat.numpy()
