"""A broken connection costs time and nothing else; a lost session is told at once."""

from __future__ import annotations

import time

import numpy as np
import pytest

import burn_remote as br
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
    from burn_remote_protocol.links import websocket_blocking
    from burn_remote_protocol.messages import Hello, Refused, Resume

    with br.RemoteDevice(first_server.address) as device:
        session = device.session.welcome.session
        link = websocket_blocking.connect(first_server.address, "/session")
        link.send(encode_frame(Hello(VERSIONS, resume=Resume(session, bytes(16), 0))))
        answer = link.receive(5)
        link.close()
        assert answer is not None
        refused = decode_frame(answer)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, br.SessionLost)
        assert br.ones((1,), device=device).tolist() == [1]
