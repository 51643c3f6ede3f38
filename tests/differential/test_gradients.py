"""The gradients of random programs agree with finite differences, in first and second order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import burn_remote as br
from differential.gradients import OPERATIONS, compare, generated

PROGRAMS = 150
BATCH = 50


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_gradients_of_random_programs_agree(first: int, device: br.Device) -> None:
    found = [compare(generated(seed, device), device) for seed in range(first, first + BATCH)]
    # Few programs are at a kink.
    assert sum(one.first for one in found) > 0.8 * BATCH
    assert sum(one.second for one in found) > 0.6 * BATCH


def test_the_programs_have_every_operation(device: br.Device) -> None:
    names = {step.name for seed in range(PROGRAMS) for step in generated(seed, device).steps}
    assert names == {*OPERATIONS}
