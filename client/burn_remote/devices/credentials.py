"""A client's credentials: the token that it sends, and the TLS authorities that it trusts."""

from __future__ import annotations

import os
import ssl
from typing import Final

from burn_remote_protocol.errors import ArgumentMismatch, UsageError, type_name
from burn_remote_protocol.links.addresses import without_token

__all__ = ["checked_token", "trusted_context"]

TOKEN_VARIABLE: Final = "BURN_REMOTE_TOKEN"


def checked_token(token: str | None) -> str | None:
    """Return ``token``, else the value of ``$BURN_REMOTE_TOKEN``, else ``None``.

    White space around a token, such as a file's final newline, is removed. Raises ``UsageError`` if
    nothing is left.
    """
    if token is not None and not isinstance(token, str):
        # The message omits the value, because errors end up in logs.
        raise ArgumentMismatch(f"a token is text, not of type {type_name(token)}")
    source, text, way = "token=…", token, "omit it"
    if text is None:
        # An empty variable counts as not set, as is usual.
        source, text = f"${TOKEN_VARIABLE}", os.environ.get(TOKEN_VARIABLE) or None
        way = "unset it"
    if text is None:
        return None
    stripped = text.strip()
    if not stripped:
        raise UsageError(f"{source} is empty; {way} if the server requires no token")
    return stripped


def trusted_context(
    tls: ssl.SSLContext | str | os.PathLike[str] | None, address: str
) -> ssl.SSLContext | None:
    """Return the TLS context for a normal address; ``None`` stands for the system's trust store.

    Raises ``UsageError`` for a file that cannot be used, or an address without TLS.
    """
    if tls is None:
        return None
    if not address.startswith("wss://"):
        # Otherwise, a session without TLS that is already open would be used silently.
        shown = without_token(address)
        raise UsageError(f"tls= needs an address that starts with wss://, not {shown}")
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, str | os.PathLike):
        raise ArgumentMismatch(
            f"tls is an ssl.SSLContext or the path of a PEM file such as 'ca.pem', not {tls!r}"
        )
    path = os.fspath(tls)
    if not path:
        # ``ssl`` would trust the system's authorities.
        raise UsageError("tls=… is empty; omit it to trust the authorities of the system")
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:
        raise UsageError(f"tls={path!r} cannot be used: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return "it has no certificate in PEM text"
    return getattr(error, "strerror", None) or str(error)
