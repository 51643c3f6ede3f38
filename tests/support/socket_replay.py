"""Replay of sessions recorded from Burn over the sockets of a server.

The client's frames are sent unchanged, in recorded order. For each recorded response, the replay
waits for the server's and compares it: shapes, dtypes, integers and bools must be equal.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgpack

from burn_remote_protocol.dialects.burn_0_21 import encode_init
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.operations.encoding import decode_operation, decode_tensor_data
from support.replay import RANDOM, difference
from support.waiting import PATIENCE_SECONDS

__all__ = ["Sockets", "replay_over_sockets"]

ANSWER_SECONDS: Final = 2 * PATIENCE_SECONDS


class Sockets:
    """The two sockets of one session on one server."""

    def __init__(self, address: str) -> None:
        # Burn's server never responds to a close, and neither side sends pings.
        self.requests: BlockingLink = self._connect(address, "/request")
        self.responses: BlockingLink = self._connect(address, "/response")
        session = secrets.randbits(63)
        self.requests.send(encode_init(session))
        self.responses.send(encode_init(session))
        self._arrived: dict[str, Any] = {}

    @staticmethod
    def _connect(address: str, route: str) -> BlockingLink:
        return connect(address, route, timeout_seconds=PATIENCE_SECONDS, close_timeout_seconds=0)

    def answer(self, identity: str) -> Any:
        """Return the response to one request, skipping those before it."""
        while identity not in self._arrived:
            frame = self.responses.receive(ANSWER_SECONDS)
            assert frame is not None, f"no answer to {identity}"
            content, of = msgpack.unpackb(frame, strict_map_key=False)
            self._arrived[str(of)] = content
        return self._arrived.pop(identity)

    def close(self) -> None:
        self.requests.close()
        self.responses.close()


class _Replay:
    def __init__(self, session: dict[str, Any], addresses: list[str], compare_usage: bool) -> None:
        self.frames = session["frames"]
        self.recorded = session.get("addresses") or []
        self.addresses = addresses
        self.compare_usage = compare_usage
        self.random: set[tuple[int, int]] = set()
        self.random_reads: set[str] = set()
        self.problems: list[str] = []

    def run(self) -> list[str]:
        count = 1 + max(frame.get("server", 0) for frame in self.frames)
        servers = [Sockets(address) for address in self.addresses[:count]]
        try:
            for frame in self.frames:
                if frame["route"] == "/data":
                    continue  # a message between the servers
                number = frame.get("server", 0)
                message = msgpack.unpackb(frame["payload"], strict_map_key=False)
                if frame["dir"] == "s2c":
                    self._compare(number, message, servers[number])
                elif "Compute" in message:
                    self._send(number, message, frame["payload"], servers[number])
        finally:
            for server in servers:
                server.close()
        return self.problems

    def _send(self, number: int, message: Any, payload: bytes, server: Sockets) -> None:
        task, identity = message["Compute"]
        name, body = (task, []) if isinstance(task, str) else next(iter(task.items()))
        if name == "RegisterOperation":
            self._mark_random(number, payload)
        elif name == "RegisterTensor":
            self.random.discard((number, body[0][0]))
        elif name == "ReadTensor" and (number, body[0][0]) in self.random:
            self.random_reads.add(f"{number} {identity}")
        elif name == "RegisterTensorRemote":
            address = body[0][1]
            address[0] = self.addresses[self.recorded.index(address[0])]
            payload = msgpack.packb(message)
        server.requests.send(payload)

    def _mark_random(self, number: int, payload: bytes) -> None:
        frozen = msgpack.unpackb(payload, use_list=False, object_pairs_hook=FrozenMap)
        signature, tensors = decode_operation(frozen[0][1][0][0][1])
        count = len(signature.input_uses)
        keys = [(number, tensor) for tensor in tensors]
        if signature.row.name in RANDOM or not self.random.isdisjoint(keys[:count]):
            self.random.update(keys[count:])
        elif signature.row.name != "Init":
            self.random.difference_update(keys[count:])

    def _compare(self, number: int, message: Any, server: Sockets) -> None:
        content, identity = message
        ((kind, expected),) = content.items()
        seen = server.answer(str(identity))
        problem: str | None = None
        if kind == "ReadTensor" and "Ok" in seen.get(kind, {}):
            data = decode_tensor_data(seen[kind]["Ok"])
            declared = decode_tensor_data(expected["Ok"]) if "Ok" in expected else data
            if data.spec != declared.spec:
                problem = f"{data.spec} instead of {declared.spec}"
            else:
                problem = difference(expected, data, f"{number} {identity}" in self.random_reads)
        elif kind != "DTypeUsage" or self.compare_usage:
            problem = None if seen == content else f"{seen} instead of {content}"
        if problem:
            self.problems.append(f"server {number}, question {identity}: {problem}")


def replay_over_sockets(
    session: dict[str, Any], addresses: list[str], *, compare_usage: bool = True
) -> list[str]:
    """Replay a recorded session against servers; return the responses that differ."""
    return _Replay(session, addresses, compare_usage).run()
