"""Lookups that a name server does not answer do not delay those of other parties."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.access import name_lookups
from burn_remote_server.access.name_lookups import MAX_LOOKUPS, NameLookups
from burn_remote_server.access.peer_rules import PeerRules
from support.missing_threads import no_thread
from support.waiting import PATIENCE_SECONDS


class NameServer:
    """Answers all names but those that begin with ``silent``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()  # set: silent names are answered too

    def addresses_of(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.answers.wait(PATIENCE_SECONDS)
        return ["192.0.2.7"]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(name_lookups, "addresses_of", server.addresses_of)
    yield server
    server.answers.set()


def silent(count: int) -> Iterator[str]:
    return (f"silent{number}" for number in range(count))


async def test_a_party_has_one_lookup_at_a_time_and_delays_no_other(names: NameServer) -> None:
    lookups = NameLookups()
    waiting = [asyncio.create_task(lookups.find(name, 1, "mallory")) for name in silent(50)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await lookups.find("node-b", 1, "alice") == ["192.0.2.7"]
    assert sorted(names.asked) == ["node-b", "silent0"]
    names.answers.set()
    assert await asyncio.gather(*waiting) == [["192.0.2.7"]] * 50


async def test_a_lookup_that_was_given_up_keeps_its_turn_until_it_ends(names: NameServer) -> None:
    lookups = NameLookups()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lookups.find("silent", 1, "mallory")
    late = asyncio.create_task(lookups.find("node-b", 1, "mallory"))
    await lookups.find("node-b", 1, "alice")
    assert names.asked.count("node-b") == 1
    names.answers.set()
    assert await late == ["192.0.2.7"]


async def test_many_parties_look_up_names_at_the_same_time(names: NameServer) -> None:
    lookups = NameLookups()
    waiting = [
        asyncio.create_task(lookups.find(f"silent{number}", 1, f"session {number}"))
        for number in range(MAX_LOOKUPS - 1)
    ]
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await lookups.find("node-b", 1, "session 99") == ["192.0.2.7"]
        names.answers.set()
        await asyncio.gather(*waiting)


async def test_further_parties_wait_for_a_thread(names: NameServer) -> None:
    lookups = NameLookups()
    waiting = [
        asyncio.create_task(lookups.find(f"silent{number}", 1, f"session {number}"))
        for number in range(MAX_LOOKUPS)
    ]
    late = asyncio.create_task(lookups.find("node-b", 1, "session 99"))
    for _ in range(10):
        await asyncio.sleep(0)
    cancelled = asyncio.create_task(lookups.find("node-b", 1, "session 100"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert "node-b" not in names.asked
    names.answers.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*waiting)
        assert await late == ["192.0.2.7"]
        assert await lookups.find("node-b", 1, "session 100") == ["192.0.2.7"]


def no_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("start", "reason"),
    [(no_thread, "can't start new thread"), (no_memory, "no memory for a thread")],
)
async def test_without_a_thread_a_lookup_fails_and_gives_its_turn_back(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, start: Callable[..., None], reason: str
) -> None:
    lookups = NameLookups()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match=reason):
            await lookups.find("node-b", 1, "alice")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await lookups.find("node-b", 1, "alice") == ["192.0.2.7"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fd00::7"])
async def test_an_address_is_not_looked_up(host: str, names: NameServer) -> None:
    assert await NameLookups().find(host, 1, "alice") == [host]
    assert names.asked == []


async def test_a_name_that_no_rule_can_allow_is_not_looked_up(names: NameServer) -> None:
    rules = PeerRules(["node-b:3000"])
    with pytest.raises(TransferFailed, match=r"with --peer silent:3000$"):
        await rules.resolve("ws://silent:3000")
    assert names.asked == []
    assert (await rules.resolve("ws://NODE-B:3000"))[1] == ["192.0.2.7"]
