"""Plain HTTP responses on the WebSocket port: health, readiness, metrics and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from burn_remote_server.telemetry.metrics import CONTENT_TYPE as METRICS_TYPE

__all__ = ["HttpResponse", "ServerState", "is_for_metrics", "is_health_check", "refuse", "respond"]

# Status, headers and body of an HTTP response.
HttpResponse = tuple[int, dict[str, str], bytes]

_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state that the responses report. ``exposition`` is ``None`` where metrics are off."""

    draining: bool = False
    exposition: Callable[[], bytes] | None = None
    # Per device: the reason why it is lost, or None.
    failures: Sequence[str | None] = ()
    # Operations that were given up and have not returned yet.
    stuck_operations: int = 0


def is_health_check(first: bytes) -> bool:
    """Whether a request that begins with these bytes asks for the health of the server."""
    return first.startswith((b"GET /healthz", b"GET /readyz"))


def is_for_metrics(first: bytes) -> bool:
    """Whether a request that begins with these bytes asks for the metrics of the server."""
    return first.startswith(b"GET /metrics")


def respond(path: str, state: ServerState, *, is_route: bool = False) -> HttpResponse:
    """Return the response to ``GET path``. ``is_route`` is true for a path of a WebSocket route."""
    bare = urlsplit(path).path.rstrip("/")
    lost = [failure for failure in state.failures if failure is not None]
    if bare == "/healthz":
        # A lost device needs a restart, which ends all sessions. So the server is unhealthy only if
        # every device is lost.
        if lost and len(lost) == len(state.failures):
            return _lost(lost)
        # Other sessions continue, so operations that do not return are no reason for a restart.
        stuck = f"degraded: {state.stuck_operations} operations do not return\n"
        return 200, _TEXT, stuck.encode() if state.stuck_operations else b"ok\n"
    if bare == "/readyz":
        if state.draining:
            return 503, _TEXT, b"draining\n"
        return _lost(lost) if lost else (200, _TEXT, b"ready\n")
    if bare == "/metrics" and state.exposition is not None:
        return 200, {"Content-Type": METRICS_TYPE}, state.exposition()
    if is_route or not bare:
        headers = {**_TEXT, "Upgrade": "websocket", "Connection": "Upgrade"}
        return 426, headers, _introduce("This port speaks WebSocket; it has no web page.")
    return 404, _TEXT, _introduce(f"There is nothing at {path!r:.200}.")


def refuse(
    headers: Mapping[str, str], refusal: str, device: int, devices: int
) -> HttpResponse | None:
    """Return the refusal of a WebSocket request, or ``None`` to accept it.

    ``refusal`` is the reason if the connection exceeds a limit, else empty. ``device`` is the index
    in the requested address, ``devices`` the number of devices. The body is one line.
    """
    if refusal:
        return 429, _TEXT, f"{refusal}\n".encode()
    if "Origin" in headers:
        # Browsers send Origin; our clients never do. Without this check, any web page that is open
        # on this machine could connect to a server on loopback, which needs no token.
        return 403, _TEXT, b"Web pages may not connect to this server.\n"
    if device >= devices:
        # Not 404, from which a client would conclude that the server has no native route.
        known = "only /0" if devices == 1 else f"/0 to /{devices - 1}"
        return 421, _TEXT, f"there is no device /{device} here; there is {known}\n".encode()
    return None


def _lost(failures: Sequence[str]) -> HttpResponse:
    return 503, _TEXT, "".join(f"{failure}\n" for failure in failures).encode()


def _introduce(first: str) -> bytes:
    return (
        f"{first}\n\n"
        "This is a burn-remote-server. Python programs store tensors and compute on it through\n"
        'burn_remote.RemoteDevice("ws://HOST:PORT"). Operators can request /healthz, /readyz and\n'
        "/metrics.\n"
    ).encode()
