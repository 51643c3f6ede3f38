"""A lack of memory at any call of ours fails the call alone: nothing is lost, kept or wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.burn.burn_session import BurnSession
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.receiver import Receiver
from support.interrupts import MemoryErrorAfterCall, Walk
from support.servers import RunningServer
from support.waiting import PATIENCE_SECONDS, wait_until

LARGE = np.arange(200_000, dtype=np.float32)  # several chunks


class CodesIn(frozenset[CodeType]):
    """The code of all functions in some of our folders and modules."""

    def __new__(cls, *parts: str) -> CodesIn:
        return super().__new__(cls)

    def __init__(self, *parts: str) -> None:
        self._parts = parts
        self._known: dict[CodeType, bool] = {}

    def __contains__(self, code: object) -> bool:
        if not isinstance(code, CodeType):
            return False
        known = self._known.get(code)
        if known is None:
            known = any(part in code.co_filename for part in self._parts)
            self._known[code] = known
        return known


CLIENT = CodesIn("/burn_remote/sessions/", "/burn_remote/runner/", "/burn_remote_protocol/")
# Not the quota itself: it only adds and subtracts small numbers.
SERVER = CodesIn(
    "/burn_remote_server/execution/",
    "/burn_remote_server/tensors/",
    "/burn_remote_server/programs/plans",
    "/burn_remote_server/hosting/local",
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the thread of the test send and receive."""
    monkeypatch.setattr(Receiver, "start", lambda receiver: None)
    for session in (NativeSession, BurnSession):
        monkeypatch.setattr(session, "flush_waiting", lambda session: None)


def batch(x: br.Tensor) -> None:
    made = [x + number for number in range(5)]
    x.device.session.flush()
    del made


def operation(x: br.Tensor) -> None:
    made = x + 1
    x.device.session.flush()
    del made


def upload(x: br.Tensor) -> None:
    made = br.tensor([1.0, 2.0], device=x.device)
    x.device.session.flush()
    del made


def large_upload(x: br.Tensor) -> None:
    made = br.tensor(LARGE, device=x.device)
    x.device.session.flush()
    del made


def read(x: br.Tensor) -> None:
    x.read().result(PATIENCE_SECONDS)


def large_read(x: br.Tensor) -> None:
    br.ones((LARGE.size,), device=x.device).read().result(PATIENCE_SECONDS)


CALLS: list[Callable[[br.Tensor], None]] = [
    operation,
    batch,
    upload,
    large_upload,
    read,
    large_read,
]


class Opened:
    """A device with one tensor, and how many tensors and bytes its server holds."""

    def __init__(
        self, opening: Callable[[], br.Device], held: Callable[[br.Device], tuple[float, float]]
    ) -> None:
        self.device: Any = opening()
        self.x = br.tensor([1.0, 2.0], device=self.device)
        self._held = held

    def held(self) -> tuple[float, float]:
        """Return what the server holds, after the failures of earlier operations."""
        with contextlib.suppress(br.OperationFailed):
            self.device.sync()
        self.device.sync()
        return self._held(self.device)

    def close(self) -> None:
        """Close the device without waiting for a reply, which no thread reads."""
        with contextlib.suppress(br.BurnRemoteError):
            self.device.close(timeout_seconds=0)


def walk_through(
    call: Callable[[br.Tensor], None], codes: CodesIn, opening: Callable[[], Opened]
) -> Walk:
    """Let memory lack at one place after another; check that the session goes on or has ended."""
    opened = opening()
    for _ in range(3):
        call(opened.x)
    before = opened.held()
    walk = Walk()
    for place in walk:
        lack = MemoryErrorAfterCall(place, codes)
        with lack.watching(), contextlib.suppress(br.BurnRemoteError):
            call(opened.x)
        if opened.device.session.closed:
            with pytest.raises((br.SessionLost, br.ConnectionLost)):
                opened.x.read().result(PATIENCE_SECONDS)
            opened.close()
            opened = opening()
            for _ in range(3):
                call(opened.x)
            before = opened.held()
        found = (opened.x + 7).read().result(PATIENCE_SECONDS)
        assert found.tolist() == [8, 9], lack.place
        # A server counts a reply until the client has acknowledged it.
        wait_until(lambda opened=opened, before=before: opened.held() == before)  # type: ignore[misc]
    opened.close()
    return walk


# Those of large tensors reach thousands of places; on a local device, each takes less time.
@pytest.mark.parametrize("call", [operation, upload, read])
@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_a_lack_of_memory_in_a_client_loses_and_keeps_nothing(
    first_server: RunningServer, dialect: str, call: Callable[[br.Tensor], None]
) -> None:
    options: Any = {"automatic_graphs": False} if dialect == "native" else {}

    def held(_: br.Device) -> tuple[float, float]:
        seen = first_server.metrics()
        return seen["burn_remote_tensors"], seen["burn_remote_tensor_bytes"]

    def opening() -> Opened:
        address = first_server.address
        return Opened(lambda: br.RemoteDevice(address, dialect=dialect, **options), held)

    assert walk_through(call, CLIENT, opening).count > 10


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("codes", [CLIENT, SERVER], ids=["client", "server"])
def test_a_lack_of_memory_on_a_local_device_loses_and_keeps_nothing(
    codes: CodesIn, call: Callable[[br.Tensor], None]
) -> None:
    def held(device: Any) -> tuple[float, float]:
        interpreter = device.session._connection._link._interpreter
        return len(interpreter.tensors), interpreter.quota.bytes

    def opening() -> Opened:
        return Opened(lambda: br.LocalDevice(automatic_graphs=False), held)

    assert walk_through(call, codes, opening).count > 10
