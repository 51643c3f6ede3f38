"""Collectives between two GPUs by NCCL: of one server, and of two servers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.distributed import Group
from burn_remote_server.backends import Backend
from support.collectives import COMBINE, FLOATS, INTEGERS, elements, same_bits
from support.servers import RunningServer, server

pytestmark = pytest.mark.gpu

FLAGS = ("--backend", "cupy", "--nccl", "true")


@pytest.fixture(scope="module", autouse=True)
def _two_gpus(gpu: Backend) -> None:
    if gpu.device_count < 2:
        pytest.skip(f"needs two GPUs; there is {gpu.device_count}")
    if not gpu.has_communicators:
        pytest.skip("CuPy has no NCCL here")


@contextlib.contextmanager
def two_servers() -> Iterator[list[RunningServer]]:
    with (
        server(*FLAGS, CUDA_VISIBLE_DEVICES="0") as first,
        server(*FLAGS, CUDA_VISIBLE_DEVICES="1") as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module", params=["one server", "two servers"])
def devices(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    with contextlib.ExitStack() as stack:
        if request.param == "one server":
            running = stack.enter_context(server(*FLAGS, "--device-count", "2"))
            addresses = [running.address, f"{running.address}/1"]
        else:
            addresses = [one.address for one in stack.enter_context(two_servers())]
        yield [stack.enter_context(br.RemoteDevice(address)) for address in addresses]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_reductions_of_every_dtype_have_numpys_bits_on_both_gpus(
    devices: list[Any], dtype: str
) -> None:
    shapes: list[tuple[int, ...]] = [(6, 5), (300_000,), (0, 2)]
    with Group(devices) as group:
        assert group.engine == "nccl"
        for op in COMBINE if dtype in FLOATS else [op for op in COMBINE if op != "mean"]:
            buckets = [
                [elements(2 * place + n, shape, dtype) for n, shape in enumerate(shapes)]
                for place in range(2)
            ]
            values = [
                [br.tensor(one, device=device) for one in bucket]
                for device, bucket in zip(devices, buckets, strict=True)
            ]
            wanted = [
                COMBINE[op](pair).astype(pair[0].dtype) for pair in zip(*buckets, strict=True)
            ]
            for made in group.all_reduce(values, op):
                assert all(map(same_bits, br.read(made), wanted)), op
            assert all(map(same_bits, br.read(group.reduce(values, op, root=1)), wanted)), op
            for rank, made in enumerate(group.reduce_scatter(values, op)):
                parts = [np.array_split(one, 2)[rank] for one in wanted]
                assert all(map(same_bits, br.read(made), parts)), op


@pytest.mark.parametrize("dtype", ["bool", *FLOATS, *INTEGERS])
def test_elements_of_every_dtype_are_copied(devices: list[Any], dtype: str) -> None:
    arrays = [elements(n, (6, 4), "float32" if dtype == "bool" else dtype) for n in range(2)]
    arrays = [one > 0 for one in arrays] if dtype == "bool" else arrays
    values = [br.tensor(one, device=device) for one, device in zip(arrays, devices, strict=True)]
    with Group(devices) as group:
        joined = np.concatenate(arrays)
        assert all(same_bits(x.numpy(), joined) for x in group.all_gather(values))
        assert all(same_bits(x.numpy(), arrays[1]) for x in group.broadcast(values[1]))
        parts = [np.array_split(one, 2) for one in arrays]
        for rank, x in enumerate(group.all_to_all(values)):
            assert same_bits(x.numpy(), np.concatenate([own[rank] for own in parts]))
        # Not in C order.
        for x in group.all_gather([x.T for x in values]):
            assert same_bits(x.numpy(), np.concatenate([one.T for one in arrays]))
        group.barrier()
        group.sync()


@pytest.mark.parametrize("dtype", FLOATS)
def test_minima_and_maxima_of_nan_are_nan(devices: list[Any], dtype: str) -> None:
    given = [[1.0, np.nan, 2.0, -1.0], [np.nan, 1.0, -3.0, 4.0]]
    values = [
        br.tensor(one, dtype=getattr(br, dtype), device=device)
        for one, device in zip(given, devices, strict=True)
    ]
    with Group(devices) as group:
        for op, wanted in (("min", [np.nan, np.nan, -3, -1]), ("max", [np.nan, np.nan, 2, 4])):
            for x in group.all_reduce(values, op):
                np.testing.assert_array_equal(x.astype(br.float32).numpy(), wanted)


def test_a_chain_of_collectives_and_several_groups_at_once(devices: list[Any]) -> None:
    with Group(devices) as one, Group(devices[::-1]) as other:
        values = [br.ones((2**16,), device=device) for device in devices]
        for _ in range(5):
            values = one.all_reduce(values)
            values = other.all_reduce(values[::-1], "mean")[::-1]
        assert all(float(x[-1].item()) == 2**5 for x in values)


def test_replicas_of_two_gpus_have_the_same_bits(devices: list[Any]) -> None:
    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        return ((x @ weights["a"]).tanh() @ weights["b"] - y).square().mean()

    random = np.random.default_rng(0)
    x = random.normal(size=(65, 8)).astype("float32")
    start = {
        "a": random.normal(size=(8, 16)).astype("float32"),
        "b": random.normal(size=(16, 1)).astype("float32"),
    }
    with Group(devices) as group:
        trainer = br.DataParallel(loss_of, start, group, optimizer=br.optim.SGD(lr=0.1))
        for _ in range(5):
            trainer.step(x, x[:, :1])
        first, second = trainer.replicas
        assert all(same_bits(first[name].numpy(), second[name].numpy()) for name in start)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_gpu_is_named_and_the_other_computes_on(fault: signal.Signals) -> None:
    with two_servers() as running, br.RemoteDevice(running[0].address) as kept:
        lost = br.RemoteDevice(running[1].address)
        group = Group([kept, lost], timeout_seconds=2.0)
        assert group.engine == "nccl"
        values = [br.ones((2**22,), device=device) for device in (kept, lost)]
        assert group.failure() is None
        for _ in range(200):  # some are in flight
            group.all_reduce(values)
        running[1].process.send_signal(fault)
        with pytest.raises(br.CollectiveFailed) as failed:
            group.all_reduce(values)[0][:1].numpy()
        assert (failed.value.member, failed.value.address) == (1, running[1].address)
        assert float((values[0] + 1).sum().item()) == 2 * 2**22
        running[1].kill()
        group.close()
        kept.session.take_failures()
        with contextlib.suppress(br.BurnRemoteError):
            lost.close(0)
