"""How is a WebSocket opened to an address, and what does a person read when it can't be?"""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.uri import parse_uri

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES

__all__ = ["connection_failure", "dial", "upgrade"]

# The kernel asks a silent peer for a sign of life, without a WebSocket ping, which kills Burn 0.21.
# Larger: a peer whose machine vanished is noticed later. Smaller: traffic on idle connections, and
# a network that is gone for less than their product is noticed.
KEEPALIVE_IDLE_SECONDS: Final = 30
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 3

# OpenSSL's codes for a certificate that is trusted, but for another name or IP address.
_OTHER_HOST: Final = (62, 64)

_HEADERS_END: Final = b"\r\n\r\n"
# Any status but 101. Its body is of no interest; HTTP/1.0 servers are not websockets' business.
_REFUSAL: Final = re.compile(rb"HTTP/1\.[01] (?!101)(\d{3})\b ?([^\r\n]{0,200})")


def dial(address: Address, tls: ssl.SSLContext | None, deadline: float) -> socket.socket:
    """Return a connected socket, TLS done where the address asks for it.

    ``deadline`` is on ``time.monotonic``'s clock and bounds all of it. Raises ``ConnectionFailed``.
    """
    if tls is not None and not address.secure:
        raise ConnectionFailed(f"tls was given, but {address} is not encrypted; write wss://")
    try:
        sock = _connect_any(_resolve(address, deadline), deadline)
        _configure(sock)
        if not address.secure:
            return sock
        with _closing_on_error(sock):
            sock.settimeout(_remaining(deadline))
            context = tls or ssl.create_default_context()
            return context.wrap_socket(sock, server_hostname=address.host)
    except OSError as error:
        raise connection_failure(address, error) from error


def upgrade(
    sock: socket.socket, address: Address, headers: Mapping[str, str], deadline: float
) -> tuple[ClientProtocol, bytes]:
    """Turn a connection into a WebSocket; return its state and the bytes that came too early.

    The state gives no messages: it answers control frames and knows about closing. Raises
    ``ConnectionFailed``.
    """
    protocol = ClientProtocol(parse_uri(address.uri), max_size=None)
    request = protocol.connect()
    request.headers.update(Headers(headers))
    protocol.send_request(request)
    try:
        sock.settimeout(_remaining(deadline))
        sock.sendall(b"".join(protocol.data_to_send()))
        early = _read_response(sock, address, protocol, deadline)
        if protocol.handshake_exc is not None:
            raise protocol.handshake_exc
    except ConnectionFailed:  # an OSError too
        raise
    except (OSError, InvalidHandshake) as error:
        raise connection_failure(address, error) from error
    return protocol, early


def connection_failure(address: Address, error: Exception) -> ConnectionFailed:
    """Say in one sentence why a connection could not be opened and what to check."""
    if isinstance(error, InvalidStatus):
        return _status_failure(address, error.response.status_code, error.response.reason_phrase)
    return ConnectionFailed(_explanation(address, error))


def _explanation(address: Address, error: Exception) -> str:
    match error:
        case socket.gaierror():
            return f"no host is known by the name {address.host!r}; check the address {address}"
        case ConnectionRefusedError():
            return (
                f"nothing listens at {address}; check the port, and that the server is running "
                "and bound to an address other machines can reach"
            )
        case ssl.SSLCertVerificationError():
            return _distrust(address, error)
        case ssl.SSLError():
            return (
                f"no TLS with {address} ({error.reason or error}); check that the server speaks "
                "TLS, or write ws://"
            )
        case TimeoutError():
            return (
                f"{address} did not answer in time; check the host, the port, and firewalls on "
                "the way"
            )
        case InvalidMessage() if isinstance(error.__cause__, EOFError):
            return _hung_up(address)
        case InvalidHandshake():
            return f"{address} is no WebSocket server ({error}); check the port"
        case ConnectionError() | ConnectionClosed():
            return _hung_up(address)
    return f"no connection to {address}: {error}; check the address and the network"


def _distrust(address: Address, error: ssl.SSLCertVerificationError) -> str:
    advice = 'name the authority that signed it: tls="ca.pem", or for a server --peer-ca ca.pem'
    if error.verify_code in _OTHER_HOST:
        advice = "write a host name that the certificate has"
    return f"the certificate of {address} is not trusted ({error.verify_message}); {advice}"


def _hung_up(address: Address) -> str:
    check = "" if address.secure else ", or write wss:// if it uses TLS"
    return f"{address} hung up before it spoke; check the port{check}"


def _status_failure(address: Address, status: int, phrase: str) -> ConnectionFailed:
    failure = ConnectionFailed(_status_explanation(address, status, phrase))
    failure.http_status = status
    return failure


def _status_explanation(address: Address, status: int, phrase: str) -> str:
    seen = f"{address} answered HTTP {status}"
    if status == 421:
        return f"{seen}: {phrase:.200}"
    if status in (401, 403):
        return f"{seen}; check the token"
    if status == 429:
        return f"{seen}: this machine has as many connections as the server allows; close some"
    if status in (502, 503, 504):
        return f"{seen}: it is starting, draining or overloaded; try again later"
    return f"{seen} and no WebSocket; check the port, and that a Burn server listens there"


def _resolve(address: Address, deadline: float) -> list[Any]:
    """Look the name up, within the time; the system's resolver has no bound that we can set."""
    with contextlib.suppress(socket.gaierror, UnicodeError):
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=numeric
        )
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # a label of more than 63 characters
            answers.put(socket.gaierror(f"{address.host!r} is no host name"))

    # A daemon: when time is over, the thread stays inside the resolver, and nothing can stop it.
    threading.Thread(target=look_up, name="burn-remote-resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=_remaining(deadline))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _connect_any(found: list[Any], deadline: float) -> socket.socket:
    """Connect to the first that answers; each gets its share of the remaining time."""
    failure: OSError = TimeoutError()
    for index, (family, kind, number, _, target) in enumerate(found):
        sock = socket.socket(family, kind, number)
        try:
            sock.settimeout(_remaining(deadline) / (len(found) - index))
            sock.connect(target)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _configure(sock: socket.socket) -> None:
    # Without it, the second small frame in a row waits for the peer's delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read_response(
    sock: socket.socket, address: Address, protocol: ClientProtocol, deadline: float
) -> bytes:
    """Feed the HTTP response; return what follows it. The first frame may be right behind."""
    received = b""
    while True:
        sock.settimeout(_remaining(deadline))
        chunk = sock.recv(READ_BYTES)
        received += chunk
        head, end, early = received.partition(_HEADERS_END)
        refused = _REFUSAL.match(head)
        if refused is not None and (end or not chunk):
            raise _status_failure(address, int(refused[1]), refused[2].decode("ascii", "replace"))
        if end:
            protocol.receive_data(head + end)
            return early
        if not chunk or len(received) > READ_BYTES:
            protocol.receive_data(received)
            protocol.receive_eof()
            return b""


@contextlib.contextmanager
def _closing_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
