"""Each backend gives the responses of Burn 0.21 in every session recorded from Burn's tests."""

from __future__ import annotations

import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends import Backend, open_backends
from support.recorded import recordings, sessions
from support.replay import replay

# Recorded with another Burn backend, whose dtypes differ from those of Burn's CPU server.
OTHER_USAGE = "tensor_ndarray.msgpack.xz"


@pytest.fixture(scope="module", params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        (opened,) = open_backends(request.param, 1)
    except UsageError as error:
        pytest.skip(str(error))
    return opened


@pytest.mark.parametrize("recording", recordings())
def test_every_recorded_response_is_reproduced(recording: str, backend: Backend) -> None:
    recorded = sessions(recording)
    problems, compared = {}, 0
    for session in recorded:
        outcome = replay(session, backend, compare_usage=recording != OTHER_USAGE)
        compared += outcome.compared
        if outcome.problems:
            problems[session["name"]] = outcome.problems

    # Printed by `make conformance`.
    print(  # noqa: T201
        f"{backend.name} {recording}: {compared:,} answers of {len(recorded):,} sessions compared, "
        f"{len(problems)} sessions differ"
    )
    assert not problems
    assert compared >= len(recorded)
