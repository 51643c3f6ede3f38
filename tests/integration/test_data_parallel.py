"""Data-parallel training on servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.servers import RunningServer, server

random = np.random.default_rng(0)
X = random.normal(size=(40, 16)).astype(np.float32)
Y = random.integers(0, 4, 40)
PARAMS = [
    random.normal(size=(16, 600)).astype(np.float32) / 4,
    np.zeros((600,), np.float32),
    random.normal(size=(600, 4)).astype(np.float32) / 4,
]


def loss_of(params: list[br.Tensor], x: br.Tensor, y: br.Tensor) -> br.Tensor:
    return F.cross_entropy((x @ params[0] + params[1]).relu() @ params[2], y)


def trained(devices: Sequence[br.Device], **options: Any) -> tuple[list[Any], list[br.Traffic]]:
    """Return the parameters of all members after four steps, and the traffic of these steps."""
    trainer = br.DataParallel(loss_of, PARAMS, devices, optimizer=br.optim.Adam(lr=0.01), **options)
    trainer.group.sync()
    before = [device.traffic for device in devices]
    for start in range(0, 40, 11):
        trainer.step(X[start : start + 11], Y[start : start + 11])
    used = [device.traffic - past for device, past in zip(devices, before, strict=True)]
    return [br.read(one) for one in trainer.replicas], used


@pytest.fixture(scope="module")
def third_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
@pytest.mark.parametrize(
    "options", [{}, {"compiles": True}, {"shards_state": True}, {"bucket_bytes": 10_000}], ids=str
)
def test_training_on_servers_equals_one_device(
    first_server: RunningServer,
    second_server: RunningServer,
    third_server: RunningServer,
    dialect: str,
    options: dict[str, Any],
) -> None:
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(br.RemoteDevice(one.address, dialect=dialect))
            for one in (first_server, second_server, third_server)
        ]
        replicas, used = trained(members, **options)
        (wanted,), _ = trained([stack.enter_context(br.LocalDevice())])
    for replica in replicas:
        for one, first, alone in zip(replica, replicas[0], wanted, strict=True):
            assert one.tobytes() == first.tobytes()
            np.testing.assert_allclose(one, alone, rtol=0, atol=1e-6)
    if dialect == "native":
        assert sum(one.requests for one in used) == 0


def test_training_leaves_only_parameters_and_state(first_server: RunningServer) -> None:
    with (
        server() as other,
        br.RemoteDevice(first_server.address) as a,
        br.RemoteDevice(other.address) as b,
    ):
        trainer = br.DataParallel(loss_of, PARAMS, [a, b], optimizer=br.optim.Adam(lr=0.01))

        def held() -> float:
            trainer.group.sync()
            trainer.group.sync()  # carries the drops of what the first one waited for
            return other.metric("burn_remote_tensors") + other.metric("burn_remote_transfers_open")

        trainer.step(X, Y)
        before = held()
        for _ in range(3):
            trainer.step(X, Y)
        with trainer.no_sync():
            trainer.backward(X, Y)
        trainer.zero_grad()
        assert held() == before
