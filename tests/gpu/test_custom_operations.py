"""A custom operation runs on NumPy's and CuPy's arrays from one definition."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_server.backends import Backend
from support.servers import RunningServer, server

EXAMPLES = Path(__file__).parents[2] / "examples"
ADDED = ("--custom-operations", "custom_operations")


@pytest.fixture(scope="module", params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def running(request: pytest.FixtureRequest, search_path: str) -> Iterator[RunningServer]:
    if request.param == "cupy":
        gpu: Backend = request.getfixturevalue("gpu")
        assert gpu.name == "cupy"
    with server("--backend", request.param, *ADDED, PYTHONPATH=search_path) as started:
        yield started


@pytest.fixture(scope="module")
def search_path() -> str:
    return ":".join([*sys.path, str(EXAMPLES)])


def test_the_example_operation_computes_on_both_backends(running: RunningServer) -> None:
    x: Any = np.random.default_rng(2).standard_normal((64, 1000)).astype(np.float32)
    with br.RemoteDevice(running.address) as device:
        remote = device.tensor(x)
        gated = br.custom("swish_gate", remote, remote, outputs=br.TensorSpec(x.shape, br.float32))
        rows = br.TensorSpec((64,), br.float32)
        mean, spread = br.custom("mean_and_spread", gated, outputs=[rows, rows])

        expected = x * x / (1 + np.exp(-x))
        np.testing.assert_allclose(gated.numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mean.numpy(), expected.mean(1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(spread.numpy(), np.ptp(expected, axis=1), rtol=1e-5)
        with pytest.raises(br.Unsupported, match="it has mean_and_spread, swish_gate"):
            br.custom("swish", remote, outputs=rows).numpy()
