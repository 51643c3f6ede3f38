"""A ready server prints its addresses: a panel on a terminal, one line otherwise."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from burn_remote_protocol.collectives import EngineKind
from burn_remote_server.command_line.banner import announce, facts, ready_line
from burn_remote_server.settings.server_settings import Settings

ADDRESSES = ["ws://127.0.0.1:3000", "ws://127.0.0.1:3000/1"]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    """A pipe whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_ready_line_ends_with_the_addresses() -> None:
    words = ready_line(ADDRESSES).split(" at ")
    assert words[-1].split() == ADDRESSES


def test_a_program_gets_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    out, terminal = io.StringIO(), io.StringIO()
    announce({"address": "x"}, ADDRESSES, out=out, terminal=terminal)
    assert out.getvalue() == ready_line(ADDRESSES) + "\n"
    assert terminal.getvalue() == ""
    assert caplog.messages == ["ready"]


def test_a_person_gets_a_panel() -> None:
    out, terminal = io.StringIO(), Terminal()
    announce(facts(Settings(), ADDRESSES, 3000, ["x"], []), ADDRESSES, out=out, terminal=terminal)
    for expected in (ADDRESSES[0], "numpy", "256 sessions", "/healthz", "burn-remote-server"):
        assert expected in terminal.getvalue()


def test_a_closed_output_does_not_stop_the_server() -> None:
    announce({}, ADDRESSES, out=Closed(), terminal=io.StringIO())


def test_the_facts_name_what_an_operator_asks_for() -> None:
    settings = Settings(device_count=2, max_session_bytes=2**30, drain_seconds=7)
    about = facts(settings, ADDRESSES, 3000, ["native protocol 1", "Burn 0.21"], EngineKind)
    assert about["address"] == " ".join(ADDRESSES)
    assert "2 devices" in about["computes"]
    assert about["speaks"] == "native protocol 1, Burn 0.21"
    assert about["groups by"] == "ring, memory, nccl"
    assert "each 1GiB" in about["limits"]
    assert "within 7 s" in about["stops"]
    assert about["health"].startswith("http://127.0.0.1:3000/healthz")


def test_the_address_for_peers_is_shown_if_it_differs() -> None:
    assert "peers use" not in facts(Settings(), ADDRESSES, 3000, [], [])
    behind_a_proxy = Settings(advertise_address="ws://node-a:80")
    assert facts(behind_a_proxy, ADDRESSES, 3000, [], [])["peers use"] == "ws://node-a:80"


def test_a_node_id_that_will_change_is_mentioned() -> None:
    changing = Settings(iroh_port=0)
    assert "--iroh-key-file" in facts(changing, ADDRESSES, 3000, [], [])["node id"]
    kept = Settings(iroh_port=0, iroh_key_file=Path("node.key"))
    assert "node id" not in facts(kept, ADDRESSES, 3000, [], [])


def test_an_unknown_backend_is_named_without_a_version() -> None:
    assert facts(Settings(backend="abacus"), ADDRESSES, 3000, [], [])["computes"].startswith(
        "abacus,"
    )
