"""Opening a WebSocket connection from a thread, and explanations of why one could not be opened."""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.uri import parse_uri

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES
from burn_remote_protocol.links.websocket.keepalive import enable_tcp_keepalive
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.timed_queue import TimedQueue

__all__ = ["connection_failure", "dial", "upgrade"]

# OpenSSL's codes for a trusted certificate that is for another host name or IP address.
_OTHER_HOST: Final = (62, 64)
# Its codes for a certificate that is not valid yet, and for one that has expired.
_OTHER_TIME: Final = (9, 10)

_HEADERS_END: Final = b"\r\n\r\n"
# The status line of a response with any status but 101. Parsed here, because ``websockets`` rejects
# HTTP/1.0 responses without reporting their status.
_REFUSAL: Final = re.compile(rb"HTTP/1\.[01] (?!101)(\d{3})\b ?([^\r\n]{0,200})")


def dial(
    address: Address,
    tls: ssl.SSLContext | None,
    deadline: float,
    timeout_seconds: float,
    connect_to: str | None = None,
) -> socket.socket:
    """Return a connected socket, after the TLS handshake if the address is secure.

    ``deadline`` is a time of ``time.monotonic`` and bounds the whole call; ``timeout_seconds`` is
    for the error message. ``connect_to`` is a numeric address to use in place of the host name.
    Raises ``ConnectionFailed``.
    """
    refused_by: set[str] = set()
    try:
        found = _resolve(connect_to or address.host, address.port, deadline)
        sock = _connect_any(found, deadline, refused_by)
        _configure(sock)
        if not address.secure:
            return sock
        with _closing_on_error(sock):
            sock.settimeout(_remaining(deadline))
            context = tls or ssl.create_default_context()
            return context.wrap_socket(sock, server_hostname=address.host)
    except OSError as error:
        pass_on_of_signal_handler(error)
        failure = connection_failure(address, error, timeout_seconds)
        failure.refused_by = frozenset(refused_by)
        raise failure from error


def upgrade(
    sock: socket.socket,
    address: Address,
    headers: Mapping[str, str],
    deadline: float,
    timeout_seconds: float,
) -> tuple[ClientProtocol, bytes]:
    """Perform the opening handshake; return the protocol state and the bytes that followed it.

    The protocol state handles only control frames and closing; messages never pass through it.
    Raises ``ConnectionFailed``.
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
    except ConnectionFailed:  # which is an OSError
        raise
    except (OSError, InvalidHandshake) as error:
        pass_on_of_signal_handler(error)
        raise connection_failure(address, error, timeout_seconds) from error
    return protocol, early


def connection_failure(
    address: Address, error: Exception, timeout_seconds: float
) -> ConnectionFailed:
    """Return an error that says in one sentence what went wrong and what to check."""
    if isinstance(error, InvalidStatus):
        return _status_failure(address, error.response.status_code, error.response.reason_phrase)
    return ConnectionFailed(_explanation(address, error, timeout_seconds))


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


def _explanation(address: Address, error: Exception, timeout_seconds: float) -> str:
    match error:
        case socket.gaierror():
            return f"the host name {address.host!r} cannot be resolved; check the address {address}"
        case ConnectionRefusedError():
            place = (
                "on this machine"
                if _is_loopback(address.host)
                else "and bound to an address other machines can reach"
            )
            return (
                f"nothing listens at {address}; check the port, and that burn-remote-server is "
                f"running {place}"
            )
        case ssl.SSLCertVerificationError():
            return _certificate_problem(address, error)
        case ssl.SSLError():
            return (
                f"no TLS with {address} ({error.reason or error}); check that the server speaks "
                "TLS, or write ws://"
            )
        case TimeoutError():
            return (
                f"{address} did not answer within {timeout_seconds:g} seconds; check the host, the "
                "port, and firewalls on the way"
            )
        case InvalidMessage() if isinstance(error.__cause__, EOFError):
            return _hung_up(address)
        case InvalidHandshake():
            return f"{address} is no WebSocket server ({error}); check the port"
        case ConnectionError() | ConnectionClosed():
            return _hung_up(address)
    return f"no connection to {address}: {error}; check the address and the network"


def _certificate_problem(address: Address, error: ssl.SSLCertVerificationError) -> str:
    advice = 'name the authority that signed it: tls="ca.pem", or for a server --peer-ca ca.pem'
    if error.verify_code in _OTHER_HOST:
        advice = "write a host name that the certificate has"
    elif error.verify_code in _OTHER_TIME:
        advice = "renew the certificate, or correct the clock of this machine"
    return f"the certificate of {address} is not trusted ({error.verify_message}); {advice}"


def _hung_up(address: Address) -> str:
    check = "" if address.secure else ", or write wss:// if it uses TLS"
    return f"{address} hung up before it responded; check the port{check}"


def _status_failure(address: Address, status: int, phrase: str) -> ConnectionFailed:
    failure = ConnectionFailed(_status_explanation(address, status, phrase))
    failure.http_status = status
    return failure


def _status_explanation(address: Address, status: int, phrase: str) -> str:
    seen = f"{address} answered HTTP {status}"
    if status == 421:
        return f"{seen}: {phrase[:200]}{'…' if len(phrase) > 200 else ''}"
    if status in (401, 403):
        return f"{seen}; check the token"
    if status == 429:
        return f"{seen}: this machine has as many connections as the server allows; close some"
    if status in (502, 503, 504):
        return f"{seen}: it is starting, draining or overloaded; try again later"
    if status == 404 and address.path:
        server = replace(address, path="", route="")
        path = str(address).removeprefix(str(server))
        return (
            f"{seen}: the server has no such path as {path}; write {server}, or {server}/1 for its "
            "second device"
        )
    return f"{seen} and no WebSocket; check the port, and that burn-remote-server listens there"


def _resolve(host: str, port: int, deadline: float) -> list[Any]:
    """Resolve the host name by the deadline; in a thread, as the resolver takes no timeout."""
    with contextlib.suppress(socket.gaierror, UnicodeError):
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    resolved: TimedQueue[list[Any] | OSError] = TimedQueue()

    def look_up() -> None:
        try:
            resolved.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            resolved.put(error)
        except UnicodeError:  # a label of more than 63 characters
            resolved.put(socket.gaierror(f"{host!r} is not a host name"))

    # A daemon thread, because it may still be inside the resolver at the deadline, and nothing can
    # stop it.
    threading.Thread(target=look_up, name="burn-remote-resolve", daemon=True).start()
    try:
        found = resolved.get(_remaining(deadline))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, OSError):
        raise found
    return found


def _connect_any(found: list[Any], deadline: float, refused_by: set[str]) -> socket.socket:
    """Connect to the first address that accepts; each gets a share of the remaining time.

    Adds to ``refused_by`` the addresses where nothing listens at the port.
    """
    failure: OSError = TimeoutError()
    for index, (family, kind, number, _, target) in enumerate(found):
        sock = socket.socket(family, kind, number)
        try:
            sock.settimeout(_remaining(deadline) / (len(found) - index))
            sock.connect(target)
            return sock
        except OSError as error:
            sock.close()
            pass_on_of_signal_handler(error)
            failure = error
            if isinstance(error, ConnectionRefusedError):
                refused_by.add(str(target[0]))
        except BaseException:
            sock.close()
            raise
    raise failure


def _configure(sock: socket.socket) -> None:
    # With Nagle's algorithm, a second small frame would wait for the acknowledgement of the first.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    enable_tcp_keepalive(sock)


def _read_response(
    sock: socket.socket, address: Address, protocol: ClientProtocol, deadline: float
) -> bytes:
    """Read the HTTP response and return the bytes after it, which may be the first frames."""
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
