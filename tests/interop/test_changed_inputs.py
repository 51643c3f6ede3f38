"""Recorded sessions with other numbers in their inputs give the results of the real server.

The recordings have one set of inputs for each operation. Here the same operations run on inputs
with ties, signed zeros and other signs, on a real Burn 0.21 server and on this project's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.operations.encoding import decode_tensor_data
from support.burn_programs import burn_server
from support.recorded import recordings, sessions
from support.replay import RANDOM, difference, elements
from support.servers import RunningServer, server
from support.socket_replay import Sockets

pytestmark = pytest.mark.interop

EACH = 20  # every twentieth session: all take minutes
# A real server of Burn 0.21 stops answering after some 50 sessions.
SESSIONS_OF_A_SERVER = 20
ORDINARY = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, 2.5, -2.5, 3.0, -3.0, 7.0]
FLOATS = ("F64", "F32", "Flex32", "F16", "BF16")


def with_ties(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Replace two fifths of the elements by a few numbers, so that many are equal."""
    chosen = random.random(values.shape) < 0.4
    return np.where(chosen, random.choice(ORDINARY, values.shape), values)


def shuffled(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Reverse the signs and draw another order."""
    return -random.permutation(values.reshape(-1)).reshape(values.shape)


CHANGES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "ties": with_ties,
    "other signs and order": shuffled,
}


class Step(NamedTuple):
    """A frame to send, or the identity of a response to await."""

    frame: bytes
    awaited: str = ""


def is_comparable(session: dict[str, Any]) -> bool:
    """Whether a session has one server, draws no random numbers, and takes any number.

    ``one_hot`` takes floats as indices, and the real server never responds to invalid ones.
    """
    frames = session["frames"]
    has_one_server = all(frame.get("server", 0) == 0 for frame in frames)
    is_random = any(name.encode() in frame["payload"] for frame in frames for name in RANDOM)
    return has_one_server and not is_random and "one_hot" not in session["name"]


def changed(session: dict[str, Any], change: str, seed: int) -> Iterator[Step]:
    """Yield the client's frames with changed inputs, and the responses that it awaited."""
    random = np.random.default_rng(seed)
    for frame in session["frames"]:
        if frame["route"] == "/data":
            continue
        message = msgpack.unpackb(frame["payload"], strict_map_key=False)
        if frame["dir"] == "s2c":
            yield Step(b"", str(message[1]))
        elif "Compute" in message:
            task = message["Compute"][0]
            if "RegisterTensor" in task and task["RegisterTensor"][1][2] in FLOATS:
                wire = task["RegisterTensor"][1]
                data = decode_tensor_data(wire)
                values = elements(data)
                wide = CHANGES[change](values.astype(np.float64), random)
                wire[0] = wide.astype(values.dtype).tobytes()
            yield Step(msgpack.packb(message))


def responses(steps: list[Step], address: str) -> dict[str, Any]:
    """Play the steps on a server; return its responses by the identities of the requests."""
    found: dict[str, Any] = {}
    sockets = Sockets(address)
    try:
        for step in steps:
            if step.awaited:
                found[step.awaited] = sockets.answer(step.awaited)
            else:
                sockets.requests.send(step.frame)
    finally:
        sockets.close()
    return found


@pytest.fixture(scope="module")
def ours() -> Iterator[RunningServer]:
    with server() as running:
        yield running


def real_responses(sessions: list[list[Step]]) -> Iterator[dict[str, Any]]:
    """Yield the responses of real servers to each session."""
    for first in range(0, len(sessions), SESSIONS_OF_A_SERVER):
        with burn_server() as address:
            for steps in sessions[first : first + SESSIONS_OF_A_SERVER]:
                yield responses(steps, address)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("recording", recordings())
def test_operations_on_other_inputs_give_the_results_of_the_real_server(
    recording: str, change: str, ours: RunningServer
) -> None:
    chosen = [session for session in sessions(recording) if is_comparable(session)][::EACH]
    played = [[*changed(session, change, seed)] for seed, session in enumerate(chosen)]
    compared, problems = 0, []
    for session, steps, right in zip(chosen, played, real_responses(played), strict=True):
        seen = responses(steps, ours.address)
        for identity, response in right.items():
            if "Ok" in response.get("ReadTensor", ()):
                compared += 1
                found = decode_tensor_data(seen[identity]["ReadTensor"]["Ok"])
                if problem := difference(response["ReadTensor"], found, False):
                    problems.append(f"{session['name']}: {problem}")

    assert not problems
    assert compared >= len(chosen)
