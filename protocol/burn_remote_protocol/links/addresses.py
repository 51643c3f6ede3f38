"""Server addresses, and the token that a path may contain.

A server at a host has the address ``ws://host:port/prefix``. An Iroh server has a public key, its
node id, as its name: ``iroh://NODE-ID/prefix?addr=192.0.2.7:4433``. ``addr`` may occur several
times; it tells where the server is, and does not have to be right for the connection to be safe,
because the server proves its key. ``relay=https://…`` names a relay. Without ``addr`` and
``relay``, the server is found by the node id alone, over public relays.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from burn_remote_protocol.errors import ConnectionFailed

__all__ = [
    "DEFAULT_PORT",
    "IROH",
    "SCHEMES",
    "Address",
    "decoded_token",
    "named_address",
    "names_scheme",
    "parse_address",
    "parse_device_path",
    "without_token",
]

# Also the default port of Burn's own servers and clients.
DEFAULT_PORT: Final = 3000

# Every known scheme, and whether it encrypts. ``transport_registry.register`` adds to it.
SCHEMES: Final[dict[str, bool]] = {"ws": False, "wss": True, "iroh": True}

# The scheme of addresses that name a server by its key.
IROH: Final = "iroh"
_NODE_ID: Final = re.compile(r"[0-9a-f]{64}")
_IROH_EXAMPLE: Final = "iroh://NODE-ID?addr=192.0.2.7:4433, with the node id that the server prints"
# The dialler tries all of them at once.
MAX_DIRECT_ADDRESSES: Final = 8

# The scheme to suggest instead of an unknown one.
_SUGGESTED: Final = {"http": "ws", "https": "wss", "tcp": "ws", "grpc": "ws"}

# A host name has at most 253 characters, and a token 512, each of which percent-encoding may turn
# into three.
MAX_ADDRESS_CHARACTERS: Final = 2048

# The characters that RFC 6750 allows in a bearer token.
TOKEN_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
MAX_TOKEN_CHARACTERS: Final = 512
_DEVICE_PATH: Final = re.compile(
    r"(?:/token/(?P<token>[A-Za-z0-9._~+%=-]+))?(?:/(?P<device>[0-9]{1,4}))?"
)
_SECRETS: Final = re.compile(r"(/token/|[?&]token=)[^/?#&\s'\"]*")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: ``scheme://host:port/path``.

    ``host`` has no brackets; ``path`` is ``""`` or begins with a slash and does not end with one.
    ``route`` is what a client appends to the address. ``str()`` and ``repr()``, for messages and
    logs, show the address that the program wrote: without the route, and with the token in the path
    hidden. ``uri`` contains both.

    Of an Iroh server, ``host`` is the node id in lower case, ``port`` is 0, and ``direct`` and
    ``relay`` are the values of ``addr`` and ``relay``.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    route: str = ""
    direct: tuple[str, ...] = ()
    relay: str = ""

    @property
    def secure(self) -> bool:
        """Whether connections to it are encrypted."""
        return SCHEMES[self.scheme]

    def __str__(self) -> str:
        return without_token(replace(self, route="").uri)

    def __repr__(self) -> str:
        return f"<Address {self}>"

    @property
    def uri(self) -> str:
        """The address to connect to, including the token in its path, and the route."""
        if self.scheme == IROH:
            fields = [("addr", address) for address in self.direct]
            if self.relay:
                fields.append(("relay", self.relay))
            query = "&".join(f"{name}={quote(value, safe=':/[].')}" for name, value in fields)
            return f"{IROH}://{self.host}{self.path}{self.route}{query and f'?{query}'}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}{self.route}"

    def joined(self, route: str) -> Address:
        """Return the address of a route (``"/session"``) below this one."""
        return replace(self, route=route.rstrip("/"))


def parse_address(text: str) -> Address:
    """Parse ``scheme://host[:port][/prefix]``, with a scheme of ``SCHEMES``, or an Iroh address.

    Raises ``ConnectionFailed`` with a suggestion of what to write instead.
    """
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise ConnectionFailed(
            f"an address has at most {MAX_ADDRESS_CHARACTERS:,} characters, not {len(text):,}"
        )
    text = text.strip()
    if not text.isprintable():
        # ``urlsplit`` removes tabs and line breaks.
        printable = "".join(filter(str.isprintable, text))
        raise _malformed(text, "it contains control characters", printable)
    scheme = _known_scheme(text)
    parts = _split(text)
    if scheme == IROH:
        return _parse_iroh(text, parts)
    example = f"{scheme}://host:{DEFAULT_PORT}"
    if not parts.hostname:
        raise _malformed(text, "it names no host", example)
    if parts.username is not None or parts.password is not None:
        raise _with_password()
    if parts.query or parts.fragment:
        raise _malformed(text, "it has a ? or # part", text.split("?")[0].split("#")[0])
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise _malformed(text, "the port is not a number from 1 to 65535", example)
    host = _ascii_host(text, parts.hostname)
    return Address(scheme, host, port or DEFAULT_PORT, _path(text, parts))


def _parse_iroh(text: str, parts: SplitResult) -> Address:
    name = parts.netloc.lower()
    if "@" in text:  # the text may have a password before it
        raise ConnectionFailed(f"an Iroh address has no @; write {_IROH_EXAMPLE}")
    if ":" in name:
        raise _malformed_iroh(text, "a node id has no port, which is a part of addr=")
    if not _NODE_ID.fullmatch(name):
        raise _malformed_iroh(text, "the node id does not have 64 hexadecimal digits")
    direct: list[str] = []
    relays: list[str] = []
    try:
        fields = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise _malformed_iroh(text, "the part after ? is not addr=… or relay=…") from error
    for field, value in fields:
        if field == "addr":
            direct.append(_socket_address(text, value))
        elif field == "relay" and _is_relay(value):
            relays.append(value)
        else:
            raise _malformed_iroh(text, f"{field}={value} is not addr=HOST:PORT or relay=https://…")
    if parts.fragment or len(direct) > MAX_DIRECT_ADDRESSES or len(relays) > 1:
        problem = f"it has a # part, more than {MAX_DIRECT_ADDRESSES} addr= or more than one relay="
        raise _malformed_iroh(text, problem)
    direct = list(dict.fromkeys(direct))
    return Address(IROH, name, 0, _path(text, parts), "", tuple(direct), "".join(relays))


def _socket_address(text: str, value: str) -> str:
    """Return ``192.0.2.7:4433`` or ``[2001:db8::7]:4433`` in its normal form."""
    host, _, port = value.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ValueError
    except ValueError as error:
        problem = f"addr={value} is not a numeric address with a port"
        raise _malformed_iroh(text, problem) from error
    return f"[{ip}]:{int(port)}" if ip.version == 6 else f"{ip}:{int(port)}"


def _is_relay(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in value
    except ValueError:
        return False


def _malformed_iroh(text: str, problem: str) -> ConnectionFailed:
    message = f"{text!r} is not an Iroh address: {problem}; write {_IROH_EXAMPLE}"
    return ConnectionFailed(without_token(message))


def _known_scheme(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    known = " or ".join(f"{name}://" for name in SCHEMES)
    if not separator:
        raise _malformed(text, f"it does not begin with {known}", _suggestion(text))
    if scheme not in SCHEMES:
        suggestion = f"{_SUGGESTED.get(scheme, 'ws')}://{rest or 'host:3000'}"
        raise _malformed(text, f"{scheme}:// is not {known}", suggestion)
    return scheme


def names_scheme(text: str) -> bool:
    """Whether a text is the name of a scheme, or a common mistake for one, like ``http``."""
    return text.lower() in SCHEMES | _SUGGESTED


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise _malformed(text, str(error), f"ws://host:{DEFAULT_PORT}") from error


def _path(text: str, parts: SplitResult) -> str:
    path = parts.path.rstrip("/")
    if not path.isascii() or any(character <= " " for character in path):
        raise _malformed(text, "its path has spaces or non-ASCII characters", "ws://host:3000/1")
    return path


def _ascii_host(text: str, host: str) -> str:
    try:
        name = host if host.isascii() else host.encode("idna").decode()
        if any(character <= " " for character in name):
            raise ValueError
        if ":" in name:
            ipaddress.IPv6Address(name)
    except ValueError as error:
        problem = f"{host!r} is not a host name"
        raise _malformed(text, problem, f"ws://host:{DEFAULT_PORT}") from error
    return name


def _suggestion(text: str) -> str:
    """Suggest an address for a text without ``://``, like ``gpu-box:3000`` or ``ws:/gpu-box``."""
    scheme, _, rest = text.partition(":")
    if names_scheme(scheme):
        text = rest
        scheme = _SUGGESTED.get(scheme.lower(), scheme.lower())
    elif names_scheme(text.partition("//")[0]):  # ws//gpu-box:3000
        scheme, _, text = text.partition("//")
        scheme = _SUGGESTED.get(scheme.lower(), scheme.lower())
    else:
        scheme = "ws"
    return f"{scheme}://{text.strip('/') or f'host:{DEFAULT_PORT}'}"


def _with_password() -> ConnectionFailed:
    """Return the error for an address with a password, which must not repeat it."""
    return ConnectionFailed(
        "an address must not contain a user name or password, which end up in logs; "
        "pass token=… instead"
    )


def _malformed(text: str, problem: str, suggestion: str) -> ConnectionFailed:
    if "@" in text:
        return _with_password()
    message = f"{text!r} is not an address: {problem}; write {suggestion}"
    return ConnectionFailed(without_token(message))


def named_address(text: str) -> str:
    """Return an address for a message or a log: without secrets and on one line."""
    try:
        return str(parse_address(text))
    except ConnectionFailed:
        return "an invalid address"


def without_token(text: str) -> str:
    """Return a text with the tokens of all addresses in it replaced by ``…``."""
    return _SECRETS.sub(r"\1…", text)


def parse_device_path(path: str) -> tuple[str | None, int] | None:
    """Return the token and the device number of ``[/token/TOKEN][/1]``, or ``None``.

    Returns ``None`` for any other path, because servers have no others. In particular, this rejects
    paths that a proxy could normalize to one outside ``/token/``, such as
    ``/token/..%2f..%2fadmin``.
    """
    match = _DEVICE_PATH.fullmatch(path)
    if match is None:
        return None
    token = match["token"]
    if token is not None:
        token = decoded_token(token)
        if token is None:
            return None
    return token, int(match["device"] or 0)


def decoded_token(segment: str) -> str | None:
    """Return the token that a path segment encodes, or ``None`` if it is not a valid token.

    Percent-encoding is decoded once. Slashes in a token separate names as in a path, and no name
    may be empty, ``.`` or ``..``.
    """
    token = unquote(segment, errors="replace")
    if len(token) > MAX_TOKEN_CHARACTERS or not TOKEN_CHARACTERS.fullmatch(token):
        return None
    if any(name in ("", ".", "..") for name in token.split("/")):
        return None
    return token
