"""Which version do two sides speak, and what does each say to open a connection? Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote_protocol.errors import ProtocolViolation, VersionMismatch
from burn_remote_protocol.messages import Closing, Hello, Refused, Welcome

__all__ = ["CHECKSUM", "CHECKSUM_SETTING", "MEMORY_SETTING", "accepted", "agreed_version"]

# The hint in ``Hello.settings`` by which a server asks for checksums on the chunks it fetches.
CHECKSUM_SETTING: Final = "chunk_checksum"
CHECKSUM: Final = "xxh3"

# The hint by which it says that it can open memory that processes of its host lend, and which host.
MEMORY_SETTING: Final = "memory_handles"


def agreed_version(hello: Hello, spoken: Sequence[int]) -> int:
    """Return the highest version that both sides speak; raises ``VersionMismatch`` for none."""
    common = set(hello.versions) & set(spoken)
    if not common:
        raise VersionMismatch(
            f"the client speaks {_listed(hello.versions)} of the protocol, "
            f"this server {_listed(spoken)}; update the older one"
        )
    return max(common)


def accepted(answer: object, spoken: Sequence[int]) -> Welcome:
    """Return the server's ``Welcome``, or raise what it answered instead."""
    if isinstance(answer, Refused | Closing):
        raise answer.error
    if not isinstance(answer, Welcome):
        raise ProtocolViolation(f"a server answers Hello, not with {type(answer).__name__}")
    if answer.version not in spoken:
        raise VersionMismatch(
            f"the server chose version {answer.version}; this side speaks {_listed(spoken)}"
        )
    return answer


def _listed(versions: Sequence[int]) -> str:
    return ("version " if len(versions) == 1 else "versions ") + ", ".join(map(str, versions))
