"""Server addresses: their normal form, and their ids.

As in Burn, an address gets a small integer as its id at its first use. The id stays the same for
the life of the process, in all threads. Burn's ``DeviceId`` contains this id, not the address.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import quote

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

# The path of a server's first device, with or without a token before it. ``/0`` may be omitted.
_FIRST_DEVICE: Final = re.compile(r"^(/token/[^/]+)?/0$")


class DeviceId(NamedTuple):
    """Burn's identifier of a device.

    ``type_id`` is the kind of device, 0 for remote ones. ``index_id`` is the id of the address:
    addresses are numbered in the order of their first use in this process.
    """

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

    The first device of a server is named without ``/0``. Without a scheme, ``ws://`` is assumed.
    Raises ``UsageError`` if ``address`` is not text, and ``ConnectionFailed``, which says what to
    write instead, for text that is not an address.
    """
    if not isinstance(address, str):
        raise UsageError(f"an address is text such as {DEFAULT_ADDRESS}, not {address!r}")
    text = address.strip()
    # Without "//", the text before a colon is a scheme only if it is a known one: "ws:/gpu-box".
    if text and "//" not in text and not names_scheme(text.partition(":")[0]):
        text = f"ws://{text}"
    parsed = parse_address(text)
    return replace(parsed, path=_FIRST_DEVICE.sub(r"\1", parsed.path)).uri


def with_token(address: str, token: str) -> str:
    """Return a normal address with a token in its path, for dialects without token messages."""
    parsed = parse_address(address)
    return replace(parsed, path=f"/token/{quote(token, safe='')}{parsed.path}").uri


def address_to_id(address: str) -> int:
    """Return the id of an address; an address without one gets the next integer."""
    normal = normal_address(address)
    with _lock:
        if normal not in _ids:
            _ids[normal] = len(_addresses)
            _addresses.append(normal)
        return _ids[normal]


def id_to_address(identifier: int) -> str:
    """Return the address with this id. Raises ``UsageError`` if there is none."""
    with _lock:
        if not 0 <= identifier < len(_addresses):
            raise UsageError(
                f"no address has the id {identifier}; {len(_addresses)} ids are in use"
            )
        return _addresses[identifier]
