"""Transfers of tensors between the sessions of one Burn 0.22 client.

A client opens one session per device. When it moves a tensor between two of its sessions, it
identifies the transfer by a number. Each client counts these numbers from 0, so numbers of
different clients collide. The protocol does not tell which sessions belong to one client. So the
server groups sessions by token and address and, for a client on this machine, by process.

Two clients may share a token and an address, and the server may not find their processes. If all
sessions of such a group use different devices, the server treats the group as one client. If two
sessions use the same device, the group has several clients. Then the server refuses its moves, so
that no tensor reaches the wrong client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.tensors.exposed_tensors import Key

__all__ = ["ClientIdentity", "LocalClient", "LocalClients"]


def _not_found() -> None:
    """Find no process."""


class ClientIdentity(NamedTuple):
    """The name of a client's token, and the client's address."""

    token: str
    host: str


class LocalClient:
    """The client of one session; sessions with the same identity share their transfers."""

    def __init__(
        self,
        clients: LocalClients,
        identity: ClientIdentity,
        device: int,
        find_process: Callable[[], int | None],
    ) -> None:
        self._clients: Final = clients
        self.identity: Final = identity
        self.device: Final = device
        self._find_process: Final = find_process
        self._process: int | None = None
        self._is_found = False

    def key(self, transfer: int) -> Key:
        """Return the registry key of a transfer between sessions of this client.

        Raises ``TransferFailed`` like ``name``.
        """
        return self.name(), transfer

    def name(self) -> str:
        """Return the client's name, which is the same for all its sessions and for no others.

        The first call searches for the client's process, which takes some milliseconds. Raises
        ``TransferFailed`` if it is not certain which sessions belong to this client.
        """
        if not self._is_found:
            self._process = self._find_process()
            self._is_found = True
        if self._process is not None:
            return f"burn-0.22 {self.identity!r} process {self._process}"
        if self._clients.is_ambiguous(self.identity):
            raise TransferFailed(
                f"several clients at {self.identity.host} move tensors between devices of this "
                "server, and Burn 0.22 does not say which session is whose; give each client a "
                "token of its own"
            )
        return f"burn-0.22 {self.identity!r}"


class LocalClients:
    """The clients of all sessions of a process. Belongs to the event loop's thread.

    Only ``is_ambiguous`` is called by other threads.
    """

    def __init__(self) -> None:
        self._devices: dict[ClientIdentity, list[int]] = {}

    def join(
        self,
        identity: ClientIdentity,
        device: int,
        find_process: Callable[[], int | None] = _not_found,
    ) -> LocalClient:
        """Add a session on a device; ``find_process`` returns its client's process, if known."""
        # A new list each time, because other threads read the old one without a lock.
        self._devices[identity] = [*self._devices.get(identity, ()), device]
        return LocalClient(self, identity, device, find_process)

    def leave(self, client: LocalClient) -> None:
        """Remove a session that has ended."""
        left = [*self._devices[client.identity]]
        left.remove(client.device)
        if left:
            self._devices[client.identity] = left
        else:
            del self._devices[client.identity]

    def is_ambiguous(self, identity: ClientIdentity) -> bool:
        """Whether sessions with this identity belong to several clients."""
        devices = self._devices.get(identity, [])
        return len({*devices}) < len(devices)
