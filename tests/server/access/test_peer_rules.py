"""A server connects only to peers that its operator allows, whatever address a client names."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from burn_remote_protocol.errors import ConnectionFailed, TransferFailed, UsageError
from burn_remote_server.access import name_lookups
from burn_remote_server.access.peer_rules import PeerRules, is_forbidden, is_own_address

ip = ipaddress.ip_address

EVERYTHING = ("0.0.0.0/0", "::/0")


def elsewhere(_: object) -> bool:
    return False


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::23",
        "fd20:ce::254",
        "192.0.0.192",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00:a00:1",
        "64:ff9b:1:a9:fe:a9fe:a00:1",
        "64:ff9b:1:0:a9:fea9:fe00:1",
        "2001:0:4136:e378:8000:63bf:5601:5601",
        "::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
    ],
)
def test_no_rule_allows_link_local_or_metadata_addresses(address: str) -> None:
    assert is_forbidden(ip(address))
    assert not PeerRules((*EVERYTHING, "metadata")).allows("metadata", ip(address))


def test_this_machine_is_allowed_without_being_named() -> None:
    rules = PeerRules(())
    assert rules.allows("localhost", ip("127.0.0.1"))
    assert rules.allows("localhost", ip("::1"))
    assert rules.allows("other", ip("::ffff:127.0.0.1"))


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
    ],
)
async def test_loopback_of_a_router_that_translates_addresses_is_not_this_machine(
    address: str,
) -> None:
    assert not PeerRules(()).allows("localhost", ip(address))
    assert not PeerRules(()).allows_address(f"[{address}]:51034")
    assert not PeerRules(["127.0.0.0/8"]).allows("localhost", ip(address))
    rules = PeerRules([address])
    assert rules.allows("localhost", ip(address))
    with pytest.raises(TransferFailed, match="over a network without TLS"):
        await rules.resolve(f"ws://[{address}]:3000/token/abc")


def test_another_machine_is_not_allowed_unless_named() -> None:
    assert not PeerRules(()).allows("node-b", ip("192.0.2.7"))
    assert PeerRules(["node-b"]).allows("NODE-B", ip("192.0.2.7"))
    assert PeerRules(["192.0.2.7"]).allows("anything", ip("192.0.2.7"))
    assert PeerRules(["192.0.2.0/24"]).allows("anything", ip("192.0.2.7"))
    assert not PeerRules(["192.0.3.0/24", "node-c"]).allows("node-b", ip("192.0.2.7"))


def test_only_addresses_that_can_be_bound_to_are_this_machines() -> None:
    assert is_own_address(ip("127.0.0.1"))
    assert not is_own_address(ip("192.0.2.7"))
    assert not is_own_address(ip("2001:db8::1"))


def test_with_peers_named_this_machine_is_allowed_only_where_it_is_named() -> None:
    assert not PeerRules(["node-b"]).allows("localhost", ip("127.0.0.1"))
    assert PeerRules(["node-b", "127.0.0.1"]).allows("localhost", ip("127.0.0.1"))


@pytest.mark.parametrize(
    "peer",
    [
        "node-b:3000-3010",
        "192.0.2.7:3000-3010",
        "192.0.2.0/24:3000-3010",
        "[2001:db8::/32]:3000-3010",
    ],
)
def test_a_rule_with_ports_allows_no_other_port(peer: str) -> None:
    rules = PeerRules([peer])
    host = ip("2001:db8::7" if "[" in peer else "192.0.2.7")
    allowed = [port for port in (1, 2999, 3000, 3010, 3011) if rules.allows("node-b", host, port)]
    assert allowed == [3000, 3010]


@pytest.mark.parametrize("peer", ["2001:db8::7", "[2001:db8::7]", "[2001:db8::7]:3000"])
def test_an_ipv6_address_may_have_brackets_and_a_port(peer: str) -> None:
    assert PeerRules([peer]).allows("anything", ip("2001:db8::7"), 3000)


def test_a_rule_with_one_port_allows_that_one() -> None:
    rules = PeerRules(["node-b:3000"])
    assert rules.allows("node-b", ip("192.0.2.7"), 3000)
    assert not rules.allows("node-b", ip("192.0.2.7"), 3001)


@pytest.mark.parametrize(
    "peer",
    [
        "ws://node-b",
        "node-b:",
        "node-b:0",
        "node-b:65536",
        "node-b:10-9",
        "node-b:http",
        "node-b:1-2-3",
        "node-b:\u0661",
        "[fd00::7",
        "[fd00::7]3000",
        "a/b",
        "",
        "node b",
        "300.1.1.1/8",
    ],
)
def test_a_peer_rule_without_a_host_or_network_is_refused(peer: str) -> None:
    with pytest.raises(UsageError, match="expected a host name, address or network"):
        PeerRules([peer])


async def test_with_an_authority_for_peers_addresses_without_tls_are_refused() -> None:
    rules = PeerRules((), needs_tls=True)
    with pytest.raises(TransferFailed, match=r"has --peer-ca, so it fetches over TLS only"):
        await rules.resolve("ws://127.0.0.1:3000")
    _, found = await rules.resolve("wss://127.0.0.1:3000")
    assert found == ["127.0.0.1"]


async def test_a_port_without_a_rule_is_refused_with_the_rule_to_add() -> None:
    rules = PeerRules(["127.0.0.1:3000"])
    with pytest.raises(TransferFailed, match=r"with --peer 127\.0\.0\.1:22$"):
        await rules.resolve("ws://127.0.0.1:22")


async def test_a_token_in_an_address_leaves_this_machine_by_tls_only() -> None:
    rules = PeerRules(["192.0.2.7"])
    with pytest.raises(TransferFailed, match="over a network without TLS") as caught:
        await rules.resolve("ws://192.0.2.7:3000/token/abc")
    assert "abc" not in str(caught.value)
    assert (await rules.resolve("wss://192.0.2.7:3000/token/abc"))[1] == ["192.0.2.7"]


def test_the_origin_of_a_connection_is_checked_by_the_same_rules() -> None:
    rules = PeerRules(["10.0.0.0/8"], elsewhere)
    assert rules.allows_address("10.1.2.3")
    assert rules.allows_address("10.1.2.3:51034")
    assert rules.allows_address("::ffff:10.1.2.3")
    assert rules.allows_address("[::ffff:10.1.2.3]:51034")
    assert not rules.allows_address("[fe80::1%eth0]:51034")
    assert not rules.allows_address("11.1.2.3")
    assert not rules.allows_address("fe80::1%eth0")
    assert not rules.allows_address("a unix socket")


async def resolving(
    monkeypatch: pytest.MonkeyPatch, rules: PeerRules, address: str, *answers: str
) -> list[str]:
    def look_up(host: str, port: int) -> list[str]:
        if not answers:
            raise socket.gaierror
        return [*answers]

    monkeypatch.setattr(name_lookups, "addresses_of", look_up)
    return (await rules.resolve(address))[1]


async def test_connections_go_to_the_addresses_that_were_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = PeerRules(["node-b"], elsewhere)
    found = await resolving(monkeypatch, rules, "ws://node-b:3000", "192.0.2.7", "192.0.2.8")
    assert found == ["192.0.2.7", "192.0.2.8"]


async def test_a_name_with_many_addresses_is_dialled_at_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [f"192.0.2.{number}" for number in range(100)]
    found = await resolving(monkeypatch, PeerRules(["node-b"], elsewhere), "ws://node-b", *answers)
    assert found == answers[:4]


async def test_a_token_is_kept_if_any_address_to_dial_is_on_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules, address = PeerRules(["node-b"], elsewhere), "ws://node-b/token/abc"
    assert await resolving(monkeypatch, rules, address, "127.0.0.1", "::1") == ["127.0.0.1", "::1"]
    with pytest.raises(TransferFailed, match="over a network without TLS"):
        await resolving(monkeypatch, rules, address, "127.0.0.1", "192.0.2.7")


async def test_an_allowed_name_that_resolves_to_a_metadata_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = PeerRules(["node-b"], elsewhere)
    with pytest.raises(TransferFailed, match=r"may not fetch from 'node-b'.*never allowed"):
        await resolving(monkeypatch, rules, "ws://node-b:3000", "169.254.169.254", "fe80::1%eth0")
    found = await resolving(monkeypatch, rules, "ws://node-b", "169.254.169.254", "192.0.2.7")
    assert found == ["192.0.2.7"]


async def test_an_unresolvable_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransferFailed, match="the host name 'node-b' cannot be resolved"):
        await resolving(monkeypatch, PeerRules(["node-b"]), "ws://node-b")


@pytest.mark.parametrize(
    "path",
    [
        "/admin",
        "/1/admin",
        "/12345",
        "/../1",
        "//1",
        "/token/a/b/c",
        "/token/..%2f..%2fadmin",
        "/token/%2e%2e/1",
        "/token/../1",
    ],
)
async def test_paths_of_other_programs_are_refused(path: str) -> None:
    with pytest.raises(TransferFailed, match="is not the address of a device"):
        await PeerRules(()).resolve(f"ws://127.0.0.1:3000{path}")


@pytest.mark.parametrize("path", ["", "/", "/1", "/token/abc", "/token/abc%3D/2"])
async def test_paths_of_devices_are_taken(path: str) -> None:
    _, found = await PeerRules(()).resolve(f"ws://127.0.0.1:3000{path}")
    assert found == ["127.0.0.1"]


async def test_a_malformed_address_is_refused() -> None:
    with pytest.raises(ConnectionFailed):
        await PeerRules(()).resolve("file:///etc/passwd")


async def test_no_rule_allows_an_address_of_iroh() -> None:
    node = "ae58ff8833241ac82d6ff7611046ed67b5072d142c588d0063e942d9a75502b6"
    for rules in (PeerRules([]), PeerRules([node]), PeerRules(["127.0.0.1"])):
        with pytest.raises(TransferFailed, match="fetch tensors from each other over WebSockets"):
            await rules.resolve(f"iroh://{node}?addr=127.0.0.1:4433")


NODE = "ae58ff8833241ac82d6ff7611046ed67b5072d142c588d0063e942d9a75502b6"


@pytest.mark.parametrize(
    ("rules", "ways"),
    [
        ([], "?addr=127.0.0.1:4433"),
        (["10.1.0.0/16:4000-5000"], "?addr=10.1.2.3:4433&addr=10.1.2.4:4433"),
        ([NODE], ""),
        ([NODE], "?addr=192.0.2.7:4433&relay=https://relay.site"),
    ],
)
def test_servers_over_iroh_are_allowed_by_their_addresses_or_their_key(
    rules: list[str], ways: str
) -> None:
    assert PeerRules(rules).check_iroh(f"iroh://{NODE}{ways}").host == NODE


@pytest.mark.parametrize(
    ("rules", "ways"),
    [
        ([], ""),
        ([], "?relay=https://relay.site"),
        ([], "?addr=127.0.0.1:4433&relay=https://relay.site"),
        ([], "?addr=127.0.0.1:4433&addr=192.0.2.7:4433"),
        (["10.1.0.0/16:4000-5000"], "?addr=10.1.2.3:22"),
        (["10.1.0.0/16"], "?addr=10.1.2.3:4433&addr=127.0.0.1:4433"),
        ([f"0{NODE[1:]}"], "?addr=127.0.0.1:4433"),
        ([NODE], "?addr=169.254.169.254:4433"),
        ([NODE], "?addr=[::ffff:169.254.169.254]:4433"),
    ],
)
def test_other_servers_over_iroh_are_refused_with_what_to_allow(
    rules: list[str], ways: str
) -> None:
    with pytest.raises(TransferFailed, match=f"--peer {NODE}"):
        PeerRules(rules).check_iroh(f"iroh://{NODE}{ways}")
