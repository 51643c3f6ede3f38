"""TLS contexts for accepting clients and for connecting to peers."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from burn_remote_protocol.errors import UsageError
from burn_remote_server.settings.server_settings import Settings

__all__ = ["InvalidCertificate", "ServerTls", "peer_context"]


class InvalidCertificate(UsageError):
    """A certificate, key or authority cannot be used; the message says which one and why."""

    code = "invalid_certificate"


class ServerTls:
    """The TLS context of a listening server, or ``None`` if it has no certificate."""

    def __init__(self, settings: Settings) -> None:
        """Load the certificate. Raises ``InvalidCertificate``."""
        self._settings: Final = settings
        self.context: Final = _server_context(settings) if settings.is_secure else None

    def reload(self) -> None:
        """Reload the certificate files for new connections.

        If they cannot be used, raises ``InvalidCertificate`` and keeps the old certificate.
        """
        self.prepare_reload()()

    def prepare_reload(self) -> Callable[[], None]:
        """Check the certificate files, in any thread; return a function that loads them.

        Both raise ``InvalidCertificate`` if they cannot be used, and keep the old certificate.
        """
        if self.context is None:
            return _load_nothing
        # Try the files in a new context first: a certificate and a key that do not match would
        # leave the live context with one of them replaced.
        _server_context(self._settings)
        return partial(self._load_into, self.context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        _load_certificate(context, self._settings)
        _require_client_certificates(context, self._settings)


def _load_nothing() -> None:
    """Do nothing: the server has no certificate."""


def peer_context(settings: Settings) -> ssl.SSLContext:
    """Return the TLS context for connections to ``wss://`` peers.

    Raises ``InvalidCertificate``.
    """
    if settings.peer_ca is None:
        context = ssl.create_default_context()
    else:  # without the system's certificate authorities, which take 60 ms to load
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _trust(context, settings.peer_ca, "peer_ca")
    if settings.is_secure:
        _load_certificate(context, settings)
    return context


def _server_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Compression leaks plaintext lengths; renegotiation costs a server more than its client.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _load_certificate(context, settings)
    _require_client_certificates(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    certificate, key = settings.tls_certificate, settings.tls_key
    assert certificate is not None  # called for secure servers only
    for setting, path in (("tls_certificate", certificate), ("tls_key", key)):
        if path is not None:
            _check_readable(setting, path)
    try:
        # Without a password callback, OpenSSL would block on a terminal prompt.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        files = f"tls_certificate {certificate}" + (f" and tls_key {key}" if key else "")
        raise InvalidCertificate(f"{files}: {_reason(error)}") from error


def _require_client_certificates(context: ssl.SSLContext, settings: Settings) -> None:
    if settings.tls_client_ca is not None:
        _trust(context, settings.tls_client_ca, "tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED


def _trust(context: ssl.SSLContext, path: Path, setting: str) -> None:
    _check_readable(setting, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidCertificate(f"{setting} {path}: {_reason(error)}") from error


def _check_readable(setting: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise InvalidCertificate(f"{setting} {path} cannot be read: {error.strerror}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted; use an unencrypted key readable by this user only")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not match the certificate"
    if reason in ("NO_START_LINE", "PEM lib") or "PEM" in reason:
        return "expected PEM text (-----BEGIN …)"
    return str(reason)
