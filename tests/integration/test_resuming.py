"""A broken connection only delays a program; a lost session raises an error at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native import resume_attempts
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.receiver import Receiver
from burn_remote_protocol.dialects.native import (
    UPLOAD_CHUNK_BYTES,
    VERSIONS,
    decode_frame,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.messages import Hello, Refused, Reply, Resume, Sync, Welcome
from burn_remote_protocol.session_states import REPLAY_BYTES
from support.faults import FaultyProxy, bytes_to_open, faulty_proxy, random_cuts
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until


def trained(device: br.Device, steps: int = 120) -> list[np.ndarray]:
    """Train a small network on data that is uploaded in each step, with occasional reads."""
    rng = np.random.default_rng(0)
    w1 = br.tensor(rng.standard_normal((64, 32)).astype(np.float32), device=device)
    w2 = br.tensor(rng.standard_normal((32, 10)).astype(np.float32), device=device)
    for step in range(steps):
        x = br.tensor(rng.random((64, 64), np.float32), device=device)
        hidden = (x @ w1).relu()
        error = hidden @ w2 - 0.5
        g2 = hidden.T @ error
        g1 = x.T @ ((error @ w2.T) * (hidden > 0).astype(br.float32))
        w1, w2 = w1 - g1 * 1e-6, w2 - g2 * 1e-6
        if step % 10 == 0:
            error.numpy()
    return [w1.numpy(), w2.numpy()]


def test_training_through_fifty_cuts_gives_bit_identical_weights(
    first_server: RunningServer,
) -> None:
    with br.RemoteDevice(first_server.address) as device:
        undisturbed = trained(device)
    with (
        faulty_proxy(
            first_server.port,
            random_cuts(50, 100, 58_000, after_bytes=bytes_to_open(first_server.port)),
        ) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        disturbed = trained(device)
        assert proxy.cuts >= 50
    for expected, seen in zip(undisturbed, disturbed, strict=True):
        np.testing.assert_array_equal(seen, expected)


def test_training_through_resets_and_single_byte_reads_gives_the_same_weights(
    first_server: RunningServer,
) -> None:
    with br.RemoteDevice(first_server.address) as device:
        undisturbed = trained(device, steps=4)
    cuts = random_cuts(5, 100, 18_000, after_bytes=bytes_to_open(first_server.port))
    with (
        faulty_proxy(first_server.port, cuts, piece_bytes=1, resets=True) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        disturbed = trained(device, steps=4)
        assert proxy.cuts == 5
    for expected, seen in zip(undisturbed, disturbed, strict=True):
        np.testing.assert_array_equal(seen, expected)


def test_a_slow_network_breaks_no_connection(first_server: RunningServer) -> None:
    with faulty_proxy(first_server.port) as proxy, br.RemoteDevice(proxy.address) as device:
        tensor = br.ones((3,), device=device)
        proxy.flowing.clear()
        pending = (tensor + 1).read()
        assert not pending.done()
        proxy.flowing.set()
        assert pending.result(PATIENCE_SECONDS).tolist() == [2, 2, 2]
        assert proxy.connections == 1


class MovingName:
    """A host name that leads to ``host``, and the number of lookups since that was changed."""

    NAME = "moving.invalid"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = socket.getaddrinfo
        self.lookups = 0
        self._host = "127.0.0.1"
        monkeypatch.setattr(socket, "getaddrinfo", self._getaddrinfo)

    def lead_to(self, host: str) -> None:
        self._host, self.lookups = host, 0

    def _getaddrinfo(self, host: str, *arguments: Any, **options: Any) -> Any:
        if host == self.NAME and not options.get("flags"):
            self.lookups += 1
            host = self._host
        return self._real(host, *arguments, **options)


def test_a_name_that_leads_to_a_closed_port_of_another_host_for_a_while_loses_nothing(
    first_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_attempts, "REFUSED_SECONDS", 0.0)
    name = MovingName(monkeypatch)
    with faulty_proxy(first_server.port) as proxy:
        address = proxy.address.replace("127.0.0.1", name.NAME)
        with br.RemoteDevice(address) as device:
            x = br.ones((3,), device=device)
            device.sync()
            name.lead_to("127.0.0.2")  # where nothing listens
            proxy.cut_all()
            pending = (x + 1).read()
            wait_until(lambda: name.lookups >= 3)
            name.lead_to("127.0.0.1")
            assert pending.result(PATIENCE_SECONDS).tolist() == [2, 2, 2]


def test_a_program_that_fills_the_replay_window_waits_for_the_connection_and_loses_nothing(
    first_server: RunningServer,
) -> None:
    array = np.random.default_rng(0).random(2**21)  # 16 MiB
    with faulty_proxy(first_server.port) as proxy, br.RemoteDevice(proxy.address) as device:
        device.sync()
        proxy.open.clear()
        proxy.cut_all()
        tensors: list[br.Tensor] = []

        def upload() -> None:
            tensors.extend(br.tensor(array, device=device) for _ in range(8))  # 128 MiB

        thread = threading.Thread(target=upload)
        thread.start()
        assert isinstance(device.session, NativeSession)
        connection = device.session._connection
        wait_until(lambda: connection._end.window.bytes >= REPLAY_BYTES)
        assert connection._end.window.bytes < REPLAY_BYTES + 2 * UPLOAD_CHUNK_BYTES
        assert thread.is_alive()
        assert len(tensors) < 5
        proxy.open.set()
        thread.join(2 * PATIENCE_SECONDS)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), array)
        assert len(tensors) == 8


class Replaying:
    """A session that sends again what the server lacks."""

    def __init__(self, device: br.Device, proxy: FaultyProxy) -> None:
        self.device = device
        self.proxy = proxy
        self.tensors: list[br.Tensor] = []
        self.replayed = 0
        self.uploading: threading.Thread
        self.is_lost = False
        self.is_halfway = threading.Event()
        self.go_on = threading.Event()

    def upload(self, array: np.ndarray) -> None:
        try:
            self.tensors.extend(br.tensor(array, device=self.device) for _ in range(5))
        except br.SessionLost:  # unless the window had room for everything
            self.is_lost = True

    def stop_halfway(self, data: bytes, goes_up: bool) -> bytes:
        self.replayed += goes_up * len(data)
        if self.replayed > REPLAY_BYTES // 2:
            self.is_halfway.set()
            self.go_on.wait(PATIENCE_SECONDS)
        return data


def begin_replay(running: RunningServer, array: np.ndarray, stack: ExitStack) -> Replaying:
    """Stop a session halfway in the replay, unless its lease ended before."""
    proxy = stack.enter_context(faulty_proxy(running.port))
    seen = Replaying(stack.enter_context(br.RemoteDevice(proxy.address)), proxy)
    seen.device.sync()
    proxy.open.clear()
    proxy.cut_all()
    seen.uploading = threading.Thread(target=seen.upload, args=(array,))
    seen.uploading.start()
    assert isinstance(seen.device.session, NativeSession)
    window = seen.device.session._connection._end.window
    wait_until(lambda: seen.is_lost or window.bytes >= REPLAY_BYTES)
    proxy.change = seen.stop_halfway
    proxy.open.set()
    wait_until(lambda: seen.is_lost or seen.is_halfway.is_set())
    return seen


@contextlib.contextmanager
def replaying(running: RunningServer, array: np.ndarray) -> Iterator[Replaying]:
    """Stop a session halfway in the replay of ``REPLAY_BYTES`` that were not acknowledged."""
    with ExitStack() as stack:
        seen = begin_replay(running, array, stack)
        while not seen.is_halfway.is_set():  # the lease ended first, as on a busy machine
            seen = begin_replay(running, array, stack)
        yield seen
        seen.go_on.set()
        seen.uploading.join(PATIENCE_SECONDS)
        assert not seen.uploading.is_alive()


def test_a_lease_does_not_end_while_a_resume_sends_64_mebibytes_again() -> None:
    array = np.random.default_rng(0).random(2**21)  # 16 MiB
    with (
        server("--lease-seconds", "3") as running,
        replaying(running, array) as seen,
        faulty_proxy(running.port) as line,
        br.RemoteDevice(line.address) as other,
    ):
        other.sync()
        line.open.clear()
        line.cut_all()
        # A lease that began later has ended.
        wait_until(lambda: running.metric("burn_remote_sessions") == 1)
        seen.go_on.set()
        wait_until(lambda: len(seen.tensors) == 5)
        for tensor in seen.tensors:
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_lease_that_ends_inside_a_resume_frees_what_was_sent_again() -> None:
    array = np.random.default_rng(0).random(2**21)  # 16 MiB
    with server("--lease-seconds", "3") as running, replaying(running, array) as seen:
        wait_until(lambda: running.metric("burn_remote_tensor_bytes") >= 2 * array.nbytes)
        seen.proxy.open.clear()
        seen.proxy.cut_all()
        seen.go_on.set()
        wait_until(lambda: running.metric("burn_remote_sessions") == 0)
        wait_until(lambda: running.metric("burn_remote_tensor_bytes") == 0)
        seen.proxy.open.set()
        with pytest.raises(br.SessionLost):
            seen.device.sync()
        with br.RemoteDevice(running.address) as device:
            assert br.ones((2,), device=device).tolist() == [1, 1]


def test_a_resume_keeps_nothing_of_the_call_that_found_the_connection_broken(
    first_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Receiver, "start", lambda receiver: None)  # only this thread finds it
    with faulty_proxy(first_server.port) as proxy, br.RemoteDevice(proxy.address) as device:
        device.sync()
        session = device.session
        assert isinstance(session, NativeSession)
        proxy.open.clear()
        proxy.cut_all()

        def send_until_broken() -> weakref.ref[br.Tensor]:
            kept = br.ones((2,), device=device)
            while session._connection._is_attached:
                kept = kept + 1
                session.flush()
            return weakref.ref(kept)

        assert send_until_broken()() is None
        proxy.open.set()
        assert br.ones((2,), device=device).tolist() == [1, 1]
        device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


def test_an_error_that_the_program_handles_keeps_its_traceback_when_the_connection_breaks(
    first_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Receiver, "start", lambda receiver: None)  # only this thread finds it
    with faulty_proxy(first_server.port) as proxy, br.RemoteDevice(proxy.address) as device:
        device.sync()
        session = device.session
        assert isinstance(session, NativeSession)
        try:
            raise ValueError("of the program")
        except ValueError as error:
            again = KeyError("whose context is part of a cycle")
            again.__context__, error.__context__ = error, again
            proxy.cut_all()
            kept = br.ones((2,), device=device)
            while session._connection._is_attached:
                kept = kept + 1
                session.flush()
            assert error.__traceback__ is not None
        kept.numpy()
        device.close(timeout_seconds=0)  # a longer close waits for a reply that no thread reads


def test_a_lost_session_fails_every_waiting_thread_at_once() -> None:
    with server("--lease-seconds", "0.1") as running, faulty_proxy(running.port) as proxy:
        device = br.RemoteDevice(proxy.address)
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.flowing.clear()
        waiting = [(tensor + number).read() for number in range(8)]
        proxy.open.clear()
        proxy.cut_all()
        for pending in waiting:
            with pytest.raises(br.SessionLost, match="lease"):
                pending.result(PATIENCE_SECONDS)
        device.close()


def test_large_tensors_survive_cuts_in_both_directions(first_server: RunningServer) -> None:
    array = np.random.default_rng(0).random(4 * 2**20)  # 32 MiB
    with (
        faulty_proxy(first_server.port, random_cuts(6, 1_000_000, 9_000_000)) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.tensor(array, device=device)
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert proxy.cuts == 6


def test_an_idle_session_resumes_when_it_is_used_again(first_server: RunningServer) -> None:
    with (
        faulty_proxy(first_server.port) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.cut_all()
        assert (tensor + 1).tolist() == [2, 2, 2]


def test_a_stalled_connection_is_detected_and_replaced() -> None:
    with (
        server("--heartbeat-seconds", "0.1") as running,
        faulty_proxy(running.port) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.stall_all()
        assert (tensor + 1).read().result(PATIENCE_SECONDS).tolist() == [2, 2, 2]


def test_a_server_detects_a_silent_client_and_frees_its_tensors() -> None:
    with (
        server("--heartbeat-seconds", "0.1", "--lease-seconds", "0.1") as running,
        faulty_proxy(running.port) as proxy,
    ):
        while True:
            device = br.RemoteDevice(proxy.address)
            tensor = br.ones((3,), device=device)
            with contextlib.suppress(br.SessionLost):  # this end was too busy to answer a ping
                tensor.numpy()
                break
        proxy.open.clear()
        proxy.stall_all()
        wait_until(lambda: running.metric("burn_remote_sessions") == 0)
        proxy.open.set()
        with pytest.raises(br.SessionLost):
            tensor.numpy()
        device.close()


def test_a_session_whose_lease_is_over_raises_session_lost_at_once() -> None:
    with server("--lease-seconds", "0.1") as running, faulty_proxy(running.port) as proxy:
        device = br.RemoteDevice(proxy.address)
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.open.clear()
        proxy.cut_all()
        wait_until(lambda: running.metric("burn_remote_sessions") == 0)
        proxy.open.set()
        with pytest.raises(br.SessionLost):
            tensor.numpy()
        device.close()


def test_a_restarted_server_does_not_know_the_session() -> None:
    with server() as first, faulty_proxy(first.port) as proxy:
        device = br.RemoteDevice(proxy.address)
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        with server() as second:
            proxy._target_port = second.port
            first.kill()
            proxy.cut_all()
            with pytest.raises(br.SessionLost, match="does not know this session"):
                tensor.numpy()
        device.close()


def test_a_session_cannot_be_resumed_without_its_secret(first_server: RunningServer) -> None:
    with br.RemoteDevice(first_server.address) as device:
        session = device.session.welcome.session
        link = connect(first_server.address, "/session")
        link.send(encode_frame(Hello(VERSIONS, resume=Resume(session, bytes(16), 0))))
        answer = link.receive(5)
        link.close()
        assert answer is not None
        refused = decode_frame(answer)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, br.SessionLost)
        assert br.ones((1,), device=device).tolist() == [1]


def test_the_holder_of_another_token_cannot_resume_a_session_with_its_secret(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"anna {'a' * 32}\nbert {'b' * 32}\n", "utf-8")
    tokens.chmod(0o600)
    with (
        server("--token-file", str(tokens)) as running,
        br.RemoteDevice(running.address, token="a" * 32) as device,
    ):
        welcome = device.session.welcome
        resume = Resume(welcome.session, welcome.secret, 0)
        link = connect(running.address, "/session")
        link.send(encode_frame(Hello(VERSIONS, token="b" * 32, resume=resume)))
        answer = link.receive(5)
        link.close()
        assert answer is not None
        refused = decode_frame(answer)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, br.SessionLost)
        assert br.ones((1,), device=device).tolist() == [1]


def test_of_overlapping_resumes_the_last_one_gets_the_session(
    first_server: RunningServer,
) -> None:
    """The first link stays half open; the second breaks before its Welcome is read."""
    with contextlib.ExitStack() as stack:

        def dial(resume: Resume | None) -> BlockingLink:
            link = connect(first_server.address, "/session", close_timeout_seconds=0)
            stack.callback(link.close)
            link.send(encode_frame(Hello(VERSIONS, resume=resume)))
            return link

        def receive(link: BlockingLink) -> object:
            frame = link.receive(5)
            assert frame is not None
            return decode_frame(frame)

        welcome = receive(first := dial(None))
        assert isinstance(welcome, Welcome)
        first.send(encode_batch(0, [encode_task(Sync(1))]))
        assert receive(first) == Reply(1, None)
        resume = Resume(welcome.session, welcome.secret, 1)
        dial(resume).close()
        last = dial(resume)
        again = receive(last)
        assert isinstance(again, Welcome)
        assert again.received == 1
        for request in (2, 3):
            last.send(encode_batch(1, [encode_task(Sync(request))]))
            assert receive(last) == Reply(request, None)
        with pytest.raises(br.ConnectionLost):
            while first.receive(5) is not None:
                pass
        last.send(encode_batch(2, [encode_task(Sync(4))]))
        assert receive(last) == Reply(4, None)


def test_replies_that_were_buffered_when_the_link_broke_are_not_delivered_twice(
    first_server: RunningServer,
) -> None:
    with (
        faulty_proxy(first_server.port) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        session = device.session
        assert isinstance(session, NativeSession)
        proxy.flowing.clear()
        reads = [(tensor + number).read() for number in range(4)]
        is_busy, may_go_on = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            is_busy.set()
            may_go_on.wait(PATIENCE_SECONDS)

        reads[0].when_done(hold)  # in the thread that receives
        session.flush()
        proxy.flowing.set()
        reads[0].attend()
        # One thread handles the first answer; the others are buffered.
        assert is_busy.wait(PATIENCE_SECONDS)
        proxy.cut_all()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while proxy.connections < 2:  # a send notices the break, and the session is resumed
            assert time.monotonic() < deadline
            tensor = tensor * 1
            session.flush()
        may_go_on.set()
        results = [read.result(PATIENCE_SECONDS).tolist() for read in reads]
        assert results == [[1 + n] * 3 for n in range(4)]
        assert tensor.tolist() == [1, 1, 1]


def test_a_program_survives_cuts_while_many_reads_are_outstanding(
    first_server: RunningServer,
) -> None:
    def pipelined(device: br.Device) -> list[bytes]:
        rng = np.random.default_rng(0)
        weights = br.tensor(rng.standard_normal((64, 64)).astype(np.float32), device=device)
        reads: list[Any] = []
        for _ in range(60):
            x = br.tensor(rng.random((64, 64), np.float32), device=device)
            weights = weights * 0.5 + (x @ weights) * 1e-3
            reads.append(weights.read())
        return [read.result(30).tobytes() for read in reads]

    with br.RemoteDevice(first_server.address) as device:
        undisturbed = pipelined(device)
    cuts = random_cuts(20, 20_000, 200_000)
    with faulty_proxy(first_server.port, cuts) as proxy, br.RemoteDevice(proxy.address) as device:
        assert pipelined(device) == undisturbed
        assert proxy.cuts > 5


@pytest.mark.parametrize("upwards", [True, False], ids=["to the server", "to the client"])
def test_a_frame_that_a_flipped_bit_turns_into_a_pong_is_sent_again(upwards: bool) -> None:
    """Without a checksum over frame numbers, the loss would go unnoticed."""
    with (
        server("--heartbeat-seconds", "0.2") as running,
        faulty_proxy(running.port) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        flipped: list[bytes] = []

        def to_pong(data: bytes, goes_up: bool) -> bytes:
            if flipped or goes_up != upwards or data[:1] != b"\x82" or len(data) < 25:
                return data
            flipped.append(data)
            return b"\x8a" + data[1:]

        proxy.change = to_pong
        while not flipped:  # a ping may arrive before the frame, in the same piece
            assert (tensor + 1).read().result(PATIENCE_SECONDS).tolist() == [2, 2, 2]
        assert len(flipped) == 1
        assert proxy.connections >= 2  # more if an end was too busy to answer a ping in time
