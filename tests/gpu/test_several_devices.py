"""One server offers several GPUs at separate paths and moves tensors between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burn_remote as br
from burn_remote_server.backends import Backend
from support.servers import RunningServer, server

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def two_gpus(gpu: Backend) -> Iterator[RunningServer]:
    if gpu.device_count < 2:
        pytest.skip(f"needs two GPUs; there is {gpu.device_count}")
    with server("--backend", "cupy", "--device-count", "2") as running:
        yield running


def test_tensors_move_from_gpu_to_gpu_and_back(two_gpus: RunningServer) -> None:
    array = np.random.default_rng(0).standard_normal((2000, 3000), np.float32)
    with (
        br.RemoteDevice(two_gpus.address) as first,
        br.RemoteDevice(f"{two_gpus.address}/1") as second,
    ):
        x = br.tensor(array, device=first)
        for _ in range(20):
            # The other GPU's memory must not be overwritten before it has been read.
            x = (x.T.to(second) + 1).T.to(first) - 1
        np.testing.assert_allclose(x.numpy(), array, atol=1e-4)
        flags = (br.tensor(array, device=first) > 0).to(second)
        np.testing.assert_array_equal(flags.numpy(), array > 0)


def test_both_gpus_compute_concurrently(two_gpus: RunningServer) -> None:
    with (
        br.RemoteDevice(two_gpus.address) as first,
        br.RemoteDevice(f"{two_gpus.address}/1") as second,
    ):
        results = []
        for device in (first, second):
            x = br.eye(2048, device=device)
            for _ in range(50):
                x = x @ x
            results.append(x + 1)
        for result in results:
            np.testing.assert_array_equal(result.numpy(), 1 + np.eye(2048, dtype=np.float32))
