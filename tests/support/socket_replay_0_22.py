"""Replay of sessions recorded from Burn 0.22 over the sockets of a server.

The client's frames are sent in recorded order, with session ids, capabilities and addresses
replaced. For each recorded response, the replay waits for the server's and compares it: shapes,
dtypes, integers and bools must be equal, floating-point numbers agree within a tolerance.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgpack

from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.operations.encoding import decode_tensor_data
from support.replay import difference

__all__ = ["Socket22", "replay_over_sockets_0_22"]

ANSWER_SECONDS: Final = 30.0
BINARY: Final = 2  # WebSocket's opcode
STREAM: Final = [1]


def unpacked(payload: bytes | memoryview) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


class Socket22:
    """The socket of one session of Burn 0.22; sends and receives unpacked messages."""

    def __init__(self, address: str) -> None:
        # Neither side sends pings.
        self.link: BlockingLink = connect(
            address, "/session", close_timeout_seconds=0, speaks_burn=True
        )
        self._arrived: dict[int, Any] = {}

    @classmethod
    def opened(cls, address: str, device: int = 0, token: bytes = b"") -> Socket22:
        """Open a session, whatever the server answers."""
        socket = cls(address)
        socket.send({"Init": [2, [secrets.randbits(64)], device, token]})
        socket.opening = socket.answer(0)
        return socket

    opening: Any = None  # the response to Init

    def send(self, *messages: Any) -> None:
        """Send messages in one frame."""
        self.link.send(msgpack.packb([*messages]))

    def task(self, name: str, body: Any) -> None:
        """Send one task in a frame of its own."""
        self.send({"Task": {name: body}})

    def answer(self, request: int) -> Any:
        """Return the response to one request; others that arrive before are kept."""
        while request not in self._arrived:
            frame = self.link.receive(ANSWER_SECONDS)
            assert frame is not None, f"no answer to {request}"
            content, of = unpacked(frame)
            self._arrived[of] = content
        return self._arrived.pop(request)

    def read(self, tensor: int, dims: list[int], request: int, dtype: Any = "F32") -> Any:
        """Read a tensor; return the value in the response."""
        self.task("ReadTensor", [request, STREAM, [[tensor], [dims], "ReadOnly", dtype]])
        return self.answer(request)["ReadTensor"]

    def close(self) -> None:
        self.link.close()


class _Replay:
    def __init__(self, session: dict[str, Any], addresses: list[str], token: bytes) -> None:
        self.token = token
        self.frames = session["frames"]
        self.addresses = addresses
        self.peers = {
            recorded: self._parts(ours)
            for recorded, ours in zip(map(str, session["addresses"]), addresses, strict=False)
        }
        # Random numbers differ.
        self.is_random = "Seed" in str([unpacked(one["payload"]) for one in self._sent()])
        self.drawn: dict[Any, Any] = {}

    def _sent(self) -> list[Any]:
        return [one for one in self.frames if one["dir"] == "c2s" and one["op"] == BINARY]

    @staticmethod
    def _parts(address: str) -> list[Any]:
        scheme, _, rest = address.partition("://")
        host, _, port = rest.rpartition(":")
        return [scheme, host, int(port)]

    def run(self) -> list[str]:
        sockets: dict[int, Socket22] = {}
        problems: list[str] = []
        try:
            for frame in self.frames:
                if frame["route"] == "/data" or frame["op"] != BINARY:
                    continue
                number = frame["conn"]
                if number not in sockets:
                    sockets[number] = Socket22(self.addresses[frame["server"]])
                message = unpacked(frame["payload"])
                if frame["dir"] == "c2s":
                    sockets[number].send(*self._replaced(message))
                else:
                    expected, request = message
                    seen = sockets[number].answer(request)
                    if problem := self._problem(expected, seen):
                        problems.append(f"answer {request}: {problem}")
        finally:
            for socket in sockets.values():
                socket.close()
        return problems

    def _problem(self, expected: Any, seen: Any) -> str | None:
        if "ReadTensor" in expected and "ReadTensor" in seen:
            right, found = expected["ReadTensor"], seen["ReadTensor"]
            data = decode_tensor_data(found["Ok"]) if "Ok" in found else str(found)
            return difference(right, data, self.is_random)
        if "Init" in expected and "Init" in seen:
            version, settings, _, peer = expected["Init"]  # the number of devices may differ
            return None if seen["Init"][:2] == [version, settings] and peer is None else str(seen)
        return None if seen == expected else f"{seen} instead of {expected}"

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, dict):
            if "Init" in value and isinstance(value["Init"][0], int):
                version, (session,), device, token = value["Init"]
                mine = self.drawn.setdefault(session, secrets.randbits(64))
                return {"Init": [version, [mine], device, token and self.token]}
            if "WebSocket" in value:
                scheme, host, port = value["WebSocket"]
                return {"WebSocket": self.peers[f"{scheme}://{host}:{port}"]}
            return {name: self._replaced(body) for name, body in value.items()}
        if isinstance(value, list):
            if len(value) == 32 and all(type(one) is int and 0 <= one < 256 for one in value):
                return self.drawn.setdefault(bytes(value), [*secrets.token_bytes(32)])
            return [self._replaced(item) for item in value]
        return value


def replay_over_sockets_0_22(
    session: dict[str, Any], addresses: list[str], token: bytes = b""
) -> list[str]:
    """Replay a session on servers at these addresses; return the differences.

    ``token`` replaces a recorded one.
    """
    return _Replay(session, addresses, token).run()
