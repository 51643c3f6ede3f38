"""Data-parallel training on servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import RunnerClient, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote_protocol.collectives import CollectiveCall
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData
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


def trained(
    devices: Sequence[br.Device], engine: str = "moves", **options: Any
) -> tuple[list[Any], list[br.Traffic]]:
    """Return the parameters of all members after four steps, and the traffic of these steps."""
    group = br.distributed.Group(devices, engine=engine)
    trainer = br.DataParallel(loss_of, PARAMS, group, optimizer=br.optim.Adam(lr=0.01), **options)
    group.sync()
    before = [device.traffic for device in devices]
    for start in range(0, 40, 11):
        trainer.step(X[start : start + 11], Y[start : start + 11])
    used = [device.traffic - past for device, past in zip(devices, before, strict=True)]
    replicas = [br.read(one) for one in trainer.replicas]
    group.close()
    return replicas, used


@pytest.fixture(scope="module")
def third_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


class Recorder(ForwardingRunner):
    """Records the operations and collectives of a device, in order."""

    def __init__(self, inner: RunnerClient) -> None:
        super().__init__(inner)
        self.calls: list[str] = []

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        self.calls.append(str(signature.row))
        return super().register_op(signature, inputs)

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        self.calls.append("collective")
        return super().collective(group, call, inputs)


def test_servers_exchange_a_bucket_while_the_backward_pass_goes_on(
    first_server: RunningServer, second_server: RunningServer
) -> None:
    with br.RemoteDevice(first_server.address) as a, br.RemoteDevice(second_server.address) as b:
        with br.DataParallel(loss_of, PARAMS, [a, b], bucket_bytes=1) as trainer:
            batch = trainer.split(X, Y)
            recorder = Recorder(a.client)
            a.client = recorder
            trainer.backward(batch)
            a.client = recorder.inner
        assert recorder.calls.count("collective") == len(PARAMS) + 1  # and the loss
        products = [place for place, call in enumerate(recorder.calls) if "Matmul" in call]
        assert recorder.calls.index("collective") < products[-1]
        with pytest.raises(br.UsageError, match="was closed"):
            trainer.backward(batch)


def test_automatic_graphs_change_no_bit(
    first_server: RunningServer, second_server: RunningServer
) -> None:
    made = []
    for is_automatic in (False, True):
        with contextlib.ExitStack() as stack:
            members = [
                stack.enter_context(br.RemoteDevice(one.address, automatic_graphs=is_automatic))
                for one in (first_server, second_server)
            ]
            made.append(trained(members, "ring")[0][0])
    for one, other in zip(*made, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("dialect", "engine"), [("native", "ring"), ("native", "moves"), ("burn-0.21", "moves")]
)
@pytest.mark.parametrize(
    "options", [{}, {"compiles": True}, {"shards_state": True}, {"bucket_bytes": 10_000}], ids=str
)
def test_training_on_servers_equals_one_device(
    first_server: RunningServer,
    second_server: RunningServer,
    third_server: RunningServer,
    dialect: str,
    engine: str,
    options: dict[str, Any],
) -> None:
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(br.RemoteDevice(one.address, dialect=dialect))
            for one in (first_server, second_server, third_server)
        ]
        replicas, used = trained(members, engine, **options)
        (wanted,), _ = trained([stack.enter_context(br.LocalDevice())])
    for replica in replicas:
        for one, first, alone in zip(replica, replicas[0], wanted, strict=True):
            assert one.tobytes() == first.tobytes()
            np.testing.assert_allclose(one, alone, rtol=0, atol=1e-6)
    if dialect == "native":
        assert sum(one.requests for one in used) == 0


def tensors_of(group: br.distributed.Group, *servers: RunningServer) -> float:
    """Return how many tensors servers have once they have executed everything."""
    # Each member carries out its collectives in order: those before this one are done.
    br.read(group.all_reduce([br.ones((), device=device) for device in group.devices]))
    group.sync()
    group.sync()  # sends the drops of the tensors for which the first sync waited
    names = ("burn_remote_tensors", "burn_remote_transfers_open")
    return sum(one.metric(name) for one in servers for name in names)


@pytest.mark.parametrize("engine", ["ring", "moves"])
def test_training_leaves_only_parameters_and_state(
    first_server: RunningServer, engine: str
) -> None:
    with (
        server() as other,
        br.RemoteDevice(first_server.address) as a,
        br.RemoteDevice(other.address) as b,
    ):
        group = br.distributed.Group([a, b], engine=engine)
        trainer = br.DataParallel(loss_of, PARAMS, group, optimizer=br.optim.Adam(lr=0.01))
        trainer.step(X, Y)
        before = tensors_of(group, other)
        for _ in range(3):
            trainer.step(X, Y)
        with trainer.no_sync():
            trainer.backward(X, Y)
        trainer.zero_grad()
        assert tensors_of(group, other) == before


@pytest.mark.parametrize("engine", ["ring", "moves"])
def test_a_loss_that_fails_on_one_member_disturbs_no_later_step(
    first_server: RunningServer, second_server: RunningServer, engine: str
) -> None:
    fails = [False]

    def failing(params: list[br.Tensor], x: br.Tensor, y: br.Tensor) -> br.Tensor:
        if fails[0] and x.device == b:
            raise ZeroDivisionError
        return loss_of(params, x, y)

    with br.RemoteDevice(first_server.address) as a, br.RemoteDevice(second_server.address) as b:
        group = br.distributed.Group([a, b], engine=engine)
        trainer = br.DataParallel(failing, PARAMS, group, optimizer=br.optim.Adam(lr=0.01))
        for start in range(0, 40, 11):
            rows = slice(start, start + 11)
            before = tensors_of(group, first_server, second_server)
            fails[0] = True
            with pytest.raises(ZeroDivisionError):
                trainer.step(X[rows], Y[rows])
            assert tensors_of(group, first_server, second_server) == before
            fails[0] = False
            trainer.step(X[rows], Y[rows])
        replicas = [br.read(one) for one in trainer.replicas]
        with br.LocalDevice() as alone:
            (wanted,), _ = trained([alone])
    for replica in replicas:
        for one, other in zip(replica, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("culprit", [0, 2])
def test_the_rest_of_a_training_regroups_after_a_member_was_killed(culprit: int) -> None:
    batches = 4 * [(X[at : at + 8], Y[at : at + 8]) for at in range(0, 40, 8)]
    with br.LocalDevice() as local:
        alone = br.DataParallel(loss_of, PARAMS, [local], optimizer=br.optim.SGD(lr=0.1))
        for x, y in batches:
            alone.step(x, y)
        expected = br.read(alone.params)

    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(server()) for _ in range(3)]
        devices = [br.RemoteDevice(each.address) for each in running]
        group = br.distributed.Group(devices, engine="ring")
        trainer = br.DataParallel(loss_of, PARAMS, group, optimizer=br.optim.SGD(lr=0.1))
        failures: list[tuple[int, str]] = []
        kept, at = trainer.snapshot(), 0
        while at < len(batches):  # as in docs/distributed.md
            error = None
            try:
                for number, (x, y) in enumerate(batches[at : at + 5], at):
                    trainer.step(x, y)
                    if number == 12 and not failures:
                        running[culprit].kill()
            except br.BurnRemoteError as raised:
                error = raised
            failure = trainer.group.failure()
            if failure is not None and failure.member is not None:
                failures.append((failure.member, failure.address))
                trainer.regroup(kept, without=[failure.member])
            elif error is not None:
                raise error
            else:
                kept, at = trainer.snapshot(), at + 5
        assert failures == [(culprit, running[culprit].address)]
        assert list(trainer.group.devices) == [one for one in devices if one != devices[culprit]]
        replicas = [br.read(one) for one in trainer.replicas]
        for one, other, wanted in zip(*replicas, expected, strict=True):
            assert one.tobytes() == other.tobytes()
            np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-6)
        for rank, device in enumerate(devices):
            with contextlib.suppress(br.BurnRemoteError):
                device.close(0 if rank == culprit else 5)


def test_a_member_that_is_lost_after_its_last_collective_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server() as first, server() as second, contextlib.ExitStack() as stack:
        devices = [br.RemoteDevice(one.address) for one in (first, second)]
        group = stack.enter_context(br.distributed.Group(devices, engine="ring"))
        first_read, second_read = [device.runners.read_tensor_async for device in devices]
        asked: list[Pending[TensorData]] = []

        def read(token: TensorHandle) -> Pending[TensorData]:
            asked.append(first_read(token))
            return asked[0]

        def read_and_kill(token: TensorHandle) -> Pending[TensorData]:
            # Both members have completed the barrier before the second one is killed.
            for one in (*asked, second_read(token)):
                one.result(30)
            second.kill()
            return second_read(token)

        for device, replaced in zip(devices, (read, read_and_kill), strict=True):
            monkeypatch.setattr(device.runners, "read_tensor_async", replaced)
        failure = group.failure()
        assert failure is not None
        assert (failure.member, failure.address) == (1, second.address)
        assert f"member 1 at {second.address} is lost" in str(failure)
        for device, seconds in zip(devices, (5, 0), strict=True):
            with contextlib.suppress(br.BurnRemoteError):
                device.close(seconds)


def test_a_training_continues_with_all_members_after_an_operation_failed() -> None:
    with server() as first, server() as second, contextlib.ExitStack() as stack:
        devices = [stack.enter_context(br.RemoteDevice(one.address)) for one in (first, second)]
        group = stack.enter_context(br.distributed.Group(devices))
        trainer = br.DataParallel(loss_of, PARAMS, group, optimizer=br.optim.SGD(lr=0.1))
        kept = trainer.snapshot()
        before = br.read(trainer.params)
        trainer.step(X, Y + 9)  # classes that do not exist
        failure = trainer.group.failure()
        assert failure is not None and failure.member in (0, 1)
        trainer.regroup(kept)
        assert [x.tolist() for x in br.read(trainer.params)] == [x.tolist() for x in before]
        assert np.isfinite(trainer.step(X, Y).item())
        assert trainer.group.failure() is None


def test_a_sharded_training_has_no_snapshot(first_server: RunningServer) -> None:
    with br.RemoteDevice(first_server.address) as device:
        trainer = br.DataParallel(
            loss_of, PARAMS, [device], optimizer=br.optim.Adam(), shards_state=True
        )
        with pytest.raises(br.UsageError, match=r"trainer\.state instead"):
            trainer.snapshot()
