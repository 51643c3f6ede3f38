"""Which servers may this one connect to, when a client says to fetch a tensor from there?

A client that could name any address would reach through the server into networks that it cannot see
itself. So a name is looked up once, the addresses found are checked, and the connection goes to one
that passed: a name that means something else the second time gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from typing import Final

from burn_remote_protocol.errors import TransferFailed, UsageError
from burn_remote_protocol.links.addresses import Address, parse_address

__all__ = ["PeerRules", "is_forbidden", "is_own_address"]

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where clouds answer questions about a machine and hand out its credentials, beside
# 169.254.169.254, which is link-local.
METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)

# The prefixes of a server's routes: another path could ask something of a program that is no
# burn-remote-server.
_PATH: Final = re.compile(r"(?:/token/[A-Za-z0-9._~+%=-]{1,512})?(?:/\d{1,4})?")


class PeerRules:
    """What ``peer`` in the settings allows."""

    def __init__(self, peers: Iterable[str], is_own: Callable[[Ip], bool] | None = None) -> None:
        """Read names, addresses and networks. Raises ``UsageError`` for what is none of them."""
        self._is_own: Final = is_own or is_own_address
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for peer in peers:
            try:
                self._networks.append(ipaddress.ip_network(peer.strip("[]"), strict=False))
            except ValueError:
                self._names.add(_checked_name(peer))

    def allows(self, name: str, found: Ip) -> bool:
        """Whether a host of this name, which is this address, may be connected to."""
        found = embedded(found)
        if is_forbidden(found):
            return False
        if name.lower() in self._names or any(found in network for network in self._networks):
            return True
        return self._is_own(found)

    def allows_address(self, text: str) -> bool:
        """Whether a connection from ``192.0.2.7``, or ``192.0.2.7:51034``, is an allowed peer's."""
        if text.startswith("["):
            text = text[1:].partition("]")[0]
        elif text.count(":") == 1:
            text = text.partition(":")[0]
        try:
            return self.allows("", ipaddress.ip_address(text.partition("%")[0]))
        except ValueError:
            return False

    async def resolve(self, address: str) -> tuple[Address, str]:
        """Return a parsed address, and the numeric one to connect to.

        Raises ``ConnectionFailed`` for no address, ``TransferFailed`` for one that is not allowed.
        """
        target = parse_address(address)
        if not _PATH.fullmatch(target.path):
            raise TransferFailed(f"{target} is no server's device: only /1, /2 … may follow")
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise TransferFailed(f"no host is known by the name {target.host!r}") from error
        for *_, found in answers:
            numeric = str(found[0])
            # A zone (fe80::1%eth0) makes an address link-local in any case.
            if "%" not in numeric and self.allows(target.host, ipaddress.ip_address(numeric)):
                return target, numeric
        raise TransferFailed(
            f"this server may not fetch from {target.host!r}; its operator can allow that "
            f"with --peer {target.host}"
        )


def is_forbidden(address: Ip) -> bool:
    """Whether no setting allows this address: link-local, a cloud's metadata, or no host's."""
    address = embedded(address)
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (address.is_reserved and not address.is_loopback)
        or address in METADATA
    )


def embedded(address: Ip) -> Ip:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def is_own_address(address: Ip) -> bool:
    """Whether an address is this machine's: only those can be bound to."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _checked_name(peer: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", peer):
        raise UsageError(
            f"--peer is {peer!r}; expected a host's name, address or network, "
            "such as node-b or 10.1.0.0/16, without a scheme or port"
        )
    return peer.lower()
