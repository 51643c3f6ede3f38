"""TLS with real servers: which certificates are trusted, and the errors for others."""

from __future__ import annotations

import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

import burn_remote as br
from burn_remote_protocol.errors import UsageError
from support.access import ALICE, certificate, reload
from support.servers import server


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


@pytest.mark.parametrize("days", [-1, 1], ids=["expired", "not valid yet"])
def test_a_certificate_of_another_time_is_refused_with_what_to_correct(
    tmp_path: Path, authority: trustme.CA, days: int
) -> None:
    middle = datetime.now(UTC) + timedelta(days=days)
    hours = timedelta(hours=12)
    flags = certificate(tmp_path, authority, not_before=middle - hours, not_after=middle + hours)
    with (
        server(*flags) as running,
        pytest.raises(br.ConnectionFailed, match="renew the certificate, or correct the clock"),
    ):
        br.RemoteDevice(running.address, tls=tmp_path / "ca.pem")


def test_a_session_is_not_shared_with_a_device_that_does_not_trust_its_server(
    tmp_path: Path, authority: trustme.CA
) -> None:
    careless = ssl._create_unverified_context()
    with (
        server(*certificate(tmp_path, authority, "elsewhere")) as running,
        br.RemoteDevice(running.address, tls=careless) as device,
    ):
        assert br.RemoteDevice(running.address, tls=careless) == device
        for trust in (None, tmp_path / "ca.pem", ssl.create_default_context()):
            with pytest.raises(br.ConnectionFailed, match="is not trusted"):
                br.RemoteDevice(running.address, tls=trust)


def test_devices_that_trust_the_same_file_share_a_session(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with (
        server(*certificate(tmp_path, authority)) as running,
        br.RemoteDevice(running.address, tls=tmp_path / "ca.pem") as device,
    ):
        assert br.RemoteDevice(running.address, tls=str(tmp_path / "ca.pem")) == device


def test_the_error_for_ws_to_a_server_with_tls_suggests_wss(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with (
        server(*certificate(tmp_path, authority)) as running,
        pytest.raises(br.ConnectionFailed, match="wss://"),
    ):
        br.RemoteDevice(running.address.replace("wss://", "ws://"))


def test_the_error_for_an_authority_without_a_certificate_names_the_file(tmp_path: Path) -> None:
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


def test_after_a_hangup_signal_new_connections_get_the_new_certificate(
    tmp_path: Path, authority: trustme.CA
) -> None:
    with server(*certificate(tmp_path, authority, "elsewhere")) as running:
        certificate(tmp_path, authority)
        reload(running)
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
