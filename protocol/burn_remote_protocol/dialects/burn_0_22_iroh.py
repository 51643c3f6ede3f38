"""Peers that Burn 0.22 reaches over Iroh, and the messages by which they exchange tensors.

A client draws a *capability* of 32 random bytes for each tensor that moves. It tells the source
which server may fetch, by the public key of that server, and tells the target where the source is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Final

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.dialects.burn_0_21_responses import decode_data
from burn_remote_protocol.errors import ConnectionFailed, ProtocolViolation, TransferFailed
from burn_remote_protocol.links.addresses import (
    IROH,
    MAX_DIRECT_ADDRESSES,
    Address,
    parse_address,
)
from burn_remote_protocol.operations.wire_values import ARRAYS, sequence, unexpected, variant
from burn_remote_protocol.tensors import TensorData

__all__ = [
    "KEY_BYTES",
    "bound_transfer",
    "decode_tensor_request",
    "decode_tensor_response",
    "encode_denial",
    "encode_tensor_request",
    "read_iroh_address",
    "read_key",
]

_pack: Final[Callable[[Any], bytes]] = msgpack.packb

# The size of capabilities, and of public keys.
KEY_BYTES: Final = 32

# A peer may list many ways to it; more are ignored, like those that are not known.
MAX_WAYS: Final = 64
MAX_RELAY_CHARACTERS: Final = 512
MAX_REASON_CHARACTERS: Final = 500


def read_key(wire: Any, what: str) -> bytes:
    """Return the 32 bytes that Rust writes as an array of numbers. Raises ``ProtocolViolation``."""
    try:
        return bytes(sequence(wire, KEY_BYTES, what))
    except (TypeError, ValueError):
        raise ProtocolViolation(f"expected the {KEY_BYTES} bytes of {what}") from None


def bound_transfer(capability: bytes, target: bytes) -> int:
    """Return the transfer id of a tensor that only the server with the key ``target`` may fetch."""
    return int.from_bytes(capability + target, "little")


def read_iroh_address(wire: Any) -> str:
    """Return the address of a peer, ``iroh://…``. Raises ``ProtocolViolation``."""
    key, ways = sequence(wire, 2, "a public key and the ways to it")
    if type(ways) not in ARRAYS or len(ways) > MAX_WAYS:
        raise unexpected(f"at most {MAX_WAYS} ways to a peer", ways)
    direct, relay = [], ""
    for way in ways:
        name, value = variant(way, "a way to a peer")
        if name == "Ip":
            direct.append(_socket_address(value))
        elif name == "Relay":
            if type(value) is not str or len(value) > MAX_RELAY_CHARACTERS:
                raise unexpected("the address of a relay", value)
            relay = relay or value
    node = read_key(key, "a public key").hex()
    address = Address(
        IROH, node, 0, direct=tuple(direct[:MAX_DIRECT_ADDRESSES]), relay=relay.rstrip("/")
    ).uri
    try:
        return parse_address(address).uri
    except ConnectionFailed as error:
        raise ProtocolViolation(str(error)) from None


def _socket_address(wire: Any) -> str:
    version, body = variant(wire, "a socket address")
    octets, port = sequence(body, 2, "an address and a port")
    size = {"V4": 4, "V6": 16}.get(version)
    if size is None or not (type(port) is int and 0 < port < 2**16):
        raise unexpected("a socket address", wire)
    try:
        ip = ipaddress.ip_address(bytes(sequence(octets, size, "an IP address")))
    except (TypeError, ValueError):
        raise unexpected("an IP address", octets) from None
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def encode_tensor_request(transfer: int) -> bytes:
    """Encode the request for a tensor, by the number of its capability."""
    return _pack({"Request": [*transfer.to_bytes(KEY_BYTES, "little")]})


def decode_tensor_request(frame: bytes) -> bytes:
    """Return the capability of a request. Raises ``ProtocolViolation``."""
    name, capability = variant(unpack_frozen(frame), "Request")
    if name != "Request":
        raise unexpected("Request", name)
    return read_key(capability, "a capability")


def encode_denial(reason: str) -> bytes:
    """Encode the response that a tensor is not available."""
    return _pack({"Denied": reason[:MAX_REASON_CHARACTERS]})


def decode_tensor_response(frame: bytes) -> TensorData:
    """Return the tensor in a response. Raises ``TransferFailed`` if the source denies it."""
    if bytes(frame[:8]) == b"\x81\xa6Denied":
        _, reason = variant(unpack_frozen(frame), "Denied")
        raise TransferFailed(f"the source denied the tensor: {str(reason)[:MAX_REASON_CHARACTERS]}")
    return decode_data(frame)
