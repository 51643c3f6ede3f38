"""The cluster demo trains, moves and evaluates, and continues without a lost node."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import trustme

from support.faults import faulty_proxy
from support.servers import RunningServer, server

DEMO = Path(__file__).parents[2] / "examples" / "cluster_demo.py"
SMALL = ("--steps", "60", "--accuracy", "0.9", "--move-mib", "4", "--rounds", "1")
# For tests that interrupt a run: most of the run follows the line that they wait for.
LONG = (*SMALL, "--steps", "150", "--rounds", "10")
SOON = "training 18/150"
TOKEN = "alice-has-this-token-1"
SVG = "{http://www.w3.org/2000/svg}"


class Outcome(NamedTuple):
    """Output and exit code of a run."""

    code: int
    out: str
    err: str

    @property
    def weights(self) -> str:
        """The hash of the trained weights."""
        (found,) = re.findall(r"^weights sha256 ([0-9a-f]{64})$", self.out, re.MULTILINE)
        return str(found)


def run(*arguments: str, at_line: tuple[str, Callable[[], None]] = ("", lambda: None)) -> Outcome:
    """Run the demo; call a function once, at the first line that contains a text."""
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    text, act = at_line
    lines = []
    assert process.stdout is not None and process.stderr is not None  # started with pipes
    with process:
        for line in process.stdout:
            lines.append(line)
            if text and text in line:
                text = ""
                act()
        err = process.stderr.read()
    return Outcome(process.returncode, "".join(lines), err)


@pytest.fixture(scope="module")
def third_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def nodes(
    first_server: RunningServer, second_server: RunningServer, third_server: RunningServer
) -> list[RunningServer]:
    return [first_server, second_server, third_server]


@pytest.fixture(scope="module")
def undisturbed(
    nodes: Sequence[RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outcome, ElementTree.Element]:
    picture = tmp_path_factory.mktemp("demo") / "timeline.svg"
    outcome = run(*(node.address for node in nodes), *SMALL, "--svg", str(picture))
    return outcome, ElementTree.parse(picture).getroot()


@pytest.fixture
def mortal() -> Iterator[list[RunningServer]]:
    """Servers that a test may kill."""
    with ExitStack() as stack:
        yield [stack.enter_context(server()) for _ in range(3)]


def names(nodes: Sequence[RunningServer]) -> list[str]:
    return [f"127.0.0.1:{node.port}" for node in nodes]


# -- undisturbed runs --------------------------------------------------------------------------


def test_a_run_on_three_servers_succeeds(undisturbed: tuple[Outcome, ElementTree.Element]) -> None:
    outcome, _ = undisturbed
    assert (outcome.code, outcome.err) == (0, "")


def test_a_training_step_takes_one_round_trip(
    undisturbed: tuple[Outcome, ElementTree.Element],
) -> None:
    outcome, _ = undisturbed
    assert re.findall(r"^round trips per training step: (.*)$", outcome.out, re.MULTILINE) == ["1"]


def test_the_trainers_end_with_equal_weights_bit_for_bit(
    undisturbed: tuple[Outcome, ElementTree.Element],
) -> None:
    outcome, _ = undisturbed
    assert "weights of all trainers: the same bits\n" in outcome.out


def test_the_table_has_a_row_for_each_node_and_one_for_the_program(
    undisturbed: tuple[Outcome, ElementTree.Element], nodes: Sequence[RunningServer]
) -> None:
    outcome, _ = undisturbed
    header, *rows = outcome.out.split("\n\n")[1].splitlines()
    assert header.split()[:3] == ["operations", "clients", "in"]
    assert [row.split("  ")[0] for row in rows] == [*names(nodes), "this program"]
    operations = [int(row.split()[1].replace(",", "")) for row in rows[:2]]
    assert min(operations) > 60 * 10


def test_moved_tensors_bypass_the_program(
    undisturbed: tuple[Outcome, ElementTree.Element],
) -> None:
    outcome, _ = undisturbed
    moves = re.findall(r"^4\.2 MB from .* ([0-9,]+) B through this program$", outcome.out, re.M)
    assert len(moves) == 3
    assert all(int(move.replace(",", "")) < 2000 for move in moves)


def test_the_chart_shows_every_node_and_every_move(
    undisturbed: tuple[Outcome, ElementTree.Element], nodes: Sequence[RunningServer]
) -> None:
    _, root = undisturbed
    assert root.tag == f"{SVG}svg"
    shown = [each.text for each in root.iter(f"{SVG}text") if each.get("class") == "node"]
    assert shown == names(nodes)
    moves = [each for each in root.iter(f"{SVG}line") if each.get("class") == "move"]
    assert len(moves) == 3
    assert all(float(move.get("x1", 0)) < float(move.get("x2", 0)) for move in moves)


def test_a_second_run_ends_with_equal_weights_bit_for_bit(
    undisturbed: tuple[Outcome, ElementTree.Element], nodes: Sequence[RunningServer]
) -> None:
    again = run(*(node.address for node in nodes), *SMALL)
    assert again.weights == undisturbed[0].weights


def test_low_accuracy_is_a_failure(nodes: Sequence[RunningServer]) -> None:
    outcome = run(*(node.address for node in nodes), *SMALL, "--steps", "1", "--accuracy", "1")
    assert outcome.code == 1
    assert re.match(r"wrong: the accuracy is [0-9.]+%, not 100% or more\n$", outcome.err)


# -- lost nodes --------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_node_killed_while_training_is_named_and_the_others_continue(
    victim: int, mortal: Sequence[RunningServer]
) -> None:
    outcome = run(
        *(node.address for node in mortal), *LONG, "--tolerate-loss",
        at_line=(SOON, mortal[victim].kill),
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{names(mortal)[victim]} is lost" in outcome.out
    assert re.search(r"^(ConnectionLost|TransferFailed): ", outcome.out, re.MULTILINE)


def test_a_node_killed_between_moves_is_a_failure_unless_tolerated(
    mortal: Sequence[RunningServer],
) -> None:
    outcome = run(*(node.address for node in mortal), *LONG, at_line=("MB from", mortal[2].kill))
    assert outcome.code == 3
    assert outcome.err == f"lost: {names(mortal)[2]}\n"
    assert outcome.out.count(" MB from ") >= 2


def test_when_both_trainers_are_killed_the_last_node_starts_over(
    mortal: Sequence[RunningServer],
) -> None:
    def kill() -> None:
        mortal[0].kill()
        mortal[1].kill()

    outcome = run(
        *(node.address for node in mortal), *LONG, "--tolerate-loss",
        at_line=(SOON, kill),
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert "one node is left: nowhere to move to" in outcome.out


def test_a_silent_node_is_lost_after_the_timeout() -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(server("--fetch-timeout-seconds", "1")) for _ in range(3)]
        outcome = run(
            *(node.address for node in nodes), *LONG, "--tolerate-loss", "--patience", "2",
            at_line=(SOON, lambda: nodes[1].process.send_signal(signal.SIGSTOP)),
        )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{names(nodes)[1]} is lost" in outcome.out


def test_a_broken_and_restored_network_changes_no_bit(
    undisturbed: tuple[Outcome, ElementTree.Element], nodes: Sequence[RunningServer]
) -> None:
    with faulty_proxy(nodes[0].port) as proxy:
        addresses = [proxy.address, *(node.address for node in nodes[1:])]
        outcome = run(*addresses, *SMALL, at_line=("training 14/60", proxy.cut_all))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.weights == undisturbed[0].weights


# -- invalid configurations --------------------------------------------------------------------


def assert_cannot_begin(outcome: Outcome, message: str) -> None:
    """Assert that the output is one sentence and no traceback."""
    assert (outcome.code, outcome.out) == (2, "")
    assert re.match(rf"cluster_demo: {message}[^\n]*\n$", outcome.err), outcome.err


def test_a_wrong_token_gives_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with server(BURN_REMOTE_TOKENS=f"alice:{TOKEN}") as guarded:
        file.write_text("this-is-another-token\n")
        wrong = run(guarded.address, guarded.address, *SMALL, "--token-file", str(file))
        file.write_text(f"{TOKEN}\n")
        right = run(guarded.address, guarded.address, *SMALL, "--token-file", str(file))
    assert_cannot_begin(wrong, r".*token")
    assert right.code == 0


def test_an_unreachable_node_gives_one_sentence(nodes: Sequence[RunningServer]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"ws://127.0.0.1:{unused.getsockname()[1]}"
        outcome = run(nodes[0].address, address)
    assert_cannot_begin(outcome, f"nothing listens at {address}")


def test_an_unresolvable_name_gives_one_sentence() -> None:
    outcome = run("ws://no-such-node.invalid:3000", "ws://b", "--connect-timeout", "3")
    assert_cannot_begin(
        outcome, "(the host name 'no-such-node.invalid' cannot be resolved|.*resolve)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ws://a"], "give at least two addresses"),
        (["ws://a", "ws://b", "--token-file", "/no/such/file"], "/no/such/file cannot be read"),
        (["ws://a", "ws://b", "--ca", "/no/such/file"], "/no/such/file cannot be read"),
        (["ws://a", "ws://b", "--ca", str(DEMO)], "--ca .* has no certificate"),
        (["ws://a", "ws://b", "--svg", "/no/such/folder/x"], "--svg .* cannot be written"),
        (["http://a", "ws://b"], "'http://a' is not an address"),
    ],
)
def test_mistakes_on_the_command_line_give_one_sentence(
    arguments: Sequence[str], message: str
) -> None:
    assert_cannot_begin(run(*arguments), message)


def test_servers_with_certificates_of_a_private_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "server.pem", "server.key"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    flags = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--peer-ca", str(ca)]
    with server(*flags) as first, server(*flags) as second:
        outcome = run(first.address, second.address, *SMALL, "--ca", str(ca))
    assert (outcome.code, outcome.err) == (0, "")
    assert "no metrics" not in outcome.out
