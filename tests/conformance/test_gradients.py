"""Our gradients are those that real Burn 0.21 computed and read in its own autodiff tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

import burn_remote as br
from support.recorded import sessions
from support.recorded_gradients import compare_gradients

# Recording -> the least number of gradients that agree, and the number of all that Burn read.
EXPECTED: Final = {
    "autodiff.msgpack.xz": (601, 614),
    "autodiff_f16.msgpack.xz": (611, 623),
}


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


@pytest.mark.parametrize("recording", EXPECTED)
def test_recorded_gradients_are_reproduced(recording: str, device: br.Device) -> None:
    agreeing = read = 0
    differing = []
    for session in sessions(recording):
        found = compare_gradients(session["frames"], device)
        agreeing += found.agreeing
        read += found.read
        if found.agreeing < found.read:
            name = session["name"].split("::", 2)[-1]
            differing.append(f"{name}: {found.agreeing} of {found.read} {found.refusal or ''}")
    # Printed by `make conformance`.
    print(f"{recording}: {agreeing} of {read} gradients agree")  # noqa: T201
    print("\n".join(differing))  # noqa: T201
    assert (agreeing, read) >= EXPECTED[recording]
    assert read == EXPECTED[recording][1]
