"""What does a program show a server, and which servers does it trust?"""

from __future__ import annotations

import os
import ssl
from typing import Final

from burn_remote_protocol.errors import ArgumentMismatch, UsageError

__all__ = ["checked_token", "trusted_context"]

TOKEN_VARIABLE: Final = "BURN_REMOTE_TOKEN"


def checked_token(token: str | None) -> str | None:
    """Return a token, that of ``$BURN_REMOTE_TOKEN`` without one, or none.

    White space around it, such as the newline of the file it came from, is no part of it. Raises
    ``UsageError`` where nothing is left.
    """
    if token is not None and not isinstance(token, str):
        # Without its value: errors end up in logs.
        raise ArgumentMismatch(f"a token is text, not of type {type(token).__name__}")
    source, text = "token=…", token
    if text is None:
        # As for other programs, an empty variable is one that is not set.
        source, text = f"${TOKEN_VARIABLE}", os.environ.get(TOKEN_VARIABLE) or None
    if text is None:
        return None
    stripped = text.strip()
    if not stripped:
        raise UsageError(f"{source} is empty; leave it out where the server asks for no token")
    return stripped


def trusted_context(
    tls: ssl.SSLContext | str | os.PathLike[str] | None, address: str
) -> ssl.SSLContext | None:
    """Return what trusts a server at a normal address; ``None`` stands for what the system trusts.

    Raises ``UsageError`` for a file that cannot be used, or an address without TLS.
    """
    if tls is None:
        return None
    if not address.startswith("wss://"):
        # Also where a session without TLS is open already, which would be taken in silence.
        raise UsageError(f"tls=… is for an address that starts with wss://, not for {address}")
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, str | os.PathLike):
        raise ArgumentMismatch(
            f"tls is an ssl.SSLContext or the path of a PEM file such as 'ca.pem', not {tls!r}"
        )
    try:
        return ssl.create_default_context(cafile=tls)
    except OSError as error:  # an SSLError is one too
        is_unreadable = not isinstance(error, ssl.SSLError)
        reason = error.strerror if is_unreadable else "it has no certificate in PEM text"
        raise UsageError(f"tls={os.fspath(tls)!r} cannot be used: {reason}") from error
