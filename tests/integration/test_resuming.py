"""A broken connection costs time and nothing else; a lost session is told at once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native_session import NativeSession
from burn_remote_protocol.dialects.native import CHUNK_BYTES
from burn_remote_protocol.replay import REPLAY_BYTES
from support.faults import faulty_proxy, random_cuts
from support.servers import RunningServer, server


def trained(device: br.Device, steps: int = 120) -> list[np.ndarray]:
    """Train a small network on data that goes up in each step, reading now and then."""
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
        faulty_proxy(first_server.port, random_cuts(50, 2_000, 60_000)) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        disturbed = trained(device)
        assert proxy.cuts >= 50
    for expected, seen in zip(undisturbed, disturbed, strict=True):
        np.testing.assert_array_equal(seen, expected)


def test_training_through_resets_and_bytes_that_come_one_by_one_gives_the_same_weights(
    first_server: RunningServer,
) -> None:
    with br.RemoteDevice(first_server.address) as device:
        undisturbed = trained(device, steps=4)
    cuts = random_cuts(5, 2_000, 20_000)
    with (
        faulty_proxy(first_server.port, cuts, piece_bytes=1, resets=True) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        disturbed = trained(device, steps=4)
        assert proxy.cuts == 5
    for expected, seen in zip(undisturbed, disturbed, strict=True):
        np.testing.assert_array_equal(seen, expected)


def test_a_delay_costs_time_and_no_connection(first_server: RunningServer) -> None:
    with faulty_proxy(first_server.port) as proxy, br.RemoteDevice(proxy.address) as device:
        tensor = br.ones((3,), device=device)
        proxy.flowing.clear()
        pending = (tensor + 1).read()
        assert not pending.done()
        proxy.flowing.set()
        assert pending.result(5).tolist() == [2, 2, 2]
        assert proxy.connections == 1


def test_a_program_that_sends_more_than_is_kept_waits_for_the_connection_and_loses_nothing(
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
        deadline = time.monotonic() + 5
        while connection._window.bytes < REPLAY_BYTES:
            assert time.monotonic() < deadline
        assert connection._window.bytes < REPLAY_BYTES + 2 * CHUNK_BYTES
        assert thread.is_alive()
        assert len(tensors) < 5
        proxy.open.set()
        thread.join(60)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), array)
        assert len(tensors) == 8


def test_every_thread_that_waits_learns_at_once_that_the_session_is_lost() -> None:
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
                pending.result(5)
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


def test_an_idle_session_comes_back_when_it_is_used_again(first_server: RunningServer) -> None:
    with (
        faulty_proxy(first_server.port) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.cut_all()
        assert (tensor + 1).tolist() == [2, 2, 2]


def test_a_stalled_connection_is_found_and_replaced() -> None:
    with (
        server("--heartbeat-seconds", "0.1") as running,
        faulty_proxy(running.port) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.stall_all()
        assert (tensor + 1).read().result(5).tolist() == [2, 2, 2]


def test_a_server_finds_a_client_that_went_silent_and_frees_what_it_held() -> None:
    with (
        server("--heartbeat-seconds", "0.1", "--lease-seconds", "0.1") as running,
        faulty_proxy(running.port) as proxy,
    ):
        device = br.RemoteDevice(proxy.address)
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.open.clear()
        proxy.stall_all()
        deadline = time.monotonic() + 5
        while running.metric("burn_remote_sessions") > 0:
            assert time.monotonic() < deadline, "the server still has the silent client's session"
        proxy.open.set()
        with pytest.raises(br.SessionLost):
            tensor.numpy()
        device.close()


def test_a_session_whose_lease_is_over_is_lost_at_once_and_typed() -> None:
    with server("--lease-seconds", "0.1") as running, faulty_proxy(running.port) as proxy:
        device = br.RemoteDevice(proxy.address)
        tensor = br.ones((3,), device=device)
        tensor.numpy()
        proxy.open.clear()
        proxy.cut_all()
        deadline = time.monotonic() + 5
        while running.metric("burn_remote_sessions") > 0:
            assert time.monotonic() < deadline, "the server still has the session"
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


def test_nobody_comes_back_to_a_session_without_its_secret(first_server: RunningServer) -> None:
    from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
    from burn_remote_protocol.links.websocket import blocking_link
    from burn_remote_protocol.messages import Hello, Refused, Resume

    with br.RemoteDevice(first_server.address) as device:
        session = device.session.welcome.session
        link = blocking_link.connect(first_server.address, "/session")
        link.send(encode_frame(Hello(VERSIONS, resume=Resume(session, bytes(16), 0))))
        answer = link.receive(5)
        link.close()
        assert answer is not None
        refused = decode_frame(answer)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, br.SessionLost)
        assert br.ones((1,), device=device).tolist() == [1]
