"""What one real server fetches from another, and what no client can make it fetch."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import trustme

import burn_remote as br
from burn_remote_protocol.tensors import TensorSpec
from support.access import ALICE, PEERS, certificate
from support.servers import RunningServer, server


def test_peers_with_the_same_peer_token_move_tensors() -> None:
    variables = {
        "BURN_REMOTE_TOKENS": f"alice:{ALICE}",
        "BURN_REMOTE_PEER_TOKEN": PEERS,
    }
    with (
        server(**variables) as first,
        server(**variables) as second,
        br.RemoteDevice(first.address, token=ALICE) as a,
        br.RemoteDevice(second.address, token=ALICE) as b,
    ):
        assert br.arange(5, device=a).to(b).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("token", [{}, {"BURN_REMOTE_PEER_TOKEN": "another-than-the-source-has"}])
def test_a_peer_with_another_token_or_none_fetches_nothing(token: dict[str, str]) -> None:
    with (
        server(BURN_REMOTE_TOKENS=f"alice:{ALICE}", BURN_REMOTE_PEER_TOKEN=PEERS) as source,
        server(**token) as target,
        br.RemoteDevice(source.address, token=ALICE) as a,
        br.RemoteDevice(target.address) as b,
    ):
        moved = br.arange(5, device=a).to(b)
        with pytest.raises(br.TransferFailed, match="BURN_REMOTE_PEER_TOKEN on both servers"):
            moved.numpy()
        assert br.ones((2,), device=b).tolist() == [1, 1]  # the session lives on


def test_peers_move_tensors_over_tls_and_show_each_other_certificates(
    tmp_path: Path, authority: trustme.CA
) -> None:
    flags = certificate(tmp_path, authority)
    ca = str(tmp_path / "ca.pem")
    with server(*flags, "--peer-ca", ca, "--tls-client-ca", ca) as first:
        context = ssl.create_default_context(cafile=ca)
        authority.issue_cert("a-client").configure_cert(context)
        with (
            server(*flags, "--peer-ca", ca) as second,
            br.RemoteDevice(first.address, tls=context) as a,
            br.RemoteDevice(second.address, tls=context) as b,
        ):
            tensor = br.ones((1000, 1000), device=a).to(b)
            assert tensor.sum().item() == 1_000_000


def test_a_peer_whose_certificate_is_not_trusted_is_not_fetched_from(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with (
        server(*certificate(tmp_path, authority)) as source,
        server() as target,
        br.RemoteDevice(source.address, tls=tmp_path / "ca.pem") as a,
        br.RemoteDevice(target.address) as b,
        pytest.raises(br.TransferFailed, match="not trusted"),
    ):
        br.ones((2,), device=a).to(b).numpy()


@pytest.mark.parametrize(
    "address",
    ["ws://169.254.169.254", "ws://[fe80::1]:80", "ws://192.0.2.7:3000", "ws://[::ffff:a9fe:a9fe]"],
)
def test_a_client_cannot_make_a_server_connect_to_what_its_operator_did_not_allow(
    address: str, guarded: RunningServer
) -> None:
    with br.RemoteDevice(guarded.address, token=ALICE) as device:
        handle = device.session.fetch(b"t" * 32, address, TensorSpec((2,), br.float32))
        with pytest.raises(br.TransferFailed, match="may not fetch from"):
            device.session.read_tensor_async(handle).result(5)


def test_a_client_cannot_make_a_server_ask_other_programs_for_their_pages(
    guarded: RunningServer,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        br.RemoteDevice(guarded.address, token=ALICE) as device,
    ):
        other.setblocking(False)
        address = f"ws://127.0.0.1:{other.getsockname()[1]}/admin/delete-all"
        handle = device.session.fetch(b"t" * 32, address, TensorSpec((2,), br.float32))
        with pytest.raises(br.TransferFailed, match="no server's device"):
            device.session.read_tensor_async(handle).result(5)
        with pytest.raises(BlockingIOError):
            other.accept()  # nobody came
