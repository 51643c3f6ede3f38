"""Quantized tensors on a GPU are identical to NumPy's byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burn_remote as br
from burn_remote_server.backends import Backend
from support.servers import RunningServer, server

pytestmark = pytest.mark.gpu

X = np.random.default_rng(11).standard_normal((96, 128)).astype(np.float32)


@pytest.fixture(scope="module")
def running(gpu: Backend) -> Iterator[RunningServer]:
    assert gpu.name == "cupy"
    with server("--backend", "cupy") as started:
        yield started


@pytest.mark.parametrize("block", [None, 32, (2, 64)])
@pytest.mark.parametrize("value", ["Q8S", "Q8F", "Q4S", "Q4F", "Q2S", "Q2F"])
def test_integers_scales_and_dequantized_numbers_equal_numpys(
    running: RunningServer, value: str, block: int | tuple[int, int] | None
) -> None:
    scheme = br.quant_scheme(value, block=block)
    with br.RemoteDevice(running.address) as device, br.LocalDevice() as numpy:
        seen, expected = (br.quantize(one.tensor(X), scheme) for one in (device, numpy))
        for ours, theirs in zip(br.read_quantized(seen), br.read_quantized(expected), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(seen.dequantize().numpy(), expected.dequantize().numpy())
        there_and_back = seen.to(numpy).to(device)
        np.testing.assert_array_equal(
            br.read_quantized(there_and_back).values, br.read_quantized(expected).values
        )


def test_moved_values_keep_their_integers(running: RunningServer) -> None:
    with br.RemoteDevice(running.address) as device:
        quantized = br.quantize(device.tensor(X), br.quant_scheme("Q4S"))
        values = br.read_quantized(quantized).values
        turned = br.read_quantized(quantized.permute_dims((1, 0)))
        np.testing.assert_array_equal(turned.values, values.T)
        product = device.tensor(X) @ quantized.permute_dims((1, 0))
        np.testing.assert_allclose(
            product.numpy(), X @ quantized.dequantize().numpy().T, rtol=1e-3, atol=1e-3
        )
