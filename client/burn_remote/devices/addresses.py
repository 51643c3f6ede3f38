"""Server addresses: their normal form, and the small integers that name them.

Burn's registry: each address gets an id when it is first named, the same one for the life of the
process and across its threads, so that a device can be a small ``DeviceId``.
"""

from __future__ import annotations

import os
import threading
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.links.addresses import DEFAULT_PORT, names_scheme, parse_address

__all__ = [
    "DEFAULT_ADDRESS",
    "DeviceId",
    "address_to_id",
    "default_address",
    "id_to_address",
    "normal_address",
    "with_token",
]

DEFAULT_ADDRESS: Final = f"ws://127.0.0.1:{DEFAULT_PORT}"
ADDRESS_VARIABLE: Final = "BURN_REMOTE_ADDRESS"


class DeviceId(NamedTuple):
    """A device as Burn names it: ``type_id`` says of which kind (0 for remote devices),
    ``index_id`` which one, numbered in the order in which addresses were first named in this
    process."""

    type_id: int
    index_id: int


_lock = threading.Lock()
_ids: dict[str, int] = {}
_addresses: list[str] = []


def default_address() -> str:
    """Return ``$BURN_REMOTE_ADDRESS``, or ``ws://127.0.0.1:3000``."""
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def normal_address(address: str) -> str:
    """Return an address with its port and without a trailing slash: ``ws://gpu-box:3000/1``.

    ``gpu-box`` and ``gpu-box:3000`` are taken as ``ws://``. Raises ``ConnectionFailed``, with what
    to write instead, if it is not an address.
    """
    if not isinstance(address, str):
        raise UsageError(f"an address is text such as {DEFAULT_ADDRESS}, not {address!r}")
    text = address.strip()
    # Without "//", only a scheme's own name shows that a scheme was meant: "ws:/gpu-box".
    if text and "//" not in text and not names_scheme(text.partition(":")[0]):
        text = f"ws://{text}"
    return parse_address(text).uri


def with_token(address: str, token: str) -> str:
    """Return a normal address with a token in its path, for clients that cannot send it."""
    parts = urlsplit(address)
    path = f"/token/{quote(token, safe='')}{parts.path}"
    return f"{parts.scheme}://{parts.netloc}{path}"


def address_to_id(address: str) -> int:
    """Return the small integer that names an address, giving it the next one if it has none."""
    normal = normal_address(address)
    with _lock:
        if normal not in _ids:
            _ids[normal] = len(_addresses)
            _addresses.append(normal)
        return _ids[normal]


def id_to_address(identifier: int) -> str:
    """Return the address that a small integer names. Raises ``UsageError`` if there is none."""
    with _lock:
        if not 0 <= identifier < len(_addresses):
            raise UsageError(
                f"no address has the id {identifier}; {len(_addresses)} have been named so far"
            )
        return _addresses[identifier]
