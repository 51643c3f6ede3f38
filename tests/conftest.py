"""Settings of all tests: no test fails because the machine is slow."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After each file, freeze the objects that outlive its tests: reports, caches, strategies."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        freeze()
        free_gpu_memory()
    return result


def freeze() -> None:
    """Keep what exists now out of garbage collections: some tests collect hundreds of times."""
    gc.collect()
    gc.freeze()


def free_gpu_memory() -> None:
    """Return the GPU memory that CuPy caches: test processes and servers share one GPU."""
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()


@pytest.fixture
def allocations() -> Iterator[Any]:
    """The module whose ``set_nomemory`` makes allocations fail; skip without it.

    No garbage is collected meanwhile, because the callbacks of a collection would fail.
    """
    module = pytest.importorskip("_testcapi")
    gc.disable()
    try:
        yield module
    finally:
        gc.enable()
