"""A client without memory for one large tensor loses that call only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native import resume_attempts
from burn_remote.sessions.native.reused_memory import ReusedMemory
from burn_remote_protocol.links.checksummed_links import CheckedLink
from burn_remote_protocol.session_states import MAX_FRUITLESS_RESUMES
from support.faults import faulty_proxy
from support.link_ends import in_thread
from support.servers import RunningServer
from support.waiting import PATIENCE_SECONDS

COUNT = 2**20  # 4 MiB of float32, several chunks


async def awaited(x: br.Tensor) -> object:
    return await x.read()


READS: dict[str, Callable[[br.Tensor], object]] = {
    "numpy": lambda x: x.numpy(),
    "read": lambda x: x.read().result(),
    "await": lambda x: asyncio.run(awaited(x)),
    "compiled": lambda x: br.compile(lambda y: y + 1)(x).numpy(),
}


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every allocation for a large read or upload fail."""
    allocate = ReusedMemory.allocate

    def fail(self: ReusedMemory, size: int) -> memoryview:
        if size > COUNT // 4:
            raise MemoryError("no room")
        return allocate(self, size)

    monkeypatch.setattr(ReusedMemory, "allocate", fail)


@pytest.mark.usefixtures("scarce")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_without_memory_raises_and_all_other_reads_go_on(
    native_device: br.Device, read: Callable[[br.Tensor], object]
) -> None:
    large = br.zeros((COUNT,), device=native_device)
    small = br.ones((3,), device=native_device)
    for _ in range(3):
        others = [in_thread((small * n).tolist) for n in range(8)]
        with pytest.raises(MemoryError):
            read(large)
        assert [one.result(PATIENCE_SECONDS) for one in others] == [[n] * 3 for n in range(8)]
    assert large.sum().item() == 0


@pytest.mark.usefixtures("scarce")
def test_a_move_through_a_client_without_memory_raises_and_both_sessions_go_on(
    first_server: RunningServer,
) -> None:
    with br.RemoteDevice(first_server.address) as source, br.LocalDevice() as target:
        with pytest.raises(MemoryError):
            br.zeros((COUNT,), device=source).to(target)
        assert br.ones((3,), device=source).to(target).tolist() == [1, 1, 1]


def test_an_upload_without_memory_raises_and_the_session_goes_on(
    first_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.ones(COUNT, np.float32)
    with br.RemoteDevice(first_server.address) as device:
        assert br.ones((3,), device=device).tolist() == [1, 1, 1]
        with monkeypatch.context() as patched:
            patched.setattr(ReusedMemory, "allocate", no_room)
            with pytest.raises(MemoryError):
                br.tensor(data, device=device)
        assert br.tensor(data, device=device).sum().item() == COUNT


def no_room(self: ReusedMemory, size: int) -> Any:
    raise MemoryError("no room")


def test_a_client_that_never_has_memory_for_a_message_loses_the_session_after_some_resumes(
    first_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = CheckedLink.receive
    failed: list[int] = []

    def receive_small(self: CheckedLink, timeout_seconds: float | None) -> Any:
        frame = receive(self, timeout_seconds)
        if frame is not None and len(frame) > 8192:
            failed.append(len(frame))
            raise MemoryError("no room")
        return frame

    monkeypatch.setattr(resume_attempts, "FIRST_PAUSE_SECONDS", 0)
    monkeypatch.setattr(CheckedLink, "receive", receive_small)
    with br.RemoteDevice(first_server.address, dialect="native") as device:
        small, large = (br.ones((size,), device=device) for size in (3, 3000))
        assert small.tolist() == [1, 1, 1]
        with pytest.raises(br.SessionLost, match=r"100 times in a row.*no memory for a message"):
            large.numpy()
        with pytest.raises(br.SessionLost):
            small.tolist()
    assert MAX_FRUITLESS_RESUMES <= len(failed) <= MAX_FRUITLESS_RESUMES + 2


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_client_that_cannot_start_a_thread_to_resume_loses_the_session(
    first_server: RunningServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    start = threading.Thread.start

    def start_others(self: threading.Thread) -> None:
        if self.name == "burn-remote-reconnect":
            raise error
        start(self)

    with (
        faulty_proxy(first_server.port) as proxy,
        br.RemoteDevice(proxy.address, dialect="native") as device,
    ):
        x = br.ones((3,), device=device)
        assert x.tolist() == [1, 1, 1]
        monkeypatch.setattr(threading.Thread, "start", start_others)
        proxy.cut_all()
        read = in_thread(x.tolist)
        with pytest.raises(br.SessionLost, match="no thread"):
            read.result(PATIENCE_SECONDS)


LIMITED = """
import resource, sys, threading
import burn_remote as br

device = br.RemoteDevice(sys.argv[1], dialect=sys.argv[2])
small = br.ones((3,), device=device)
small.numpy()
large = br.broadcast_to(br.ones((1,), device=device), (100_000_000,))
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, resource.RLIM_INFINITY))

def read(tensor):
    try:
        seen.append(float(tensor.numpy()[0]))
    except (MemoryError, br.BurnRemoteError) as error:
        seen.append(type(error).__name__)
        print(error, file=sys.stderr)

for tensor in (large, small):
    seen = []
    thread = threading.Thread(target=read, args=(tensor,), daemon=True)
    thread.start()
    thread.join(30)
    print(*seen, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS limits memory on Linux only")
@pytest.mark.parametrize(
    ("dialect", "seen"),
    # A reply of Burn's dialect is one message, which has to be in memory to find its request.
    [("native", ["MemoryError", "1.0"]), ("burn-0.21", ["ConnectionLost", "ConnectionLost"])],
)
def test_a_real_limit_of_memory_fails_reads_and_none_hangs(
    first_server: RunningServer, dialect: str, seen: list[str]
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, first_server.address, dialect],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.stdout.split() == seen, run.stderr
    assert run.stderr.count("this process has no memory") == sum(one != "1.0" for one in seen)
    assert "closes a socket" not in run.stderr
