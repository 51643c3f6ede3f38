"""Lookups that a name server does not answer do not delay those of other tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.access.name_lookups import NameLookups
from burn_remote_server.access.peer_rules import PeerRules


class NameServer:
    """Answers all names but those that begin with ``silent``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()  # set: silent names are answered too

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[object]:
        self.asked.append(host)
        if host.startswith("silent"):
            await self.answers.wait()
        return [(0, 0, 0, "", ("192.0.2.7", port))]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", server.getaddrinfo, raising=False)
    return server


def silent(count: int) -> Iterator[str]:
    return (f"silent{number}" for number in range(count))


async def test_a_token_has_one_lookup_at_a_time_and_delays_no_other(names: NameServer) -> None:
    lookups = NameLookups()
    waiting = [asyncio.create_task(lookups.find(name, 1, "mallory")) for name in silent(50)]
    async with asyncio.timeout(5):
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
