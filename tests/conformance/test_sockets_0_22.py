"""A server gives the recorded responses of Burn 0.22's server to sessions of Burn 0.22's client."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.recorded import recordings_0_22, sessions
from support.servers import RunningServer, server
from support.socket_replay_0_22 import replay_over_sockets_0_22
from support.waiting import PATIENCE_SECONDS

TOKEN = "5f0d3a1c9e7b48d2a6c4e8f01b3d5a79"
TESTS = Path(__file__).parents[1]

SESSIONS = [session for recording in recordings_0_22() for session in sessions(recording)]


# With a cost limit of 0, all batches run on the threads of the sessions, which then receive too.
ON_THREADS = ["--fusion", "--inline-cost-limit", "0"]
PATIENT = ("--handshake-timeout-seconds", str(PATIENCE_SECONDS))


@pytest.fixture(scope="module", params=[["--fusion"], ["--no-fusion"], ON_THREADS])
def pair(request: pytest.FixtureRequest) -> Iterator[list[RunningServer]]:
    others = (*request.param, *PATIENT)
    flags = (*others, "--device-count", "2", "--custom-operations", "support.burn_scale")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    with server(*flags, **variables) as first, server(*others) as second:
        yield [first, second]


def replayed(session: dict[str, Any], pair: list[RunningServer]) -> list[str]:
    """Return in what the responses of a pair of servers differ from the recorded ones."""
    return replay_over_sockets_0_22(session, [one.address for one in pair])


@pytest.mark.parametrize("session", SESSIONS, ids=[each["name"] for each in SESSIONS])
def test_a_recorded_session_gets_the_recorded_responses(
    session: dict[str, Any], pair: list[RunningServer]
) -> None:
    if "token" in session["name"]:
        with server(*PATIENT, BURN_REMOTE_TOKENS=f"recorded:{TOKEN}") as private:
            problems = replay_over_sockets_0_22(session, [private.address], TOKEN.encode())
    else:
        problems = replayed(session, pair)

    assert not problems


@pytest.mark.parametrize("pair", [ON_THREADS], indirect=True)
def test_the_threads_of_sessions_receive_recorded_batches(pair: list[RunningServer]) -> None:
    # A thread takes over the connection only while it waits, so not in every replay.
    trainings = [session for session in SESSIONS if session["name"].startswith("train")]
    for session in itertools.cycle(trainings):
        assert not replayed(session, pair)
        if pair[0].metric("burn_remote_thread_batches_total"):
            return


def test_concurrent_sessions_get_the_recorded_responses(pair: list[RunningServer]) -> None:
    chosen = [session for session in SESSIONS if "token" not in session["name"]]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda session: replayed(session, pair), chosen)
        wrong = {
            session["name"]: problems
            for session, problems in zip(chosen, found, strict=True)
            if problems
        }

    # Printed by `make conformance`.
    print(f"burn 0.22: {len(chosen)} sessions over real sockets, {len(wrong)} differ")  # noqa: T201
    assert not wrong
