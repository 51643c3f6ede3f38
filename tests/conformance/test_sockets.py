"""A server gives the recorded responses of Burn's server to recorded sessions of Burn's client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.recorded import recordings, sessions
from support.servers import RunningServer, server
from support.socket_replay import replay_over_sockets
from support.waiting import PATIENCE_SECONDS

# Recorded with another Burn backend, whose dtypes differ from those of Burn's CPU server.
OTHER_USAGE = "tensor_ndarray.msgpack.xz"

# Sessions per test: replaying the 1,020 of the largest recording can take a slow machine longer
# than a test may take.
BATCH = 200
BATCHES = [
    (recording, first)
    for recording in recordings()
    for first in range(0, len(sessions(recording)), BATCH)
]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[RunningServer]]:
    flags = ("--handshake-timeout-seconds", str(PATIENCE_SECONDS))
    with server(*flags) as first, server(*flags) as second:
        yield [first, second]


@pytest.mark.parametrize(("recording", "first"), BATCHES)
def test_eight_concurrent_sessions_get_the_recorded_responses(
    recording: str, first: int, pair: list[RunningServer]
) -> None:
    recorded = sessions(recording)[first : first + BATCH]
    addresses = [running.address for running in pair]

    def run(session: dict[str, object]) -> list[str]:
        return replay_over_sockets(session, addresses, compare_usage=recording != OTHER_USAGE)

    # Sessions that move tensors use Burn's small transfer ids (0, 1, 1, 1 …), so concurrent ones
    # may fetch each other's tensors.
    moving = [session for session in recorded if session.get("addresses")]
    others = [session for session in recorded if not session.get("addresses")]
    with ThreadPoolExecutor(8) as pool:
        problems = dict(zip((each["name"] for each in others), pool.map(run, others), strict=True))
    problems |= {session["name"]: run(session) for session in moving}
    wrong = {name: found for name, found in problems.items() if found}

    # Printed by `make conformance`.
    print(  # noqa: T201
        f"{recording} from session {first:,}: {len(recorded):,} sessions over real sockets, "
        f"{len(wrong)} differ"
    )
    assert not wrong
