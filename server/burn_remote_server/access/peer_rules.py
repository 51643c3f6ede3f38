"""Rules for the servers that this one may connect to when a client asks it to fetch a tensor.

Without rules, a client could use the server to reach networks that the client cannot reach itself
(server-side request forgery). Each name is resolved once, and the connection goes to a resolved
address that passed the check, which prevents DNS rebinding.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from burn_remote_protocol.errors import TransferFailed, UsageError
from burn_remote_protocol.links.addresses import (
    IROH,
    Address,
    parse_address,
    parse_device_path,
)
from burn_remote_server.access.name_lookups import NameLookups

__all__ = ["PeerRules", "is_forbidden", "is_own_address", "token_of"]

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Networks of cloud metadata services, which hand out a machine's credentials. The link-local
# 169.254.169.254 is refused with all link-local addresses.
METADATA: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "fd00:ec2::/32",
        "fd20:ce::254/128",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
    )
)

# Addresses of one host name to dial, one after the other. Each gets a share of the timeout.
MAX_DIALLED: Final = 4

# NAT64 networks. In the first one, the last 32 bits of an address are an IPv4 address (RFC 6052).
# In the second one, a site chooses the position (RFC 8215).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_OF_SITE: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
# The bytes of the IPv4 address after prefixes of 48, 56, 64 and 96 bits (RFC 6052, section 2.2).
_NAT64_POSITIONS: Final = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))

_ALL_PORTS: Final = range(1, 65_536)
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_PORTS: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``--peer``: a host name or a network, and the ports allowed there."""

    host: str | Network
    ports: range

    def allows(self, name: str, found: Ip) -> bool:
        """Whether this rule matches a host, regardless of the port."""
        if isinstance(self.host, str):
            return name.lower() == self.host
        return found in self.host


class PeerRules:
    """The rules of ``--peer``.

    Without rules, servers on this machine are allowed, on any port. With rules, only hosts that
    match a rule are allowed.
    """

    def __init__(
        self,
        peers: Iterable[str],
        is_own: Callable[[Ip], bool] | None = None,
        *,
        needs_tls: bool = False,
    ) -> None:
        """Parse the rules; ``needs_tls`` refuses addresses without TLS.

        Raises ``UsageError`` for a malformed rule.
        """
        self._is_own: Final = is_own or is_own_address
        self._rules: Final = tuple(_parsed_rule(peer) for peer in peers)
        self._needs_tls: Final = needs_tls
        self._lookups: Final = NameLookups()

    def allows(self, name: str, found: Ip, port: int | None = None) -> bool:
        """Whether connections to this host are allowed, at ``port`` or (``None``) at some port."""
        found = _unmapped(found)
        if is_forbidden(found):
            return False
        if not self._rules:
            return self._is_own(found)
        return any(
            rule.allows(name, found) and (port is None or port in rule.ports)
            for rule in self._rules
        )

    def allows_address(self, text: str) -> bool:
        """Whether a connection from ``192.0.2.7`` or ``192.0.2.7:51034`` is from an allowed peer.

        A peer connects from an arbitrary port, so the ports in the rules are ignored here.
        """
        if text.startswith("["):
            text = text[1:].partition("]")[0]
        elif text.count(":") == 1:
            text = text.partition(":")[0]
        try:
            return self.allows("", ipaddress.ip_address(text.partition("%")[0]))
        except ValueError:
            return False

    def may_allow(self, name: str) -> bool:
        """Whether some address of a host could be allowed, before its name is looked up."""
        return not self._rules or any(
            not isinstance(rule.host, str) or rule.host == name.lower() for rule in self._rules
        )

    async def resolve(self, address: str, party: str = "") -> tuple[Address, list[str]]:
        """Resolve an address; return it parsed, and the IP addresses to connect to.

        These are 1 to ``MAX_DIALLED`` addresses, in the order of the resolver. ``party`` are
        those who share lookups, as ``NameLookups`` describes.

        Raises ``ConnectionFailed`` for a malformed address, ``TransferFailed`` for a forbidden one.
        """
        target = parse_address(address)
        if target.scheme == IROH:
            raise TransferFailed(
                f"servers fetch tensors from each other over WebSockets, not from {target}; name "
                "the source by its ws:// or wss:// address"
            )
        secret = token_of(target)
        if self._needs_tls and not target.secure:
            raise TransferFailed(
                f"this server has --peer-ca, so it fetches over TLS only, and {target} does not "
                "use TLS; give the source a certificate and a wss:// --advertise-address"
            )
        numeric: list[str] = []
        if self.may_allow(target.host):
            try:
                numeric = await self._lookups.find(target.host, target.port, party)
            except (OSError, UnicodeError) as error:
                raise TransferFailed(f"the host name {target.host!r} cannot be resolved") from error
        addresses = [ip for found in numeric if (ip := _without_zone(found))]
        allowed = [ip for ip in addresses if self.allows(target.host, ip, target.port)]
        if allowed:
            for ip in allowed[:MAX_DIALLED]:
                _check_token_stays_private(target, secret, ip)
            return target, [*map(str, allowed[:MAX_DIALLED])]
        refusal = f"this server may not fetch from {target.host!r} at port {target.port}"
        if numeric and all(map(is_forbidden, addresses)):
            raise TransferFailed(
                f"{refusal}; link-local addresses and cloud metadata services are never allowed"
            )
        host = f"[{target.host}]" if ":" in target.host else target.host
        raise TransferFailed(
            f"{refusal}; its operator can allow this with --peer {host}:{target.port}"
        )

    def check_iroh(self, text: str) -> Address:
        """Return the parsed address of an Iroh server from which this one may fetch.

        A rule may name the node id. Otherwise the address must have no relay, and each direct
        address must be allowed: the packets of a handshake are sent to all of them.

        Raises ``ConnectionFailed`` for a malformed address, ``TransferFailed`` for a forbidden one.
        """
        target = parse_address(text)
        places = [_split_socket_address(each) for each in target.direct]
        is_named = any(rule.host == target.host for rule in self._rules)
        if is_named and not any(is_forbidden(_unmapped(ip)) for ip, _ in places):
            return target
        is_near = bool(places) and not target.relay
        if is_near and all(self.allows("", ip, port) for ip, port in places):
            return target
        raise TransferFailed(
            f"this server may not fetch from {target}; its operator can allow this with "
            f"--peer {target.host}"
        )


def _split_socket_address(text: str) -> tuple[Ip, int]:
    host, _, port = text.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")), int(port)


def _without_zone(numeric: str) -> Ip | None:
    """Parse an address; ``None`` for a scoped one (``fe80::1%eth0``), which is link-local."""
    return None if "%" in numeric else ipaddress.ip_address(numeric)


def token_of(target: Address) -> str | None:
    """Return the token in an address, or ``None``.

    Raises ``TransferFailed`` for a path that is not the path of a device, because such a request
    could reach another program on that host.
    """
    parts = parse_device_path(target.path)
    if parts is None:
        raise TransferFailed(
            f"{target} is not the address of a device: the path must be empty or a device number "
            "such as /1, after /token/TOKEN if the server requires a token"
        )
    return parts[0]


def _check_token_stays_private(target: Address, token: str | None, found: Ip) -> None:
    """Refuse to send a client's token over a network without TLS."""
    if token is not None and not target.secure and not _unmapped(found).is_loopback:
        raise TransferFailed(
            f"this server does not send the token in {target} over a network without TLS; "
            "give the source a certificate and use its wss:// address"
        )


def is_forbidden(address: Ip) -> bool:
    """Whether an address is always forbidden: link-local, cloud metadata, or not unicast.

    An IPv6 address is also forbidden if it contains a forbidden IPv4 address.
    """
    address = _unmapped(address)
    if isinstance(address, ipaddress.IPv4Address):
        return _is_forbidden(address)
    if address in _NAT64_OF_SITE:
        # The position is not known, so zeros between the prefix and the address look like 0.0.0.0.
        return any(found.is_link_local or _is_metadata(found) for found in _site_nat64(address))
    found = _embedded(address)
    return _is_forbidden(address) if found is None else _is_forbidden(found)


def _is_forbidden(address: Ip) -> bool:
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (address.is_reserved and not address.is_loopback)
        or _is_metadata(address)
    )


def _is_metadata(address: Ip) -> bool:
    return any(address in network for network in METADATA)


def _unmapped(address: Ip) -> Ip:
    """Return the IPv4 address that an IPv4-mapped one stands for in a socket, else the address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which a router would translate an IPv6 address.

    The router, not this machine, sends to it: it may be forbidden, but it is never allowed in the
    place of the IPv6 address. For example, ``64:ff9b::7f00:1`` is loopback of the router.
    """
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[12:])
    return None


def _site_nat64(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that an address of ``64:ff9b:1::/48`` may contain."""
    for position in _NAT64_POSITIONS:
        yield ipaddress.IPv4Address(bytes(address.packed[place] for place in position))


def is_own_address(address: Ip) -> bool:
    """Whether an address belongs to this machine, tested by binding a socket to it."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _parsed_rule(peer: str) -> Rule:
    """Parse ``HOST``, ``HOST:PORT`` or ``HOST:PORT-PORT``; HOST is a name, address or network."""
    host, ports = _split_ports(peer)
    try:
        return Rule(ipaddress.ip_network(host, strict=False), _parsed_ports(peer, ports))
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise _malformed(peer)
    return Rule(host.lower(), _parsed_ports(peer, ports))


def _split_ports(peer: str) -> tuple[str, str | None]:
    if peer.startswith("["):
        host, bracket, rest = peer[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _malformed(peer)
        return host, rest[1:] if rest else None
    if peer.count(":") == 1:
        host, _, ports = peer.partition(":")
        return host, ports
    return peer, None


def _parsed_ports(peer: str, text: str | None) -> range:
    if text is None:
        return _ALL_PORTS
    match = _PORTS.fullmatch(text)
    if match is None:
        raise _malformed(peer)
    first = int(match[1])
    last = int(match[2] or first)
    if not 1 <= first <= last <= 65_535:
        raise _malformed(peer)
    return range(first, last + 1)


def _malformed(peer: str) -> UsageError:
    return UsageError(
        f"--peer is {peer!r}; expected a host name, address or network without a scheme, and "
        "optionally a port or a range of ports, such as node-b, node-b:3000, "
        "10.1.0.0/16:3000-3010 or [fd00::7]:3000"
    )
