"""Admission of clients and peers by token, and the limits of each token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

from burn_remote_protocol.errors import HandshakeRefused, UsageError
from burn_remote_protocol.links.addresses import decoded_token
from burn_remote_protocol.peer_proofs import peer_key
from burn_remote_server.access.tokens import InvalidTokens, Token, checked_secret, read_tokens
from burn_remote_server.settings.listen_address import is_wildcard, unknown_host
from burn_remote_server.settings.server_settings import Settings

__all__ = ["NOBODY", "Access", "Grant", "OpenToNetwork", "is_loopback_only", "token_in_path"]


class OpenToNetwork(UsageError):
    """A server without tokens would accept connections from a network."""

    code = "open_to_network"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token grants: a name for the logs, and limits that override the server's."""

    name: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)


NOBODY: Final = Grant()


class Access:
    """The tokens of a server. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings) -> None:
        """Read the tokens. Raises ``InvalidTokens``, ``OpenToNetwork``."""
        self._settings: Final = settings
        self._tokens: tuple[tuple[bytes, Grant], ...] = ()
        self._peer: bytes | None = None
        self.reload()

    def reload(self) -> None:
        """Read the tokens again; on failure, keep the current ones.

        Open sessions stay open. Raises ``InvalidTokens``, ``OpenToNetwork``.
        """
        self.prepare_reload()()

    def prepare_reload(self) -> Callable[[], None]:
        """Read the tokens again, in any thread; return a function that replaces the current ones.

        Raises ``InvalidTokens``, ``OpenToNetwork``.
        """
        settings = self._settings
        tokens = read_tokens(settings)
        if not tokens and not is_loopback_only(settings.host):
            raise OpenToNetwork(_exposure(settings.host))
        if not tokens and settings.uses_relays:
            raise OpenToNetwork(
                f"with iroh_relays {settings.iroh_relays}, anyone who knows the node id can "
                "connect; set tokens with --token-file or BURN_REMOTE_TOKENS"
            )
        peer: bytes | None = None
        if settings.peer_token is not None:
            peer = peer_key(
                checked_secret("BURN_REMOTE_PEER_TOKEN", settings.peer_token.get_secret_value())
            )
        return partial(
            self._replace,
            tuple(
                (peer_key(token.secret), Grant(token.name, token.limits))
                for token in _unique(tokens)
            ),
            peer,
        )

    def _replace(self, tokens: tuple[tuple[bytes, Grant], ...], peer: bytes | None) -> None:
        self._tokens, self._peer = tokens, peer

    @property
    def names(self) -> frozenset[str]:
        """The names of all tokens; without tokens, the one name of all clients, an empty text."""
        return frozenset(grant.name for _, grant in self._tokens) or frozenset({NOBODY.name})

    def admit(self, token: str | None) -> Grant:
        """Return the grant of a client's token. Raises ``HandshakeRefused``."""
        if not self._tokens:
            return NOBODY
        grant = self._find(token)
        if grant is None:
            raise HandshakeRefused(_refusal(token))
        return grant

    def peer_keys(self) -> tuple[bytes, ...]:
        """Return the keys of which another server must prove one; empty if no proof is required.

        A peer may prove the peer token or a client's token: transfers only give access to tensors
        of clients.
        """
        keys = tuple(digest for digest, _ in self._tokens)
        return keys if self._peer is None else (self._peer, *keys)

    def serves_small_ids(self, token: str | None, is_allowed_peer: bool) -> bool:
        """Whether a peer may fetch by Burn's small transfer ids, which can be guessed.

        It must present a token, or connect from an address that ``--peer`` allows.
        """
        return is_allowed_peer or self._knows(token)

    def _knows(self, token: str | None) -> bool:
        is_peer = self._peer is not None and hmac.compare_digest(peer_key(token or ""), self._peer)
        return is_peer or self._find(token) is not None

    def _find(self, token: str | None) -> Grant | None:
        # Compares digests, with the digest of every token and in constant time. So the duration
        # reveals neither how many characters of a guess are right, nor which token it resembles.
        presented = peer_key(token or "")
        found: Grant | None = None
        for digest, grant in self._tokens:
            if hmac.compare_digest(presented, digest):
                found = grant
        return found


def token_in_path(target: str) -> tuple[str, str | None]:
    """Split a request's path into the path without the token, and the token.

    Burn's client has no other way to send a token: it accepts the address
    ``ws://host:3000/token/TOKEN`` and appends its route. Clients that keep the query of an address
    can use ``?token=TOKEN``. A path with an invalid token is returned unchanged and matches no
    route.
    """
    path, _, query = target.partition("?")
    if path.startswith("/token/"):
        segment, slash, rest = path.removeprefix("/token/").partition("/")
        token = decoded_token(segment)
        return (path, None) if token is None else (slash + rest or "/", token)
    return path, dict(parse_qsl(query)).get("token")


def is_loopback_only(host: str) -> bool:
    """Whether a server that listens on ``host`` is reachable only from its own machine."""
    if is_wildcard(host):
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host == "localhost"  # for any other name, the listener fails and reports the reason
    return all(ipaddress.ip_address(target[0]).is_loopback for *_, target in found)


def _exposure(host: str) -> str:
    try:
        socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return unknown_host(host)
    return (
        f"a server on {host or 'all interfaces'} is reachable from a network and needs tokens: set "
        'BURN_REMOTE_TOKENS=name:"$(openssl rand -hex 32)" or --token-file FILE, '
        "or listen on 127.0.0.1"
    )


def _refusal(token: str | None) -> str:
    if token is None:
        return (
            "this server requires a token; "
            "pass RemoteDevice(..., token=...) or set BURN_REMOTE_TOKEN"
        )
    is_named = ":" in token or len(token.split()) > 1  # an entry of a variable or a line of a file
    named = "; a name before it, as in name:token, is not part of the token" if is_named else ""
    return (
        "this server does not know this token; "
        f"check RemoteDevice(..., token=...) or BURN_REMOTE_TOKEN{named}"
    )


def _unique(tokens: Iterable[Token]) -> Iterable[Token]:
    seen: set[str] = set()
    for token in tokens:
        if token.secret in seen:
            raise InvalidTokens(f"{token.name!r} repeats another entry's token; each needs its own")
        seen.add(token.secret)
        yield token
