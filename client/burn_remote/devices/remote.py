"""``RemoteDevice``: a device on a server, and how the client connects to it."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from burn_remote.arguments.numbers import real_number
from burn_remote.devices.addresses import (
    DeviceId,
    address_to_id,
    default_address,
    id_to_address,
    normal_address,
    with_token,
)
from burn_remote.devices.automatic_graphs import automatic_graphs_wanted
from burn_remote.devices.credentials import checked_token, trusted_context
from burn_remote.devices.shared_sessions import SharedSessions
from burn_remote.diagnostics.advice import device_advice
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.default_device import open_default_with
from burn_remote.functions.device_class import Device
from burn_remote.runner.stack import CLOSE_SECONDS, RunnerStack
from burn_remote.sessions.burn.burn_session import BurnSession
from burn_remote.sessions.burn.burn_version_differences import Burn022
from burn_remote.sessions.burn.server_facts import FRAGMENT_BYTES
from burn_remote.sessions.native.automatic_graph_session import AutomaticGraphSession
from burn_remote.sessions.native.link_opening import SpeaksBurn
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    ConnectionLost,
    ProtocolViolation,
    UsageError,
)
from burn_remote_protocol.links.addresses import (
    IROH,
    parse_address,
    parse_device_path,
    without_token,
)
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect

__all__ = ["RemoteDevice"]

CONNECT_TIMEOUT_SECONDS: Final = 10.0
# A native server's frames carry at most a chunk or a small tensor, so a larger message is an error.
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
# In Burn's dialect a whole tensor is one message, of any size that MessagePack can represent.
MAX_BURN_MESSAGE_BYTES: Final = 2**32 + 4096

NATIVE: Final = "native"
BURN: Final = "burn-0.21"
BURN_0_22: Final = "burn-0.22"
DIALECTS: Final = (NATIVE, BURN, BURN_0_22)
NOT_FOUND: Final = 404
# A second attempt, because a bit flip in the request's path makes a native server answer 404 too.
# Burn's dialect, the alternative, has no checksums.
NATIVE_ATTEMPTS: Final = 2


# A kind of device in other libraries that may also be the name of a machine.
_POSSIBLE_HOSTS: Final = ("gpu",)


class RemoteDevice(Device):
    """A device on a server.

    ``address`` is ``ws://host:port``, with ``/1`` for the second device of the server. The default
    is ``$BURN_REMOTE_ADDRESS``, else ``ws://127.0.0.1:3000``. ``iroh://NODE-ID?addr=IP:PORT`` names
    a server by its public key; without ``addr``, it is found over public relays. That needs
    ``burn-remote[iroh]``.

    ``token`` authenticates this program; the default is ``$BURN_REMOTE_TOKEN``. ``tls``, for
    ``wss://``, is an ``ssl.SSLContext``, or the path of a PEM file with the certificate authority
    to trust in place of the system's. ``dialect`` is ``"native"``, or ``"burn-0.21"`` or
    ``"burn-0.22"`` for servers built with Burn; by default, native is tried first.
    ``automatic_graphs`` has the session recognize sequences of operations that the program repeats,
    and send each as one task; the default is ``$BURN_REMOTE_AUTOMATIC_GRAPHS``, else ``False``.
    Results are the same. ``connect_timeout_seconds`` bounds the wait for a server that does not
    answer. A port where nothing listens is refused at once.

    Devices with the same address, token, ``tls`` (the same context or the same path), dialect and
    ``automatic_graphs`` are equal and share one session. Each counts as one use of the session. A
    ``with`` block or ``close()`` ends that use, as does losing the last reference to the device.
    The last ``close()`` ends the session; a session without devices ends with its last tensor.

    The constructor connects. It raises ``ConnectionFailed`` with what to check,
    ``HandshakeRefused`` or ``VersionMismatch``.
    """

    distinction = (
        "devices with one address differ if their token, tls=, dialect= or automatic_graphs= "
        "differs, or if one was opened after the other was closed"
    )

    _sessions: ClassVar[SharedSessions[RunnerStack]] = SharedSessions()

    @explained
    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
        dialect: str | None = None,
        automatic_graphs: bool | None = None,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        if dialect is not None and dialect not in DIALECTS:
            known = ", ".join(map(repr, DIALECTS))
            raise UsageError(f"dialect must be one of {known}, not {dialect!r}")
        address = default_address() if address is None else address
        if address == "local":
            raise UsageError(
                "'local' is not the address of a server; burn_remote.LocalDevice() computes in "
                "this process, and so does burn_remote.device('local')"
            )
        if address not in _POSSIBLE_HOSTS and (advice := device_advice(address)):
            raise UsageError(f"{address!r} names no server{advice}")
        address = normal_address(address)
        self.address: Final = address
        token, context = checked_token(token), trusted_context(tls, self.address)
        timeout_seconds = real_number("connect_timeout_seconds", connect_timeout_seconds)
        # For a path, each device makes a context of its own, so the path is the key and not the
        # context.
        trusted = os.fspath(tls) if isinstance(tls, str | os.PathLike) else tls
        automatic = automatic_graphs_wanted(automatic_graphs)
        key = self.address, token, trusted, dialect, automatic
        try:
            use = self._sessions.use(
                key,
                lambda: RunnerStack(
                    _connect(address, dialect, token, context, timeout_seconds, automatic)
                ),
                timeout_seconds,
            )
        except BurnRemoteError as error:
            # The text says what to check; 14 frames of sockets and threads would bury it.
            if isinstance(error, ConnectionFailed) and isinstance(error.__cause__, TimeoutError):
                error = ConnectionFailed(f"{error}, or raise connect_timeout_seconds")
            raise error.with_traceback(None) from None
        self._shared = use.shared
        self._use_runners(use.session)
        self._use = use

    @classmethod
    def _another(cls, attributes: dict[str, Any], runners: RunnerStack) -> Self:
        device = super()._another(attributes, runners)
        device._use = cls._sessions.use_again(device._shared)
        return device

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """End this device's use of its session; the last use ends it.

        The session ends and frees its tensors when the last of its devices is closed; devices that
        were garbage-collected do not count. Until then the tensors made with this device stay
        usable. A second call does nothing.

        The last use waits and raises like ``Device.close``.
        """
        super().close(timeout_seconds)

    def _end(self, timeout_seconds: float, *, is_after_error: bool) -> None:
        def close(runners: RunnerStack) -> None:
            runners.close(timeout_seconds, is_after_error=is_after_error)

        self._use.end(close)

    @staticmethod
    def from_id(identifier: DeviceId | int) -> RemoteDevice:
        """Return the device whose ``to_id()`` returned this id in this process.

        Opens it with ``RemoteDevice(address)``, without ``token`` and ``tls``.
        """
        index = identifier if isinstance(identifier, int) else identifier.index_id
        return RemoteDevice(id_to_address(index))

    def to_id(self) -> DeviceId:
        """Return the id of this device's address, which is constant for the life of the process."""
        return DeviceId(0, address_to_id(self.address))

    def __repr__(self) -> str:
        return f"RemoteDevice({str(self)!r})"

    def __str__(self) -> str:
        # Such texts end up in logs.
        return without_token(self.address)


def _connect(
    address: str,
    dialect: str | None,
    token: str | None,
    tls: ssl.SSLContext | None,
    timeout_seconds: float,
    automatic_graphs: bool,
) -> NativeSession | BurnSession:
    """Open a session in this dialect; without one, in the dialect that the server speaks."""
    if dialect == BURN:
        return _connect_burn(address, token, tls, timeout_seconds)
    if dialect == BURN_0_22:
        return _connect_burn_0_22(address, token, tls, timeout_seconds)

    def dial(timeout_seconds: float) -> BlockingLink:
        return connect(
            address,
            "/session",
            timeout_seconds=timeout_seconds,
            tls=tls,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    session_class = AutomaticGraphSession if automatic_graphs else NativeSession
    for _ in range(NATIVE_ATTEMPTS):
        try:
            return session_class(dial, token=token, timeout_seconds=timeout_seconds)
        except SpeaksBurn:
            if dialect is not None:
                raise
            return _connect_burn_0_22(address, token, tls, timeout_seconds)
        except ConnectionFailed as error:
            if dialect is not None or error.http_status != NOT_FOUND:
                raise
    return _connect_burn_of_any_release(address, token, tls, timeout_seconds)


def _connect_burn_of_any_release(
    address: str, token: str | None, tls: ssl.SSLContext | None, timeout_seconds: float
) -> BurnSession:
    """Open a session with a server that has no native route at this address."""
    if parse_address(address).scheme == IROH:
        return _connect_burn_0_22(address, token, tls, timeout_seconds)
    # A server built with Burn 0.21 has no route /session and answers 404. It does not use tokens
    # either, so a token in the path would only disclose it.
    try:
        return _connect_burn(address, None, tls, timeout_seconds)
    except ConnectionFailed as error:
        if error.http_status != NOT_FOUND or parse_device_path(parse_address(address).path) is None:
            raise
        # A Burn 0.22 server has no paths: the number of a device is in the handshake.
        with contextlib.suppress(ConnectionFailed, ConnectionLost, ProtocolViolation, UsageError):
            return _connect_burn_0_22(address, token, tls, timeout_seconds)
        raise


def _connect_burn(
    address: str, token: str | None, tls: ssl.SSLContext | None, timeout_seconds: float
) -> BurnSession:
    if parse_address(address).scheme == IROH:
        raise UsageError(f"{without_token(address)}: Burn 0.21 cannot be reached over Iroh")
    # Our server reads the token from the path; Burn's server requires none.
    server = address if token is None else with_token(address, token)
    dial = _dial_burn(server, tls, timeout_seconds)
    return BurnSession(dial, address=server, timeout_seconds=timeout_seconds)


def _connect_burn_0_22(
    address: str, token: str | None, tls: ssl.SSLContext | None, timeout_seconds: float
) -> BurnSession:
    parsed = parse_address(address)
    found = parse_device_path(parsed.path)
    if found is None or found[0] is not None:
        raise UsageError(
            f"{without_token(address)}: an address of a Burn 0.22 server has no path but the "
            "number of a device; pass a token with token="
        )
    server = str(replace(parsed, path=""))
    dial = _dial_burn(server, tls, timeout_seconds)
    release = Burn022(server, found[1], token)
    return BurnSession(dial, address=server, timeout_seconds=timeout_seconds, release=release)


def _dial_burn(
    server: str, tls: ssl.SSLContext | None, timeout_seconds: float
) -> Callable[[str], BlockingLink]:
    """Return a function that connects to a route of a server that speaks a dialect of Burn."""

    def dial(route: str) -> BlockingLink:
        return connect(
            server,
            route,
            timeout_seconds=timeout_seconds,
            tls=tls,
            max_message_bytes=MAX_BURN_MESSAGE_BYTES,
            fragment_bytes=FRAGMENT_BYTES,
            # Burn's server never answers a close frame.
            close_timeout_seconds=0,
            speaks_burn=True,
        )

    return dial


open_default_with(RemoteDevice)
