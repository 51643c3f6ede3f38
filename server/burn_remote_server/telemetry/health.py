"""What does a server's port answer to plain HTTP? Health, readiness, metrics, or what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from burn_remote_server.telemetry.metrics import CONTENT_TYPE as METRICS_TYPE

__all__ = ["Answer", "ServerState", "refuse", "respond"]

# Status, headers and body of an HTTP response.
Answer = tuple[int, dict[str, str], bytes]

_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the answers depend on. Without ``exposition`` there are no metrics to see."""

    draining: bool = False
    exposition: Callable[[], bytes] | None = None
    # Of each device, why it is lost, or ``None``.
    failures: Sequence[str | None] = ()


def respond(path: str, state: ServerState, *, is_route: bool = False) -> Answer:
    """Return the response to ``GET path``; ``is_route``: a dialect listens there for WebSockets."""
    bare = urlsplit(path).path.rstrip("/")
    lost = [failure for failure in state.failures if failure is not None]
    if bare == "/healthz":
        # Only a new process has the device again. While one works, its sessions are worth more.
        return _lost(lost) if lost and len(lost) == len(state.failures) else (200, _TEXT, b"ok\n")
    if bare == "/readyz":
        if state.draining:
            return 503, _TEXT, b"draining\n"
        return _lost(lost) if lost else (200, _TEXT, b"ready\n")
    if bare == "/metrics" and state.exposition is not None:
        return 200, {"Content-Type": METRICS_TYPE}, state.exposition()
    if is_route or not bare:
        headers = {**_TEXT, "Upgrade": "websocket", "Connection": "Upgrade"}
        return 426, headers, _introduce("This is no web page.")
    return 404, _TEXT, _introduce(f"Nothing is at {path!r:.200}.")


def refuse(headers: Mapping[str, str], refusal: str, device: int, devices: int) -> Answer | None:
    """Return the response to a WebSocket request that is refused, or ``None``.

    ``refusal`` is why its connection is one too many, or empty. ``device`` is the index that the
    address names, ``devices`` how many there are. The body is one sentence on one line.
    """
    if refusal:
        return 429, _TEXT, f"{refusal}\n".encode()
    if "Origin" in headers:
        # Browsers send it, our clients never do. Any page that somebody on this machine looks at
        # could otherwise connect to a server on loopback, which needs no token.
        return 403, _TEXT, b"Web pages may not connect to this server.\n"
    if device >= devices:
        # Not 404, by which a client knows that a server lacks the native route.
        last = "only /0" if devices == 1 else f"/0 to /{devices - 1}"
        return 421, _TEXT, f"there is no device /{device} here, {last}\n".encode()
    return None


def _lost(failures: Sequence[str]) -> Answer:
    return 503, _TEXT, "".join(f"{failure}\n" for failure in failures).encode()


def _introduce(first: str) -> bytes:
    return (
        f"{first}\n\n"
        "This is a burn-remote-server: Python programs hold tensors here and compute on them,\n"
        'with burn_remote.RemoteDevice("ws://HOST:PORT"). To look after it, ask for\n'
        "/healthz, /readyz or /metrics.\n"
    ).encode()
