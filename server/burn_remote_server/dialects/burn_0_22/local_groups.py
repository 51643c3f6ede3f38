"""The groups in which sessions of one Burn 0.22 client carry out collectives on this server.

A client opens a session per device. Each session passes its tensor to an all-reduce, which names
all the devices that take part. A session that issues its first all-reduce with a set of devices
becomes a member of a group for this set. Members get their ranks in the order in which they arrive,
because sums and means need no other order. The group is complete when it has as many members as
devices.

If a session ends and the client opens a new one for its device, the new session cannot join the
earlier group. While the group's other sessions are open, they issue their all-reduces in it, so the
new session would wait in a new group for members that never join. Its all-reduces fail at once
instead, until the other sessions have ended too.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from burn_remote_protocol.collectives import (
    GROUP_SECRET_BYTES,
    ISSUE_SECONDS,
    CollectiveCall,
    CollectiveKind,
    GroupSpec,
)
from burn_remote_protocol.dialects.burn_0_22 import AllReduce
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Collective, JoinGroup
from burn_remote_protocol.snapshots import items_of
from burn_remote_server.dialects.burn_0_22.local_transfers import LocalClient

__all__ = ["LocalGroups", "SessionCollectives"]

# Most groups of one session; each has two threads and its own buffers.
MAX_GROUPS: Final = 8

Devices = tuple[tuple[int, int], ...]
_GroupKey = tuple[str, Devices]


class _Forming(NamedTuple):
    """A group for which members are still missing."""

    secret: bytes
    members: tuple[LocalClient, ...]


@dataclass(slots=True, eq=False)
class _Complete:
    """A group that has been complete. ``members`` are its sessions that are still open."""

    members: set[LocalClient]
    is_broken: bool = False  # one of its sessions has ended


class LocalGroups:
    """The groups of all clients of a process, incomplete and complete ones. Thread-safe."""

    def __init__(self) -> None:
        self._forming: Final[dict[_GroupKey, _Forming]] = {}
        self._complete: Final[dict[_GroupKey, list[_Complete]]] = {}
        self._lock: Final = threading.Lock()

    def join(self, client: LocalClient, devices: Devices, addresses: Sequence[str]) -> GroupSpec:
        """Make a session a member of the group of some devices, and return the group's spec.

        ``addresses`` are the addresses of this server's devices. Raises ``OperationFailed`` if the
        server has fewer devices than take part, or if there is an earlier group of these devices
        in which some sessions are open and others have ended. Raises ``TransferFailed`` if it is
        not certain which sessions belong to this client.
        """
        different = len({*devices})
        if not 1 <= different == len(devices) <= len(addresses):
            raise OperationFailed(
                f"an all-reduce names {len(devices)} devices, of which {different} are different; "
                f"this server has {len(addresses)} devices, and reduces only between these; name "
                "each device once, or start the server with a larger --device-count"
            )
        key = client.name(), devices
        with self._lock:
            left = sum(len(one.members) for one in self._complete.get(key, ()) if one.is_broken)
            if left:
                raise OperationFailed(
                    f"a new session cannot take part in an all-reduce of {len(devices)} devices: "
                    f"the client still has {left} open session(s) in an earlier group of these "
                    "devices, of which another session has ended; open the sessions of all the "
                    "devices again"
                )
            forming = self._forming.pop(key, None)
            if forming is None or client in forming.members:
                forming = _Forming(secrets.token_bytes(GROUP_SECRET_BYTES), ())
            rank = len(forming.members)
            forming = forming._replace(members=(*forming.members, client))
            if rank + 1 < len(devices):
                self._forming[key] = forming
            else:
                self._complete.setdefault(key, []).append(_Complete({*forming.members}))
        return GroupSpec(forming.secret, rank, (*addresses[: len(devices)],), ISSUE_SECONDS)

    def leave(self, client: LocalClient) -> None:
        """Forget a session that has ended, so that no other session joins a group with it."""
        with self._lock:
            for key, forming in items_of(self._forming):
                if client in forming.members:
                    del self._forming[key]
            for key, groups in items_of(self._complete):
                for group in groups:
                    if client in group.members:
                        group.members.remove(client)
                        group.is_broken = True
                groups[:] = [group for group in groups if group.members]
                if not groups:
                    del self._complete[key]


class SessionCollectives:
    """The collectives of one session, translated to tasks for groups of native sessions.

    Not thread-safe: only the session's worker calls it.
    """

    def __init__(self, groups: LocalGroups, client: LocalClient, addresses: Sequence[str]) -> None:
        self._groups: Final = groups
        self._client: Final = client
        self._addresses: Final = addresses
        self._numbers: Final[dict[Devices, int]] = {}
        self._issued: Final[list[int]] = []  # collectives in each group

    def tasks(self, task: AllReduce) -> tuple[JoinGroup | Collective, ...]:
        """Return the tasks that carry out an all-reduce.

        Raises ``OperationFailed`` if this server cannot carry it out, and ``UsageError`` if the
        all-reduce is invalid.
        """
        if task.spec != task.output_spec:
            raise OperationFailed(
                f"an all-reduce has the input {task.spec} and the output {task.output_spec}; they "
                "must be equal"
            )
        call = CollectiveCall(CollectiveKind.ALL_REDUCE, (task.spec,), task.reduction)
        devices = tuple(sorted(task.devices))
        call.check(len(devices))
        joined: tuple[JoinGroup, ...] = ()
        number = self._numbers.get(devices)
        if number is None:
            number = len(self._numbers)
            if number == MAX_GROUPS:
                raise OperationFailed(
                    f"an all-reduce names a new set of devices, but the session has used "
                    f"{MAX_GROUPS} sets, the maximum; use one of these"
                )
            spec = self._groups.join(self._client, devices, self._addresses)
            self._numbers[devices] = number
            self._issued.append(0)
            joined = (JoinGroup(number, spec),)
        sequence = self._issued[number]
        self._issued[number] += 1
        return *joined, Collective(number, sequence, call, (task.tensor,), (task.output,))
