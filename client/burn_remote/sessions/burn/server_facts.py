"""Facts about Burn 0.21's servers, which no message of the dialect contains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from burn_remote.runner.pending import Pending
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, BOOL_U32, DType, DTypeUsage
from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.messages import Welcome
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["FRAGMENT_BYTES", "MAX_MESSAGE_BYTES", "facts", "find_bool_store"]

# The largest message that a real server accepts; it closes the socket at one byte more.
MAX_MESSAGE_BYTES: Final = 64 * 2**20
# A real server accepts WebSocket frames up to 16 MiB; frames above 1 MiB bring no advantage.
FRAGMENT_BYTES: Final = 2**20

_GENERAL: Final = DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC


def facts(
    address: str, dialect: str = "burn-0.21", message_bytes: int = MAX_MESSAGE_BYTES
) -> Welcome:
    """Return the ``Welcome`` of a server that other servers reach at ``address``."""
    return Welcome(
        version=0,
        session=0,
        secret=b"",
        lease_seconds=0.0,
        device={"dialect": dialect},
        limits={"message_bytes": message_bytes},
        peer_address=address,
    )


def find_bool_store(
    ask: Callable[[DType], Pending[DTypeUsage]], address: str, timeout_seconds: float
) -> DType:
    """Ask a server how it stores bools, as Burn's own client does when it connects.

    Raises ``ConnectionFailed`` if the server does not answer.
    """
    stores = (BOOL, BOOL_U8, BOOL_U32)
    answers = [ask(store) for store in stores]
    try:
        usages = [answer.result(timeout_seconds) for answer in answers]
    except TimeoutError as error:
        pass_on_of_signal_handler(error)
        raise ConnectionFailed(
            f"{address} opened a session but does not respond; a Burn 0.21 server stays in this "
            "state once an operation has panicked: restart it"
        ) from None
    for store, usage in zip(stores, usages, strict=True):
        if usage & _GENERAL == _GENERAL:
            return store
    return BOOL
