"""With ``--tf32``, products and convolutions of ``float32`` are rounded to TF32, otherwise not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional
from support.servers import RunningServer, server

pytestmark = pytest.mark.gpu

# Largest errors, relative to the largest result: a mantissa of 10 bits, or of 23.
ROUNDED = 3e-3
EXACT = 1e-5


@pytest.fixture(scope="module")
def rounding() -> Iterator[RunningServer]:
    with server("--backend", "cupy", "--tf32") as running:
        yield running


def errors(running: RunningServer) -> dict[str, float]:
    """Return the largest relative errors of a product, of a batch, and of a captured product."""
    draw = np.random.default_rng(0)
    x, w = (draw.standard_normal((4, 256, 256)) for _ in range(2))
    with br.RemoteDevice(running.address) as device:
        remote = [br.tensor(array, dtype=br.float32, device=device) for array in (x, w)]
        compiled = br.compile(lambda x, w: (x @ w) * 2 + 1)
        one = [array[0] for array in remote]
        for _ in range(8):
            captured = compiled(*one)
        found = {
            "product": ((one[0] @ one[1]).numpy(), x[0] @ w[0]),
            "batch": ((remote[0] @ remote[1]).numpy(), x @ w),
            "captured": (captured.numpy(), x[0] @ w[0] * 2 + 1),
        }
    return {
        name: float(np.abs(ours - exact).max() / np.abs(exact).max())
        for name, (ours, exact) in found.items()
    }


def test_products_are_rounded_where_the_server_allows_it(rounding: RunningServer) -> None:
    for name, error in errors(rounding).items():
        assert EXACT < error < ROUNDED, name


def test_products_are_exact_by_default(gpu_server: RunningServer) -> None:
    for name, error in errors(gpu_server).items():
        assert error < EXACT, name


def test_convolutions_are_rounded_at_most_to_tf32(rounding: RunningServer) -> None:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((2, 16, 12, 12)), draw.standard_normal((8, 16, 3, 3))
    with br.RemoteDevice(rounding.address) as gpu, br.LocalDevice() as cpu:
        images, filters = (
            [br.tensor(a, dtype=br.float32, device=device) for device in (gpu, cpu)] for a in (x, w)
        )
        ours, exact = map(functional.conv2d, images, filters)
        expected = exact.numpy()
        assert np.abs(ours.numpy() - expected).max() < ROUNDED * np.abs(expected).max()
