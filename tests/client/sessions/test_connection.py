"""A connection sends and resumes; here the pauses between attempts to resume."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from burn_remote.sessions.native.connection import Connection
from burn_remote_protocol.dialects.native import VERSIONS, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    HandshakeRefused,
    SessionLost,
)
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import Welcome
from support.memory_links import memory_pair


def test_pauses_between_resumes_are_random_up_to_a_bound_that_doubles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds: list[float] = []

    def drawn(low: float, high: float) -> float:
        assert low == 0
        bounds.append(high)
        return 0.0

    monkeypatch.setattr("burn_remote.sessions.native.connection.random.uniform", drawn)
    client, server = memory_pair()
    welcome = Welcome(VERSIONS[0], 1, b"secret", 60.0, {}, {}, "")
    server.send(encode_frame(welcome))
    attempts: Iterator[BlockingLink | BurnRemoteError] = iter(
        [client, *[ConnectionFailed("not yet")] * 8, HandshakeRefused("enough")]
    )

    def dial(timeout_seconds: float) -> BlockingLink:
        attempt = next(attempts)
        if isinstance(attempt, BurnRemoteError):
            raise attempt
        return attempt

    lost: list[BurnRemoteError] = []
    ended = threading.Event()

    def note(error: BurnRemoteError) -> None:
        lost.append(error)
        ended.set()

    connection = Connection(dial, None, 5, lambda frame, link: None, note)
    connection.receiver.start()
    server.close()
    assert ended.wait(5)
    assert bounds == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert isinstance(lost[0], SessionLost)
    assert "enough" in str(lost[0])
