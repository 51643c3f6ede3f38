"""Server processes of one host transfer tensors by GPU memory handles, or by socket."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.errors import ConnectionLost, OperationFailed
from burn_remote_server.backends import Backend
from burn_remote_server.transfers.outgoing_transfers import MAX_LOANS
from support.servers import RunningServer, server

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]

ON = ("--backend", "cupy", "--cuda-ipc", "true")
OFF = ("--backend", "cupy")

X = np.random.default_rng(7).standard_normal((1500, 2000)).astype(np.float32)


def borrowed(target: RunningServer) -> int:
    """Return how many tensors a server has copied from other processes' GPU memory."""
    return int(target.metric("burn_remote_transfers_borrowed_total"))


def peer_bytes(target: RunningServer) -> int:
    """Return how many bytes a server has received from peers by socket."""
    (found,) = (
        number
        for name, number in target.metrics().items()
        if name.startswith("burn_remote_bytes_total")
        and 'kind="peer"' in name
        and 'direction="received"' in name
    )
    return int(found)


def memory(running: RunningServer, kind: str) -> int:
    """Return how many bytes of its first GPU a server uses or caches."""
    (found,) = (
        number
        for name, number in running.metrics().items()
        if name.startswith("burn_remote_device_memory_bytes")
        and f'kind="{kind}"' in name
        and 'device="0"' in name
    )
    return int(found)


def becomes(holds: Callable[[], bool]) -> bool:
    """Whether a condition holds within five seconds."""
    deadline = time.monotonic() + 5
    while not holds() and time.monotonic() < deadline:
        pass  # each check requests a server's metrics, which takes milliseconds
    return holds()


@contextlib.contextmanager
def two_servers(
    source: tuple[str, ...] = ON, target: tuple[str, ...] = ON, **variables: str
) -> Iterator[tuple[RunningServer, RunningServer]]:
    """Run two processes, the second with these environment variables."""
    with server(*source) as first, server(*target, **variables) as second:
        yield first, second


@contextlib.contextmanager
def devices(*addresses: str) -> Iterator[list[br.RemoteDevice]]:
    """Open a session at each address."""
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(br.RemoteDevice(address)) for address in addresses]


@pytest.fixture(scope="module")
def pair(gpu: Backend) -> Iterator[tuple[RunningServer, RunningServer]]:
    assert gpu.lends_to is not None
    with two_servers() as running:
        yield running


def test_a_tensor_moves_to_another_process_and_back_without_sockets(
    pair: tuple[RunningServer, RunningServer],
) -> None:
    source, target = pair
    before = [(borrowed(each), peer_bytes(each)) for each in pair]
    with devices(source.address, target.address) as (a, b):
        x = br.tensor(X, device=a)
        for _ in range(10):
            # The lent memory may be overwritten at once; the copy must have the old elements.
            x = ((x * 2).to(b) + 1).to(a) * 0.5 - 0.5
        np.testing.assert_array_equal(x.to(b).numpy(), x.numpy())
        np.testing.assert_allclose(x.numpy(), X, atol=1e-5)
    after = [(borrowed(each), peer_bytes(each)) for each in pair]
    assert [new[0] - old[0] for new, old in zip(after, before, strict=True)] == [10, 11]
    assert all(new[1] - old[1] < 10_000 for new, old in zip(after, before, strict=True))


@pytest.mark.parametrize(
    "array",
    [
        X > 0,
        X.astype(np.float16),
        np.arange(5_000_003, dtype=np.int64),
        np.random.default_rng(1).integers(0, 256, 2**28 + 1, dtype=np.uint8),
    ],
    ids=["truth values", "float16", "int64", "256 MiB and a byte"],
)
def test_elements_of_other_dtypes_arrive_unchanged(
    pair: tuple[RunningServer, RunningServer], array: Array
) -> None:
    source, target = pair
    before = borrowed(target)
    with devices(source.address, target.address) as (a, b):
        np.testing.assert_array_equal(br.tensor(array, device=a).to(b).numpy(), array)
    assert borrowed(target) == before + 1


def test_a_transposed_tensor_arrives_in_order(pair: tuple[RunningServer, RunningServer]) -> None:
    source, target = pair
    before = borrowed(target)
    with devices(source.address, target.address) as (a, b):
        np.testing.assert_array_equal(br.tensor(X, device=a).T.to(b).numpy(), X.T)
        flags = (br.tensor(X, device=a) > 0).T
        np.testing.assert_array_equal((~flags.to(b)).numpy(), (X <= 0).T)
    assert borrowed(target) == before + 2


@pytest.mark.parametrize("value", ["Q8S", "Q4F"])
def test_a_quantized_tensor_keeps_its_integers_and_scales(
    pair: tuple[RunningServer, RunningServer], value: str
) -> None:
    source, target = pair
    before = borrowed(target)
    scheme = br.quant_scheme(value, block=32)
    numbers = np.random.default_rng(2).standard_normal((2048, 2048)).astype(np.float32)
    with devices(source.address, target.address) as (a, b):
        held = br.quantize(br.tensor(numbers, device=a), scheme)
        moved = held.to(b)
        for ours, theirs in zip(br.read_quantized(held), br.read_quantized(moved), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert borrowed(target) == before + 1


def test_concurrent_moves_between_many_sessions_do_not_mix(
    pair: tuple[RunningServer, RunningServer],
) -> None:
    source, target = pair
    before = borrowed(target)
    sessions, moves = 6, 10
    assert sessions * moves <= MAX_LOANS  # beyond it, tensors go through the socket

    def run(number: int) -> None:
        with (
            br.RemoteDevice(source.address, token=f"a{number}") as a,
            br.RemoteDevice(target.address, token=f"b{number}") as b,
        ):
            sent = [br.full((600_000 + k,), number * 100 + k, device=a).to(b) for k in range(moves)]
            for k, array in enumerate(br.read(sent)):
                np.testing.assert_array_equal(array, number * 100 + k)

    with ThreadPoolExecutor(sessions) as pool:
        list(pool.map(run, range(sessions)))
    assert borrowed(target) == before + sessions * moves


@pytest.mark.parametrize(("source", "target"), [(ON, OFF), (OFF, ON), (OFF, OFF)])
def test_the_socket_is_used_if_one_process_does_not_allow_handles(
    gpu: Backend, source: tuple[str, ...], target: tuple[str, ...]
) -> None:
    with (
        two_servers(source, target) as (first, second),
        devices(first.address, second.address) as (a, b),
    ):
        np.testing.assert_array_equal(br.tensor(X, device=a).to(b).numpy(), X)
        assert borrowed(second) == 0
        assert peer_bytes(second) > X.nbytes


def test_a_processor_fetches_from_a_gpu_by_socket(gpu: Backend) -> None:
    with (
        two_servers(ON, ("--cuda-ipc", "true")) as (first, second),
        devices(first.address, second.address) as (a, b),
    ):
        np.testing.assert_array_equal(br.tensor(X, device=a).to(b).to(a).numpy(), X)


def test_lent_memory_is_freed_after_the_copy(gpu: Backend) -> None:
    size = 2**28
    with two_servers() as (first, second), devices(first.address, second.address) as (a, b):
        before = memory(first, "used")
        moved = br.ones((size // 4,), device=a).to(b)
        assert float(moved.sum().item()) == size // 4
        a.sync()
        # The source may keep only the block, for the next loan.
        assert becomes(lambda: memory(first, "used") - before < 2**20)
        assert memory(second, "used") >= size
        for _ in range(5):
            assert float(br.ones((size // 4,), device=a).to(b).sum().item()) == size // 4
        a.sync()
        assert memory(first, "cached") < 3 * size
        del moved


def test_the_socket_is_used_if_there_is_no_memory_for_a_loan(gpu: Backend) -> None:
    source = (*ON, "--device-memory", "96MiB", "--max-session-bytes", "90MiB")
    with two_servers(source) as (first, second), devices(first.address, second.address) as (a, b):
        array = np.arange(2**24, dtype=np.float32)  # 64 MiB
        np.testing.assert_array_equal(br.tensor(array, device=a).to(b).numpy(), array)
        assert borrowed(second) == 0


@pytest.mark.parametrize("sees", ["its own GPU only", "both GPUs"])
def test_a_process_on_another_gpu_copies_too(gpu: Backend, sees: str) -> None:
    if gpu.device_count < 2:
        pytest.skip(f"needs two GPUs; there is {gpu.device_count}")
    alone = sees == "its own GPU only"
    flags = ON if alone else (*ON, "--device-count", "2")
    variables = {"CUDA_VISIBLE_DEVICES": "1"} if alone else {}
    with two_servers(flags, flags, **variables) as (first, second):
        place = second.address if alone else f"{second.address}/1"
        with devices(first.address, place) as (a, b):
            x = br.tensor(X, device=a)
            for _ in range(5):
                x = (x.to(b) + 1).to(a) - 1
            np.testing.assert_allclose(x.numpy(), X, atol=1e-5)
            assert (borrowed(first), borrowed(second)) == (5, 5)


def test_a_server_survives_the_death_of_its_lender_or_borrower(gpu: Backend) -> None:
    with server(*ON) as staying, br.RemoteDevice(staying.address) as here:
        used = memory(staying, "used")
        for _ in range(3):
            with server(*ON) as other, br.RemoteDevice(other.address) as there:
                x = br.tensor(X, device=here)
                moved = [x.to(there) for _ in range(20)]
                back = [br.ones((10**6,), device=there).to(here) for _ in range(20)]
                moved[-1].shape  # noqa: B018 - the moves were sent
                here.sync()
                other.kill()
                for each in back:
                    # Either a typed error or the right elements.
                    with contextlib.suppress(OperationFailed, ConnectionLost):
                        np.testing.assert_array_equal(each.numpy(), 1)
                del moved, back, each
        np.testing.assert_array_equal(br.tensor(X, device=here).numpy(), X)
        here.sync()
        del x
        # Tensors whose target died are exposed again and expire.
        assert memory(staying, "used") - used < 100 * X.nbytes
