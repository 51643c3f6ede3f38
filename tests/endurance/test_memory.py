"""A server under clients that try to take more memory than their limits allow."""

from __future__ import annotations

import pytest

from endurance.memory import ALLOWED, ATTACKS, MIB, attack


@pytest.mark.parametrize("name", [*ATTACKS])
def test_resident_memory_stays_near_the_limit_under(name: str) -> None:
    outcome = attack(name, 128 * MIB)
    assert outcome.grown_bytes <= ALLOWED * outcome.limit_bytes
