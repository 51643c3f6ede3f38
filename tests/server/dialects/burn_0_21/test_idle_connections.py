"""Too many idle connections of peers: one of the host with the most ends, the oldest."""

from __future__ import annotations

import contextlib

from burn_remote_protocol.errors import LimitExceeded
from burn_remote_server.dialects.burn_0_21.idle_connections import IdleConnections


class Connections:
    """Connections that become idle one after another, and those that were ended."""

    def __init__(self, allowed: int) -> None:
        self.idle = IdleConnections()
        self.allowed = allowed
        self.ended: list[tuple[str, LimitExceeded]] = []
        self.blocks: list[contextlib.AbstractContextManager[None]] = []

    def enter(self, host: str, name: str) -> contextlib.AbstractContextManager[None]:
        block = self.idle.waiting(
            host, lambda error: self.ended.append((name, error)), self.allowed
        )
        block.__enter__()
        self.blocks.append(block)
        return block


def test_as_many_as_are_allowed_stay() -> None:
    connections = Connections(3)
    for host in "abc":
        connections.enter(host, host)
    assert connections.ended == []


def test_the_oldest_of_the_host_with_most_connections_ends() -> None:
    connections = Connections(3)
    for name in ("a1", "b1", "b2", "c1"):
        connections.enter(name[0], name)
    ((name, error),) = connections.ended
    assert name == "b1"
    assert str(error) == "idle connections of peers: seen 4, allowed 3"
    connections.enter("c", "c2")
    assert [name for name, _ in connections.ended] == ["b1", "c1"]


def test_a_connection_with_a_request_is_not_idle_and_counts_as_new_afterwards() -> None:
    connections = Connections(2)
    first = connections.enter("a", "a1")
    connections.enter("a", "a2")
    first.__exit__(None, None, None)
    connections.enter("a", "a1 again")
    assert connections.ended == []
    connections.enter("a", "a3")
    assert [name for name, _ in connections.ended] == ["a2"]


def test_an_ended_connection_is_counted_once() -> None:
    connections = Connections(1)
    first, second = connections.enter("a", "a1"), connections.enter("a", "a2")
    for block in (first, second):
        block.__exit__(None, None, None)
    assert connections.idle._count == 0
    assert connections.idle._by_host == {}
