"""A server gives the recorded responses of Burn 0.22's server to sessions of Burn 0.22's client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.recorded import recordings_0_22, sessions
from support.servers import server
from support.socket_replay_0_22 import replay_over_sockets_0_22

TOKEN = "5f0d3a1c9e7b48d2a6c4e8f01b3d5a79"
TESTS = Path(__file__).parents[1]

SESSIONS = [session for recording in recordings_0_22() for session in sessions(recording)]


# With a cost limit of 0, all batches run on the threads of the sessions, which then receive too.
@pytest.fixture(
    scope="module", params=[["--fusion"], ["--no-fusion"], ["--fusion", "--inline-cost-limit", "0"]]
)
def pair(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    flags = (*request.param, "--device-count", "2", "--custom-operations", "support.burn_scale")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    with server(*flags, **variables) as first, server(*request.param) as second:
        yield [first.address, second.address]
        received = first.metrics()["burn_remote_thread_batches_total"]
        assert received or "--inline-cost-limit" not in request.param


@pytest.mark.parametrize("session", SESSIONS, ids=[each["name"] for each in SESSIONS])
def test_a_recorded_session_gets_the_recorded_responses(
    session: dict[str, Any], pair: list[str]
) -> None:
    if "token" in session["name"]:
        with server(BURN_REMOTE_TOKENS=f"recorded:{TOKEN}") as private:
            problems = replay_over_sockets_0_22(session, [private.address], TOKEN.encode())
    else:
        problems = replay_over_sockets_0_22(session, pair)

    assert not problems


def test_concurrent_sessions_get_the_recorded_responses(pair: list[str]) -> None:
    chosen = [session for session in SESSIONS if "token" not in session["name"]]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda session: replay_over_sockets_0_22(session, pair), chosen)
        wrong = {
            session["name"]: problems
            for session, problems in zip(chosen, found, strict=True)
            if problems
        }

    # Printed by `make conformance`.
    print(f"burn 0.22: {len(chosen)} sessions over real sockets, {len(wrong)} differ")  # noqa: T201
    assert not wrong
