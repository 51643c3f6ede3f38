"""The fuzz target of links between members: frames that a neighbour sends."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, cast

import numpy as np

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.dialects.native import encode_frame, piece_head
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import CollectiveFailed, ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginCollective,
    GroupBroken,
    JoinLink,
    LinkJoined,
)
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.collectives.collective_engine import Job
from burn_remote_server.collectives.links import MemoryPipe
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.peer_links import PeerIncoming
from burn_remote_server.collectives.ring_engine import RingEngine
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["ring", "ring_frames"]

CALL: Final = CollectiveCall(CollectiveKind.ALL_REDUCE, (TensorSpec((8,), F32),))
ADDRESSES: Final = ("ws://a:1", "ws://b:1")
# Bounds the wait for a member, which ends with its link.
WAIT_SECONDS: Final = 30.0


class _Frames:
    """A link that receives the frames of an input, and then ends."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._frames = deque(frames)

    def bulk_reader(self, silence_seconds: float) -> _Frames:
        return self

    def receive(
        self,
        head_bytes: int,
        place: Callable[[bytes, int], memoryview],
        check: Callable[[], None],
    ) -> tuple[bytes, memoryview]:
        if not self._frames:
            raise ConnectionLost("the input ended")
        frame = self._frames.popleft()
        head, rest = frame[:head_bytes], frame[head_bytes:]
        room = place(head, len(rest)) if rest else memoryview(bytearray())
        if len(room) != len(rest):
            raise ProtocolViolation(f"{len(rest)} bytes, where {len(room)} were expected")
        room[:] = rest
        return head, room

    def wait(self, timeout_seconds: float) -> bool:
        return True

    def wake(self) -> None: ...

    def send(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


def ring(frames: Iterator[bytes]) -> None:
    """Send frames to a member of a ring; its collective must succeed or fail with a typed error."""
    ended = threading.Event()
    link = PeerIncoming(cast("BlockingLink", _Frames(frames)))
    spec = GroupSpec(bytes(32), 0, ADDRESSES, 10.0)
    member = Member(
        spec,
        NumpyBackend(),
        RingEngine,
        lambda check: link,
        Counters(),
        lambda _: ended.set(),
        WAIT_SECONDS,
    )
    member.attach(MemoryPipe())
    slots = [InFlight(CALL.specs[0], WAIT_SECONDS) for _ in range(2)]
    for sequence, slot in enumerate(slots):
        array = np.full(8, sequence, np.float32)
        member.submit(Job(sequence, CALL, [Lent(array)], [slot], [sequence]))
    member.start()
    assert ended.wait(WAIT_SECONDS), "a member of a ring hangs"
    for slot in slots:
        with contextlib.suppress(CollectiveFailed):
            assert slot.array().shape == (8,)


def ring_frames() -> Iterator[list[bytes]]:
    """Yield frames to start from."""

    def frames(sequence: int) -> list[bytes]:
        begin = BeginCollective(sequence, CALL.digest(sequence), "sum")
        return [
            encode_frame(begin),
            piece_head(sequence, 0) + bytes(16),
            encode_frame(Acknowledged(0)),
            piece_head(sequence, 16) + bytes(16),
        ]

    broken = encode_frame(GroupBroken(1, 1, "it left the group"))
    yield [*frames(0), *frames(1)]
    yield [*frames(0), broken]
    yield [*frames(0)[:2], *frames(1)]
    yield [broken]
    yield [encode_frame(BeginCollective(0, bytes(16), "another"))]
    yield [piece_head(0, 0) + bytes(16)]
    yield [encode_frame(JoinLink(bytes(32))), encode_frame(LinkJoined(bytes(32)))]
