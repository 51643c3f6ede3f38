"""A server presents the certificate in its files, reloads it, and never mixes old and new."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from burn_remote_server.access.tls import InvalidCertificate, ServerTls, peer_context
from burn_remote_server.settings.server_settings import Settings


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, authority: trustme.CA, name: str = "node-a") -> Settings:
    certificate = authority.issue_cert(name)
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "certificate.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
    return Settings(tls_certificate=folder / "certificate.pem", tls_key=folder / "key.pem")


def shown(server: ssl.SSLContext, authority: trustme.CA, host: str) -> None:
    """Perform a TLS handshake in memory. Raises the client's error."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_a_server_without_a_certificate_does_not_use_tls() -> None:
    assert ServerTls(Settings()).context is None


def test_the_certificate_of_the_files_is_shown(tmp_path: Path, authority: trustme.CA) -> None:
    context = ServerTls(write(tmp_path, authority)).context
    assert context is not None
    shown(context, authority, "node-a")
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(context, authority, "node-b")


def test_versions_older_than_tls_1_2_are_refused(tmp_path: Path, authority: trustme.CA) -> None:
    context = ServerTls(write(tmp_path, authority)).context
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_after_a_reload_new_connections_see_the_new_certificate(
    tmp_path: Path, authority: trustme.CA
) -> None:
    tls = ServerTls(write(tmp_path, authority, "node-a"))
    write(tmp_path, authority, "node-b")
    tls.reload()
    assert tls.context is not None
    shown(tls.context, authority, "node-b")


def test_a_reload_of_mismatched_files_keeps_the_old_certificate(
    tmp_path: Path, authority: trustme.CA
) -> None:
    tls = ServerTls(write(tmp_path, authority, "node-a"))
    authority.issue_cert("node-b").private_key_pem.write_to_path(tmp_path / "key.pem")
    with pytest.raises(InvalidCertificate, match="the key does not match the certificate"):
        tls.reload()
    assert tls.context is not None
    shown(tls.context, authority, "node-a")


def test_a_server_with_an_authority_asks_for_certificates(
    tmp_path: Path, authority: trustme.CA
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = write(tmp_path, authority).model_copy(update={"tls_client_ca": tmp_path / "ca.pem"})
    context = ServerTls(settings).context
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ssl.SSLError):
        shown(context, authority, "node-a")


@pytest.mark.parametrize(
    ("setting", "text", "problem"),
    [
        ("tls_certificate", None, "cannot be read: No such file"),
        ("tls_key", None, "cannot be read: No such file"),
        ("tls_certificate", "no certificate", "expected PEM"),
        ("tls_key", "no key", "expected PEM"),
        ("tls_client_ca", "nobody", ""),
        ("tls_client_ca", None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, authority: trustme.CA, setting: str, text: str | None, problem: str
) -> None:
    file = tmp_path / "wrong.pem"
    if text is not None:
        file.write_text(text)
    settings = write(tmp_path, authority).model_copy(update={setting: file})
    with pytest.raises(InvalidCertificate, match=f"{setting} .*wrong.pem.*{problem}"):
        ServerTls(settings)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="tls_key needs tls_certificate"):
        Settings(tls_key=Path("key.pem"))


def test_peers_are_trusted_by_the_authority_that_is_given(
    tmp_path: Path, authority: trustme.CA
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = peer_context(
        write(tmp_path, authority).model_copy(update={"peer_ca": tmp_path / "ca.pem"})
    )
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert [each["subject"] for each in context.get_ca_certs()]
    with pytest.raises(InvalidCertificate, match=r"peer_ca .*none"):
        peer_context(Settings(peer_ca=tmp_path / "none"))
