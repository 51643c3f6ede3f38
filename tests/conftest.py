"""Settings of all tests: no test fails because the machine is slow."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Keep what exists now out of garbage collections: some tests collect thousands of times."""
    gc.collect()
    gc.freeze()
