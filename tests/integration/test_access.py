"""Who may connect to a real server: tokens, certificates, peers, and limits of each."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

import burn_remote as br
from burn_remote_protocol.dialects.burn_0_21 import encode_init
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from support.servers import RunningServer, server

ALICE = "alice-has-this-token-1"
BOB = "bob-has-this-other-one"
PEERS = "what-servers-show-each-other"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with server(BURN_REMOTE_TOKENS=f"alice:{ALICE},bob:{BOB}") as running:
        yield running


# -- tokens -----------------------------------------------------------------------------------


def test_a_token_opens_a_session(guarded: RunningServer) -> None:
    with br.RemoteDevice(guarded.address, token=ALICE) as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_the_token_may_come_from_the_environment(
    guarded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BURN_REMOTE_TOKEN", BOB)
    with br.RemoteDevice(guarded.address) as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_without_a_token_the_refusal_says_what_to_pass(guarded: RunningServer) -> None:
    with pytest.raises(
        br.HandshakeRefused, match=r"^this server needs a token; pass .*token="
    ) as e:
        br.RemoteDevice(guarded.address)
    assert "\n" not in str(e.value)


def test_a_wrong_token_is_refused(guarded: RunningServer) -> None:
    with pytest.raises(br.HandshakeRefused, match="does not know this token"):
        br.RemoteDevice(guarded.address, token="x" * 30)


def test_programs_with_different_tokens_share_no_session(guarded: RunningServer) -> None:
    with (
        br.RemoteDevice(guarded.address, token=ALICE) as alice,
        br.RemoteDevice(guarded.address, token=BOB) as bob,
    ):
        assert alice != bob


def test_a_refused_client_costs_the_server_nothing(guarded: RunningServer) -> None:
    for _ in range(300):  # more than max_sessions
        with pytest.raises(br.HandshakeRefused, match="token"):
            br.RemoteDevice(guarded.address)
    with br.RemoteDevice(guarded.address, token=ALICE) as device:
        device.sync()


def test_a_server_that_others_can_reach_does_not_start_without_tokens() -> None:
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    ended = subprocess.run(
        [sys.executable, "-m", "burn_remote_server", "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=30,
    )
    assert ended.returncode == 2
    assert "BURN_REMOTE_TOKENS" in ended.stderr
    assert "--token-file" in ended.stderr
    assert ended.stdout == ""


def test_with_tokens_it_starts() -> None:
    with (
        server("--host", "0.0.0.0", BURN_REMOTE_TOKENS=f"alice:{ALICE}") as running,
        br.RemoteDevice(running.address, token=ALICE) as device,
    ):
        device.sync()


def test_each_token_has_the_limits_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(
        f'alice = "{ALICE}"\n[bob]\ntoken = "{BOB}"\nmax_session_bytes = 1000\nmax_sessions = 1\n'
    )
    with (
        server("--token-file", str(file)) as running,
        br.RemoteDevice(running.address, token=ALICE) as alice,
        br.RemoteDevice(running.address, token=BOB) as bob,
    ):
        assert br.ones((1000,), device=alice).sum().item() == 1000
        with pytest.raises(br.QuotaExceeded, match=r"4,000 would be held, 1,000 are allowed"):
            br.ones((1000,), device=bob).numpy()
        assert br.ones((3,), device=bob).tolist() == [1, 1, 1]
        with pytest.raises(br.HandshakeRefused, match="'bob': 1 are open, 1 are allowed"):
            br.RemoteDevice(running.address + "/0", token=BOB)


def test_a_hangup_takes_tokens_from_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {ALICE}\n")
    with server("--token-file", str(file)) as running:
        with br.RemoteDevice(running.address, token=ALICE) as device:
            file.write_text(f"bob {BOB}\n")
            hang_up(running)
            device.sync()  # open sessions stay
            assert admits(running, BOB)
        with pytest.raises(br.HandshakeRefused):
            br.RemoteDevice(running.address, token=ALICE)


def hang_up(running: RunningServer) -> None:
    running.process.send_signal(signal.SIGHUP)


def admits(running: RunningServer, token: str) -> bool:
    """Whether a token opens a session, at once or as soon as the server has read its files."""
    for _ in range(1000):
        try:
            br.RemoteDevice(running.address, token=token).close()
        except br.HandshakeRefused:
            continue
        return True
    return False


def test_a_web_page_may_not_connect_even_to_loopback(guarded: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(f"{guarded.address}/session", origin=Origin("https://page.example"))
    assert caught.value.response.status_code == 403


# -- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certificate(folder: Path, authority: trustme.CA, *names: str) -> list[str]:
    """Write a certificate; return the flags of a server that shows it."""
    issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    issued.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "certificate.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return [
        "--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")
    ]  # fmt: skip


def test_a_session_over_tls_computes_and_moves_large_tensors(
    tmp_path: Path, authority: trustme.CA
) -> None:
    flags = certificate(tmp_path, authority)
    with server(*flags, BURN_REMOTE_TOKENS=f"alice:{ALICE}") as running:
        assert running.address.startswith("wss://127.0.0.1:")
        with br.RemoteDevice(running.address, token=ALICE, tls=tmp_path / "ca.pem") as device:
            tensor = br.ones((2000, 1000), device=device)
            assert tensor.sum().item() == 2_000_000
            there_and_back = br.tensor(tensor.numpy(), device=device)
            assert (there_and_back == tensor).all().item()


def test_a_certificate_of_an_unknown_authority_is_refused_by_the_client(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with (
        server(*certificate(tmp_path, authority)) as running,
        pytest.raises(br.ConnectionFailed, match="is not trusted"),
    ):
        br.RemoteDevice(running.address)


def test_a_certificate_of_another_host_is_refused_by_the_client(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with (
        server(*certificate(tmp_path, authority, "elsewhere")) as running,
        pytest.raises(
            br.ConnectionFailed, match=r"is not trusted.*a host name that the certificate"
        ),
    ):
        br.RemoteDevice(running.address, tls=tmp_path / "ca.pem")


def test_ws_to_a_server_with_tls_says_to_write_wss(tmp_path: Path, authority: trustme.CA) -> None:
    with (
        server(*certificate(tmp_path, authority)) as running,
        pytest.raises(br.ConnectionFailed, match="wss://"),
    ):
        br.RemoteDevice(running.address.replace("wss://", "ws://"))


def test_an_authority_that_is_no_certificate_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match=r"ca\.pem.*no certificate"):
        br.RemoteDevice("wss://127.0.0.1:1", tls=tmp_path / "ca.pem")
    with pytest.raises(UsageError, match=r"none.*No such file"):
        br.RemoteDevice("wss://127.0.0.1:1", tls=tmp_path / "none")
    with pytest.raises(br.ArgumentMismatch, match=r"path of a PEM file such as .*, not True"):
        br.RemoteDevice("wss://127.0.0.1:1", tls=True)  # type: ignore[arg-type]


def test_a_server_may_ask_clients_for_certificates(tmp_path: Path, authority: trustme.CA) -> None:
    flags = certificate(tmp_path, authority)
    with server(*flags, "--tls-client-ca", str(tmp_path / "ca.pem")) as running:
        with pytest.raises((br.ConnectionFailed, br.ConnectionLost)):
            br.RemoteDevice(running.address, tls=tmp_path / "ca.pem")
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        authority.issue_cert("a-client").configure_cert(context)
        with br.RemoteDevice(running.address, tls=context) as device:
            assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_after_a_hangup_new_connections_see_the_new_certificate(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with server(*certificate(tmp_path, authority, "elsewhere")) as running:
        certificate(tmp_path, authority)
        hang_up(running)
        for _ in range(1000):
            try:
                br.RemoteDevice(running.address, tls=tmp_path / "ca.pem").close()
            except br.ConnectionFailed:
                continue
            break
        else:
            pytest.fail("the new certificate was never shown")


def test_a_server_whose_certificate_cannot_be_read_does_not_start(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "burn_remote_server", "--port", "0", "--tls-certificate", "none"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "burn-remote-server: tls_certificate none cannot be read: No such file or directory\n"
    )


# -- peers ------------------------------------------------------------------------------------


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


# -- connections ------------------------------------------------------------------------------


def test_one_connection_too_many_is_refused_and_the_others_live() -> None:
    with server("--max-connections-per-address", "2") as running:
        with br.RemoteDevice(running.address) as first, br.RemoteDevice(running.address + "/0"):
            with pytest.raises(br.ConnectionFailed, match="429"):
                br.RemoteDevice(running.address, token="one-more-session")
            first.sync()
        assert admits_again(running)


def admits_again(running: RunningServer) -> bool:
    for _ in range(1000):
        try:
            br.RemoteDevice(running.address, token="once-more").close()
        except br.ConnectionFailed:
            continue
        return True
    return False


def test_connections_that_say_nothing_are_bounded_and_closed() -> None:
    flags = ("--max-connections", "4", "--handshake-timeout-seconds", "0.2")
    with server(*flags) as running:
        silent = [socket.create_connection(("127.0.0.1", running.port), 5) for _ in range(64)]
        try:
            silent[0].sendall(b"GET /session HTTP/1.1\r\nHost: x\r\nX-Slow")  # and never more
            for each in silent:
                each.settimeout(5)
                try:
                    while each.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
        finally:
            for each in silent:
                each.close()
        with br.RemoteDevice(running.address) as device:
            device.sync()


def test_a_request_that_comes_byte_by_byte_is_ended_in_time() -> None:
    with (
        server("--handshake-timeout-seconds", "0.2") as running,
        socket.create_connection(("127.0.0.1", running.port), 5) as dripping,
    ):
        dripping.sendall(b"GET /session HTTP/1.1\r\nX-Slow: ")
        deadline = time.monotonic() + 5
        with contextlib.suppress(ConnectionError):
            while not select.select([dripping], [], [], 0.01)[0]:
                assert time.monotonic() < deadline, "the server listens on"
                dripping.sendall(b"x")


def test_a_socket_without_a_hello_is_closed_in_time() -> None:
    with (
        server("--handshake-timeout-seconds", "0.2") as running,
        connect(f"{running.address}/session") as socket_,
    ):
        answer = socket_.recv(5, decode=False)
        assert b"no Hello came within 0.2 seconds" in answer
        with pytest.raises(ConnectionClosed):
            socket_.recv(5)


def test_compression_is_never_agreed_to(guarded: RunningServer) -> None:
    with connect(f"{guarded.address}/session", compression="deflate") as socket_:
        assert socket_.protocol.extensions == []


# -- tokens in addresses ----------------------------------------------------------------------


@pytest.mark.parametrize("route", ["request", "response"])
@pytest.mark.parametrize("place", ["/token/{token}/{route}", "/{route}?token={token}"])
def test_burns_sockets_take_the_token_from_their_address(
    guarded: RunningServer, route: str, place: str
) -> None:
    path = place.format(token=ALICE, route=route)
    with connect(guarded.address + path) as socket_:
        socket_.send(encode_init(7))
        socket_.ping().wait(5)
        assert socket_.protocol.close_code is None  # it was let in


@pytest.mark.parametrize("route", ["request", "response"])
@pytest.mark.parametrize("place", ["/{route}", "/token/wrong-wrong-wrong-wrong/{route}"])
def test_burns_sockets_without_a_known_token_are_closed_with_the_reason(
    guarded: RunningServer, route: str, place: str
) -> None:
    with connect(guarded.address + place.format(route=route)) as socket_:
        with pytest.raises(ConnectionClosed) as caught:
            socket_.recv(5)
        assert caught.value.rcvd is not None
        assert "token" in caught.value.rcvd.reason


def test_a_native_client_may_have_its_token_in_the_address_too(guarded: RunningServer) -> None:
    with br.RemoteDevice(f"{guarded.address}/token/{ALICE}") as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_a_token_in_an_address_stays_out_of_the_servers_log(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    environment["BURN_REMOTE_TOKENS"] = f"alice:{ALICE}"
    command = [sys.executable, "-m", "burn_remote_server", "--port", "0", "--log-level", "debug"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with br.RemoteDevice(f"{address}/token/{ALICE}") as device:
            device.sync()
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    text = (tmp_path / "log").read_text()
    assert "session opened" in text
    assert ALICE not in text


@pytest.mark.parametrize("route", ["session", "transfer", "request", "response", "data"])
def test_nobody_sends_large_messages_before_being_admitted(
    guarded: RunningServer, route: str
) -> None:
    with connect(f"{guarded.address}/{route}") as socket_:
        with pytest.raises(ConnectionClosed) as caught:
            socket_.send(bytes(2**20))
            while True:
                socket_.recv(5)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code in (1008, 1009)
