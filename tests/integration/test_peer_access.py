"""What one real server fetches from another, and what a client cannot make it fetch or reveal."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

import burn_remote as br
from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.links.checksummed_links import Checks
from burn_remote_protocol.messages import PeerChallenge
from burn_remote_protocol.peer_proofs import peer_key
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.transfers.retries import SILENT_TRIES
from support.access import ALICE, PEERS, certificate
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS


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
def test_a_peer_with_a_wrong_or_missing_token_fetches_nothing(token: dict[str, str]) -> None:
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


def test_peers_prove_their_token_over_tls_at_each_devices_advertised_address(
    tmp_path: Path, authority: trustme.CA
) -> None:
    ca = str(tmp_path / "ca.pem")
    flags = [*certificate(tmp_path, authority), "--peer-ca", ca, "--device-count", "2"]
    variables = {"BURN_REMOTE_TOKENS": f"alice:{ALICE}", "BURN_REMOTE_PEER_TOKEN": PEERS}
    with server(*flags, **variables) as first, server(*flags, **variables) as second:
        options: dict[str, Any] = {"token": ALICE, "tls": ca}
        with (
            br.RemoteDevice(f"{first.address}/1", **options) as a,
            br.RemoteDevice(second.address, **options) as b,
        ):
            moved = br.arange(100_000, device=a).to(b)
            assert moved.sum().item() == 4_999_950_000
            assert moved.to(a).sum().item() == 4_999_950_000


def test_the_error_for_a_source_at_an_unadvertised_address_names_the_setting() -> None:
    variables = {"BURN_REMOTE_PEER_TOKEN": PEERS}
    elsewhere = ("--advertise-address", "ws://node-b:3000")
    with (
        server(*elsewhere, **variables) as source,
        server(**variables) as target,
        br.RemoteDevice(target.address) as device,
    ):
        assert "--advertise-address" in refusal(source.address, device)


def test_nothing_is_fetched_from_a_peer_whose_certificate_is_not_trusted(
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


def refusal(address: str, device: br.RemoteDevice) -> str:
    """Have a device's server fetch from an address; return why it did not."""
    handle = device.runners.fetch(b"t" * 32, address, TensorSpec((2,), br.float32))
    with pytest.raises(br.TransferFailed) as caught:
        device.runners.read_tensor_async(handle).result(PATIENCE_SECONDS)
    return str(caught.value)


def test_a_server_never_sends_its_peer_token_to_an_address_from_a_client() -> None:
    heard: list[bytes] = []

    def listen(connection: ServerConnection) -> None:
        assert connection.request is not None
        heard.append(f"{connection.request.path} {connection.request.headers}".encode())
        with contextlib.suppress(ConnectionClosed):
            heard.append(connection.recv(5, decode=False))
            connection.send(Checks().seal(encode_frame(PeerChallenge(1, bytes(32)))))
            heard.append(connection.recv(5, decode=False))
            connection.recv(PATIENCE_SECONDS)

    variables = {"BURN_REMOTE_TOKENS": f"alice:{ALICE}", "BURN_REMOTE_PEER_TOKEN": PEERS}
    with (
        serve(listen, "127.0.0.1", 0) as stranger,
        server("--handshake-timeout-seconds", "1", **variables) as target,
        br.RemoteDevice(target.address, token=ALICE) as device,
    ):
        thread = threading.Thread(target=stranger.serve_forever)
        thread.start()
        try:
            refusal(f"ws://127.0.0.1:{stranger.socket.getsockname()[1]}", device)
        finally:
            stranger.shutdown()
            thread.join(PATIENCE_SECONDS)
    said = b"".join(heard)
    assert len(heard) == 3 * SILENT_TRIES
    for secret in (PEERS, ALICE, b"t" * 32, peer_key(PEERS)):
        assert (secret.encode() if isinstance(secret, str) else secret) not in said


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--peer", "node-b", "--peer", "127.0.0.1:1-2"), "may not fetch from"),
        (("--peer-ca",), "over TLS only"),
    ],
)
def test_a_server_dials_only_peers_that_its_operator_named_and_only_over_tls(
    flags: tuple[str, ...], says: str, tmp_path: Path, authority: trustme.CA
) -> None:
    if flags == ("--peer-ca",):
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        flags = ("--peer-ca", str(tmp_path / "ca.pem"))
    with (
        socket.create_server(("127.0.0.1", 0)) as stranger,
        server(*flags) as target,
        br.RemoteDevice(target.address) as device,
    ):
        stranger.setblocking(False)
        assert says in refusal(f"ws://127.0.0.1:{stranger.getsockname()[1]}", device)
        with pytest.raises(BlockingIOError):
            stranger.accept()  # no connection was made


@pytest.mark.parametrize(
    "path", ["/token/..%2f..%2fadmin/transfer", "/token/%2e%2e/transfer", "/token//transfer"]
)
def test_a_server_rejects_paths_that_a_proxy_could_normalize(
    path: str, first_server: RunningServer
) -> None:
    with pytest.raises(InvalidStatus) as caught, connect(first_server.address + path):
        pass
    assert caught.value.response.status_code == 404


@pytest.mark.parametrize(
    "address",
    ["ws://169.254.169.254", "ws://[fe80::1]:80", "ws://192.0.2.7:3000", "ws://[::ffff:a9fe:a9fe]"],
)
def test_a_client_cannot_make_a_server_connect_to_peers_its_operator_did_not_allow(
    address: str, guarded: RunningServer
) -> None:
    with br.RemoteDevice(guarded.address, token=ALICE) as device:
        assert "may not fetch from" in refusal(address, device)


@pytest.mark.parametrize(
    "path", ["/admin/delete-all", "/token/..%2f..%2fadmin", "/1/../admin", "/token/a/%2e%2e/b"]
)
def test_a_client_cannot_make_a_server_request_pages_of_other_programs(
    path: str,
    guarded: RunningServer,
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        br.RemoteDevice(guarded.address, token=ALICE) as device,
    ):
        other.setblocking(False)
        address = f"ws://127.0.0.1:{other.getsockname()[1]}{path}"
        assert "is not the address of a device" in refusal(address, device)
        with pytest.raises(BlockingIOError):
            other.accept()  # no connection was made
