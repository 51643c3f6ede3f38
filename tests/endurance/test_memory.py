"""A server under clients that try to take more memory than their limits allow."""

from __future__ import annotations

import pytest

from endurance.memory import (
    ALLOWED,
    ATTACKS,
    MIB,
    attack,
    queued_frames,
    values_of_registered_graphs,
)

# These take 15 to 40 s to fill 128 MiB. `python -m endurance memory` uses any limit.
SLOW = {queued_frames.__name__, values_of_registered_graphs.__name__}
CASES = [(name, 64 if name in SLOW else 128) for name in ATTACKS]


@pytest.mark.parametrize(("name", "limit_mib"), CASES)
def test_resident_memory_stays_near_the_limit_under(name: str, limit_mib: int) -> None:
    outcome = attack(name, limit_mib * MIB)
    assert outcome.grown_bytes <= ALLOWED * outcome.limit_bytes
