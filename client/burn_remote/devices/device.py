"""Devices: how a program opens, names, queries and closes them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.arguments.numbers import real_number, whole_number
from burn_remote.devices.addresses import (
    DeviceId,
    address_to_id,
    default_address,
    id_to_address,
    normal_address,
    with_token,
)
from burn_remote.devices.credentials import checked_token, trusted_context
from burn_remote.devices.shared_sessions import SharedSessions
from burn_remote.diagnostics.foreign_names import device_attribute_advice
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.runner.interface import RunnerClient
from burn_remote.runner.stack import RunnerStack
from burn_remote.sessions.burn.burn_session import BurnSession
from burn_remote.sessions.burn.server_facts import FRAGMENT_BYTES
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dtypes import DTypeUsage
from burn_remote_protocol.errors import ConnectionFailed, UsageError
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transports import connect

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["Device", "LocalDevice", "RemoteDevice"]

CONNECT_TIMEOUT_SECONDS: Final = 10.0
# A native reply carries at most a chunk or a small tensor; a larger message is not from our server.
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
# In Burn's dialect a whole tensor is one message, of any size that MessagePack can represent.
MAX_BURN_MESSAGE_BYTES: Final = 2**32 + 4096

NATIVE: Final = "native"
BURN: Final = "burn-0.21"
NOT_FOUND: Final = 404
# Twice: a bit flip in the request's path makes a native server answer 404 too, and Burn's dialect
# has no checksums.
NATIVE_ATTEMPTS: Final = 2


class Device:
    """A place where tensors live and operations run. Use it in a ``with`` block, or ``close()`` it.

    Two devices are equal if they share one session.
    """

    runners: RunnerStack

    @property
    def session(self) -> Any:
        """The session that executes this device's operations."""
        return self.runners.session

    @property
    def client(self) -> RunnerClient:
        """The outermost runner: it sees all operations on this device.

        Assign a runner around it to record or change operations, and that runner's ``inner`` to
        stop: ``device.client = Recorder(device.client)``. All devices of a session share runners.
        """
        return self.runners.outermost

    @client.setter
    def client(self, client: RunnerClient) -> None:
        self.runners.put_around(client)

    if not TYPE_CHECKING:  # a type checker must still report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            text = f"a device has no attribute {name!r}{device_attribute_advice(name)}"
            raise AttributeError(text, name=name, obj=self)

    def _use_runners(self, runners: RunnerStack) -> None:
        self.runners = runners
        if runners.device is None:
            runners.device = self

    def tensor(self, data: Any, dtype: AnyDType | None = None) -> Tensor:
        """Return ``data`` (array, nested lists or scalar) as a tensor on this device."""
        from burn_remote.functions.creation import tensor  # creation builds on devices

        return tensor(data, dtype=dtype, device=self)

    def sync(self) -> None:
        """Wait until everything issued so far has been executed.

        Raises the first ``OperationFailed`` that no read has raised, and ``ConnectionLost``.
        """
        self.runners.sync().result()

    def seed(self, seed: int) -> None:
        """Set the seed of this device's random numbers, for this session only (0 ≤ seed < 2⁶⁴)."""
        self.runners.seed(whole_number("a seed", seed, 0, 2**64 - 1))

    def dtype_usage(self, dtype: AnyDType) -> DTypeUsage:
        """Ask what the device supports for a dtype. Waits for the reply."""
        return self.runners.dtype_usage(as_dtype(dtype)).result()

    def supports_dtype(self, dtype: AnyDType) -> bool:
        """Return whether the device can store and compute with a dtype. Waits for the reply."""
        usage = self.dtype_usage(dtype)
        return DTypeUsage.STORAGE in usage and DTypeUsage.ARITHMETIC in usage

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its system. Does not wait."""
        self.runners.memory_cleanup()

    @property
    def traffic(self) -> Traffic:
        """This session's traffic so far, as a copy; subtract two to measure a section."""
        traffic: Traffic = self.session.traffic
        return traffic - Traffic()

    @property
    def info(self) -> dict[str, Any]:
        """The server's description of the device when the session opened."""
        return dict(self.session.welcome.device)

    def close(self) -> None:
        """Send queued tasks and end the session, freeing its tensors. A second call does nothing.

        Tensors that moved to other devices stay there: this waits until they have arrived, at most
        30 seconds.
        """
        self.runners.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.runners is self.runners

    def __hash__(self) -> int:
        return hash(id(self.runners))


class RemoteDevice(Device):
    """A device on a server.

    ``address`` is ``ws://host:port``, with ``/1`` for the second device of the server. The default
    is ``$BURN_REMOTE_ADDRESS``, else ``ws://127.0.0.1:3000``. ``token`` authenticates this program;
    the default is ``$BURN_REMOTE_TOKEN``. ``tls``, for ``wss://``, is an ``ssl.SSLContext``, or the
    path of a PEM file with the authority to trust in place of the system's. ``dialect`` is
    ``"native"``, or ``"burn-0.21"`` for servers built with Burn; by default, native is tried first.
    Devices of the same address, token, ``tls`` (the same context or the
    same path) and dialect share one session.

    Each device counts as one use of its session: a ``with`` block or ``close()`` ends that use, and
    the last one ends the session.

    Connects at once: raises ``ConnectionFailed`` with what to check, ``HandshakeRefused``,
    ``VersionMismatch``.
    """

    _sessions: ClassVar[SharedSessions[RunnerStack]] = SharedSessions()

    @explained
    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
        dialect: str | None = None,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        if dialect not in (None, NATIVE, BURN):
            raise UsageError(f"dialect is {dialect!r}; there are {NATIVE!r} and {BURN!r}")
        address = normal_address(default_address() if address is None else address)
        self.address: Final = address
        token, context = checked_token(token), trusted_context(tls, self.address)
        timeout_seconds = real_number("connect_timeout_seconds", connect_timeout_seconds)
        # Each connection creates a new context for a path, so the path identifies the trust.
        trusted = os.fspath(tls) if isinstance(tls, str | os.PathLike) else tls
        key = self.address, token, trusted, dialect
        self._use = self._sessions.use(
            key,
            lambda: RunnerStack(_connect(address, dialect, token, context, timeout_seconds)),
            timeout_seconds,
        )
        self._use_runners(self._use.session)

    def close(self) -> None:
        """End this device's use of its session; the last use sends queued tasks and ends it.

        A session ends when each of its devices is closed, and so frees its tensors. Until then
        tensors that this device made stay usable. A second call does nothing.
        """
        self._use.end()

    @staticmethod
    def from_id(identifier: DeviceId | int) -> RemoteDevice:
        """Return the device that a small integer names in this process.

        It is opened as by ``RemoteDevice(address)``: without ``token`` and ``tls``.
        """
        index = identifier if isinstance(identifier, int) else identifier.index_id
        return RemoteDevice(id_to_address(index))

    def to_id(self) -> DeviceId:
        """Return the small name of this device, the same for the life of the process."""
        return DeviceId(0, address_to_id(self.address))

    def __repr__(self) -> str:
        return f"RemoteDevice({self.address!r})"

    def __str__(self) -> str:
        return self.address


def _connect(
    address: str,
    dialect: str | None,
    token: str | None,
    tls: ssl.SSLContext | None,
    timeout_seconds: float,
) -> NativeSession | BurnSession:
    """Open a session in this dialect; without one, in the dialect that the server speaks."""
    if dialect == BURN:
        return _connect_burn(address, token, tls, timeout_seconds)

    def dial(timeout_seconds: float) -> BlockingLink:
        return connect(
            address,
            "/session",
            timeout_seconds=timeout_seconds,
            tls=tls,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    for _ in range(NATIVE_ATTEMPTS):
        try:
            return NativeSession(dial, token=token, timeout_seconds=timeout_seconds)
        except ConnectionFailed as error:
            if dialect is not None or error.http_status != NOT_FOUND:
                raise
    # A server built with Burn has no such route and answers 404. It has no tokens either: a token
    # in the path would tell a stranger a secret.
    return _connect_burn(address, None, tls, timeout_seconds)


def _connect_burn(
    address: str, token: str | None, tls: ssl.SSLContext | None, timeout_seconds: float
) -> BurnSession:
    # Our server reads the token from the path; Burn's server requires none.
    called = address if token is None else with_token(address, token)

    def dial(route: str) -> BlockingLink:
        return connect(
            called,
            route,
            timeout_seconds=timeout_seconds,
            tls=tls,
            max_message_bytes=MAX_BURN_MESSAGE_BYTES,
            fragment_bytes=FRAGMENT_BYTES,
            # Burn's server never answers a close frame.
            close_timeout_seconds=0,
        )

    return BurnSession(dial, address=called, timeout_seconds=timeout_seconds)


class LocalDevice(Device):
    """A device inside this process: the same session and operations, with no server.

    ``backend`` names a backend: ``"numpy"`` comes with ``pip install "burn-remote[server]"``.
    ``custom_operations`` are those that ``custom`` can call, made by
    ``burn_remote_server.custom.custom_operation``.
    """

    def __init__(self, backend: str = "numpy", *, custom_operations: Iterable[object] = ()) -> None:
        self.backend: Final = backend
        found = entry_points(group="burn_remote.local", name=backend)
        if not found:
            raise UsageError(
                f"nothing installed offers a local device {backend!r}; "
                'pip install "burn-remote[server]" offers "numpy"'
            )
        try:
            open_link = next(iter(found)).load()
        except ImportError as error:
            raise UsageError(
                f"the local device {backend!r} lacks {error.name}; "
                'install what it needs with pip install "burn-remote[server]"'
            ) from error
        wanted = {"custom_operations": tuple(custom_operations)} if custom_operations else {}
        session = NativeSession(
            lambda _: open_link(**wanted),
            token=None,
            timeout_seconds=CONNECT_TIMEOUT_SECONDS,
            transfer_domain="local",
        )
        self._use_runners(RunnerStack(session))

    def __repr__(self) -> str:
        return f"LocalDevice({self.backend!r})"

    def __str__(self) -> str:
        return f"local:{self.backend}"
