"""Our client drives servers that are built from the real crates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import burn_remote as br
from support.burn_programs import burn_server
from support.servers import RunningServer, server

pytestmark = pytest.mark.interop


@pytest.fixture
def theirs() -> Iterator[str]:
    with burn_server() as address:
        yield address


@pytest.fixture(scope="module")
def ours() -> Iterator[RunningServer]:
    with server() as running:
        yield running


def test_a_real_server_is_found_out_by_itself(theirs: str) -> None:
    with br.RemoteDevice(theirs) as device:
        assert device.info["dialect"] == "burn-0.21"
        assert br.arange(5, device=device).tolist() == [0, 1, 2, 3, 4]


def test_a_network_computes_what_numpy_computes(theirs: str) -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape, np.float32) for shape in ((64, 20), (20, 5), (5,)))
    with br.RemoteDevice(theirs, dialect="burn-0.21") as device:
        on_device = [br.tensor(array, device=device) for array in (x, w, b)]
        y = (on_device[0] @ on_device[1] + on_device[2]).relu().softmax(axis=-1)
        seen = y.numpy()
        positive = (on_device[0] > 0).numpy()
    expected = np.exp(np.maximum(x @ w + b, 0))
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    np.testing.assert_array_equal(positive, x > 0)


def test_twenty_thousand_operations_run_in_order(theirs: str) -> None:
    with br.RemoteDevice(theirs) as device:
        x = br.zeros((16, 16), device=device)
        for _ in range(20_000):
            x = x + 1
        assert x.numpy()[0, 0] == 20_000


def test_an_upload_beyond_the_server_s_limit_is_refused_with_the_reason(theirs: str) -> None:
    with br.RemoteDevice(theirs) as device:
        with pytest.raises(br.UsageError, match="67,108,864"):
            br.tensor(np.zeros(20 * 2**20, np.float32), device=device)
        array = np.arange(12 * 2**20, dtype=np.float32)  # 48 MiB, in fragments
        np.testing.assert_array_equal(br.tensor(array, device=device).numpy(), array)


def test_tensors_move_between_a_real_server_and_ours_both_ways(
    theirs: str, ours: RunningServer
) -> None:
    array = np.arange(12, dtype=np.float32)
    with br.RemoteDevice(theirs) as real, br.RemoteDevice(ours.address) as own:
        moved = br.tensor(array, device=real).to(own)
        back = (moved * 2).to(real)
        np.testing.assert_array_equal(moved.numpy(), array)
        np.testing.assert_array_equal(back.numpy(), array * 2)


def test_our_client_speaks_burn_to_our_server_too(ours: RunningServer) -> None:
    with br.RemoteDevice(ours.address, dialect="burn-0.21") as device:
        assert (br.ones((2, 2), device=device) * 3).tolist() == [[3, 3], [3, 3]]
        with pytest.raises(br.OperationFailed, match="99"):
            br.arange(4, device=device).take(br.tensor([99], device=device), axis=0).numpy()
        assert br.ones((1,), device=device).tolist() == [1]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int64"])
def test_integers_that_the_original_loses_or_panics_on_work_on_ours(
    dtype: str, ours: RunningServer
) -> None:
    array = np.array([0, 1, 100], dtype)
    with br.RemoteDevice(ours.address, dialect="burn-0.21") as device:
        tensor = br.tensor(array, device=device)
        np.testing.assert_array_equal(tensor.numpy(), array)
        cast = tensor.astype(br.int32)
        np.testing.assert_array_equal(cast.numpy(), array.astype(np.int32))
