"""Version negotiation and validation of the server's reply to ``Hello``, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote_protocol.errors import ProtocolViolation, VersionMismatch
from burn_remote_protocol.messages import Closing, Hello, Refused, Welcome

__all__ = [
    "CHECKSUM",
    "CHECKSUM_SETTING",
    "HOPS_SETTING",
    "MEMORY_SETTING",
    "WAITING_SETTING",
    "accepted",
    "agreed_version",
]

# Setting in ``Hello``: a server that fetches requests checksums in the chunks.
CHECKSUM_SETTING: Final = "chunk_checksum"
CHECKSUM: Final = "xxh3"

# Setting in ``Hello``: the identity of the host on which the fetching server can open lent memory.
MEMORY_SETTING: Final = "memory_handles"

# Setting in ``Hello``: the fetching server understands ``Waiting``.
WAITING_SETTING: Final = "waiting"

# Setting in ``Hello``: the fetching server understands ``hops`` in ``Waiting``.
HOPS_SETTING: Final = "waiting_hops"


def agreed_version(hello: Hello, spoken: Sequence[int]) -> int:
    """Return the highest version that both sides support. Raises ``VersionMismatch`` if none is."""
    common = set(hello.versions) & set(spoken)
    if not common:
        raise VersionMismatch(
            f"the client speaks {_listed(hello.versions)} of the protocol, "
            f"this server {_listed(spoken)}; update the older one"
        )
    return max(common)


def accepted(reply: object, spoken: Sequence[int]) -> Welcome:
    """Return the server's ``Welcome``.

    Raises the error in a ``Refused`` or ``Closing``, ``ProtocolViolation`` for any other message,
    and ``VersionMismatch`` if the server chose a version that this end did not offer.
    """
    if isinstance(reply, Refused | Closing):
        raise reply.error
    if not isinstance(reply, Welcome):
        raise ProtocolViolation(f"expected a reply to Hello, not {type(reply).__name__}")
    if reply.version not in spoken:
        raise VersionMismatch(
            f"the server chose version {reply.version}; this side speaks {_listed(spoken)}"
        )
    return reply


def _listed(versions: Sequence[int]) -> str:
    return ("version " if len(versions) == 1 else "versions ") + ", ".join(map(str, versions))
