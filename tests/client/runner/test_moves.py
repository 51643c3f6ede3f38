"""Moves of tensors between devices: the part that runs in the client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import burn_remote as br
from burn_remote.runner import session_runner as module
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote.runner.stack import RunnerStack
from burn_remote_protocol.dtypes import F32, DType, DTypeUsage
from burn_remote_protocol.errors import ClosedDevice, ConnectionLost, OperationFailed, UsageError
from burn_remote_protocol.messages import Expose, Fetch
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.runners import RecordingSession
from support.specs import f32
from support.waiting import PATIENCE_SECONDS

DATA = TensorData(bytes(8), (2,), F32)


class MovingSession(RecordingSession):
    """A recording session of a server; ``failing`` has the calls that raise ``ConnectionLost``."""

    def __init__(
        self, *, domain: str | None = "servers", secret: bool = True, address: str = "ws://a:1"
    ) -> None:
        super().__init__()
        self.transfer_domain: Any = domain
        self.has_secret_transfers = secret
        self.peer_address = address
        self.failing: set[str] = set()
        self.transfers: list[tuple[Any, ...]] = []
        self.fences: list[Pending[None]] = []
        self.is_stuck = False
        self.was_asked = threading.Event()

    def check_open(self) -> None:
        self.check("open")

    def check(self, call: str) -> None:
        if call in self.failing:
            raise ConnectionLost(f"lost in {call}")

    def expose(
        self, tensor: int, spec: TensorSpec, transfer: bytes | int, expires_seconds: float
    ) -> None:
        self.check("expose")
        self.transfers.append(("expose", tensor, spec, transfer, expires_seconds))

    def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
        self.check("fetch")
        self.transfers.append(("fetch", tensor, spec, transfer, address))

    def may_have_issued(self, kind: type[Expose | Fetch], transfer: bytes | int) -> bool:
        name = "expose" if kind is Expose else "fetch"
        return any((one[0], one[3]) == (name, transfer) for one in self.transfers)

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        self.transfers.append(("executed",))
        pending: Pending[DTypeUsage] = Pending()
        pending.complete(DTypeUsage(0))
        return pending

    def read(self, tensor: int, spec: TensorSpec) -> Pending[TensorData]:
        pending = super().read(tensor, spec)
        if "read" in self.failing:
            pending.fail(OperationFailed("why", tensor=tensor))
        return pending

    def fence_soon(self) -> Pending[None]:
        self.check("fence")
        pending: Pending[None] = Pending()
        self.fences.append(pending)
        self.was_asked.set()
        if "arrival" in self.failing:
            pending.fail(ConnectionLost("lost in arrival"))
        elif not self.is_stuck:
            pending.complete(None)
        return pending

    def close(self, *, discards: bool = False) -> None:
        self.closed = True


def tensor_of(session: MovingSession) -> TensorHandle:
    return RunnerStack(session).register_tensor_data(DATA)


@pytest.mark.parametrize("source_is_native", [True, False])
@pytest.mark.parametrize("target_is_native", [True, False])
def test_servers_of_each_pair_of_dialects_exchange_a_tensor_by_one_transfer(
    source_is_native: bool, target_is_native: bool
) -> None:
    source = MovingSession(secret=source_is_native)
    target = MovingSession(secret=target_is_native, address="ws://b:1")
    handle, there = tensor_of(source), RunnerStack(target)
    moved = [handle.client.move(handle, there) for _ in range(2)]
    assert [(one.client, one.spec) for one in moved] == [(there, f32(2))] * 2
    transfers = [exposed[3] for exposed in source.transfers]
    for transfer in transfers:
        if source_is_native and target_is_native:
            assert isinstance(transfer, bytes)
            assert len(transfer) == 32
        else:
            assert isinstance(transfer, int)
            assert 0 <= transfer < 2**64
    assert transfers[0] != transfers[1]
    assert source.transfers == [
        ("expose", handle.id, f32(2), transfer, module.EXPIRES_SECONDS) for transfer in transfers
    ]
    assert target.transfers == [
        ("fetch", one.id, f32(2), transfer, "ws://a:1")
        for one, transfer in zip(moved, transfers, strict=True)
    ]
    assert not source.reads
    assert not target.uploads


def test_a_move_within_a_session_does_nothing() -> None:
    session = MovingSession()
    handle = tensor_of(session)
    before = [*session.events]
    assert handle.client.move(handle, RunnerStack(session)) is handle
    assert session.events == before
    assert not session.transfers


@pytest.mark.parametrize(
    ("source_domain", "target_domain"),
    [("servers", "local"), ("local", "servers"), (None, "servers"), (None, None)],
)
def test_between_domains_the_elements_pass_through_this_process(
    source_domain: str | None, target_domain: str | None
) -> None:
    source, target = MovingSession(domain=source_domain), MovingSession(domain=target_domain)
    source.answers_reads = True
    handle = tensor_of(source)
    moved = handle.client.move(handle, RunnerStack(target))
    assert target.uploads == {moved.id: DATA}
    assert not source.transfers
    assert not target.transfers


def test_a_source_without_an_address_is_refused_before_anything_is_exposed() -> None:
    source, target = MovingSession(address=""), MovingSession()
    handle = tensor_of(source)
    with pytest.raises(UsageError, match="no address at which other servers can reach it"):
        handle.client.move(handle, RunnerStack(target))
    assert not source.transfers
    assert not target.transfers


def test_if_the_source_cannot_expose_the_target_hears_nothing() -> None:
    source, target = MovingSession(), MovingSession()
    source.failing = {"expose"}
    stack = RunnerStack(source)
    handle = stack.register_tensor_data(DATA)
    with pytest.raises(ConnectionLost, match="lost in expose"):
        stack.move(handle, RunnerStack(target))
    assert not target.transfers
    stack.close()
    assert not target.fences


def test_if_the_target_has_ended_nothing_is_exposed() -> None:
    source, target = MovingSession(), MovingSession()
    target.failing = {"open"}
    handle = tensor_of(source)
    with pytest.raises(ConnectionLost, match="lost in open"):
        handle.client.move(handle, RunnerStack(target))
    assert not source.transfers


def test_if_the_source_cannot_be_read_the_target_gets_nothing() -> None:
    source, target = MovingSession(domain="local"), MovingSession()
    source.failing = {"read"}
    handle = tensor_of(source)
    with pytest.raises(OperationFailed, match="why"):
        handle.client.move(handle, RunnerStack(target))
    assert not target.events


def test_if_the_target_cannot_fetch_its_tensor_and_the_exposed_one_are_dropped() -> None:
    source, target = MovingSession(), MovingSession()
    target.failing = {"fetch"}
    handle = tensor_of(source)
    with pytest.raises(ConnectionLost, match="lost in fetch"):
        handle.client.move(handle, RunnerStack(target))
    assert target.dropped == [1]
    # The source fetches the exposed tensor from itself, so that it is not kept until it expires.
    exposed, (name, withdrawn, _, transfer, _) = source.transfers
    assert (name, transfer) == ("fetch", exposed[3])
    assert source.dropped == [withdrawn] != [handle.id]


def test_in_burns_dialects_the_source_withdraws_a_tensor_once_it_is_exposed() -> None:
    source, target = MovingSession(secret=False), MovingSession(secret=False)
    target.failing = {"fetch"}
    handle = tensor_of(source)
    with pytest.raises(ConnectionLost, match="lost in fetch"):
        handle.client.move(handle, RunnerStack(target))
    exposed, executed, (name, withdrawn, _, transfer, _) = source.transfers
    assert (executed, name, transfer) == (("executed",), "fetch", exposed[3])
    assert source.dropped == [withdrawn] != [handle.id]


def test_in_burns_dialects_the_source_withdraws_no_tensor_that_the_target_may_fetch() -> None:
    class Interrupted(MovingSession):
        def fetch(self, tensor: int, transfer: bytes | int, address: str, spec: TensorSpec) -> None:
            super().fetch(tensor, transfer, address, spec)
            raise KeyboardInterrupt

    source, target = MovingSession(secret=False), Interrupted(secret=False)
    handle = tensor_of(source)
    with pytest.raises(KeyboardInterrupt):
        handle.client.move(handle, RunnerStack(target))
    assert [one[0] for one in source.transfers] == ["expose"]


# -- closing a source -------------------------------------------------------------------------


def moved_from(source: MovingSession, *targets: MovingSession) -> RunnerStack:
    """Return the source's runners, after a move to each target."""
    stack = RunnerStack(source)
    handle = stack.register_tensor_data(DATA)
    for target in targets:
        stack.move(handle, RunnerStack(target))
    return stack


def test_a_source_is_closed_when_its_tensors_have_arrived() -> None:
    source, target = MovingSession(), MovingSession()
    target.is_stuck = True
    stack = moved_from(source, target)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(stack.close)
        assert target.was_asked.wait(PATIENCE_SECONDS)
        assert not source.closed
        target.fences[0].complete(None)
        closing.result(PATIENCE_SECONDS)
    assert source.closed
    stack.close()
    assert len(target.fences) == 1


@pytest.mark.parametrize("call", ["fence", "arrival"])
def test_a_target_that_is_lost_does_not_keep_a_source_open(call: str) -> None:
    source, lost, other = MovingSession(), MovingSession(), MovingSession()
    lost.failing = {call}
    moved_from(source, lost, other).close()
    assert source.closed
    assert len(other.fences) == 1


def test_a_target_that_is_closed_is_not_asked() -> None:
    source, target = MovingSession(), MovingSession()
    stack = moved_from(source, target)
    target.close()
    stack.close()
    assert source.closed
    assert not target.fences


def test_waiting_for_a_target_is_bounded() -> None:
    source, target = MovingSession(), MovingSession()
    target.is_stuck = True
    moved_from(source, target).close(0)
    assert source.closed


def test_a_session_without_moves_asks_nobody() -> None:
    source = MovingSession()
    moved_from(source).close()
    assert source.closed


# -- real devices -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_source", [True, False])
def test_a_move_from_or_to_a_closed_device_names_it(is_source: bool) -> None:
    with br.LocalDevice() as open_device:
        closed = br.LocalDevice()
        source, target = (closed, open_device) if is_source else (open_device, closed)
        x = br.ones((2,), device=source)
        closed.close()
        with pytest.raises(ClosedDevice, match="closed"):
            x.to(target)
        if not is_source:
            assert x.tolist() == [1, 1]


def test_a_source_that_cannot_send_delays_no_move_between_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        br.LocalDevice() as frozen,
        br.LocalDevice() as healthy,
        br.LocalDevice() as target,
        ThreadPoolExecutor(2) as pool,
    ):
        tensors = [br.ones((2,), device=device) for device in (frozen, healthy)]
        is_stuck, may_send = threading.Event(), threading.Event()
        expose: Any = frozen.session.expose

        def expose_late(*arguments: Any) -> None:
            is_stuck.set()
            assert may_send.wait(PATIENCE_SECONDS)
            expose(*arguments)

        monkeypatch.setattr(frozen.session, "expose", expose_late)
        stuck = pool.submit(tensors[0].to, target)
        assert is_stuck.wait(PATIENCE_SECONDS)
        try:
            moved = pool.submit(tensors[1].to, target).result(PATIENCE_SECONDS)
            assert moved.tolist() == [1, 1]
        finally:
            may_send.set()
        assert stuck.result(PATIENCE_SECONDS).tolist() == [1, 1]
