"""Random programs on a GPU, and across a GPU and a CPU, agree with the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import burn_remote as br
from burn_remote_server.backends import Backend
from differential.program import Mismatch, execute, generated, shrunk
from differential.reusing_server import server
from support.servers import RunningServer

pytestmark = pytest.mark.gpu

# Most of the time is spent on compiling kernels, one for each operation, dtype and layout. Both
# dialects use the same kernels, so the second dialect runs fewer programs, with other seeds.
SEEDS = {"native": range(120), "burn-0.21": range(120, 160)}
BATCH = 20

CASES = [
    (dialect, seeds[first : first + BATCH])
    for dialect, seeds in SEEDS.items()
    for first in range(0, len(seeds), BATCH)
]


@pytest.fixture(scope="module")
def servers(gpu: Backend) -> Iterator[list[RunningServer]]:
    """A server on a GPU, and one on a CPU."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(server("--backend", name)) for name in ("cupy", "numpy")]


@pytest.fixture(scope="module")
def devices(servers: list[RunningServer]) -> Iterator[dict[str, list[br.Device]]]:
    """In each dialect, a GPU and a CPU that tensors move between."""
    with contextlib.ExitStack() as stack:
        yield {
            dialect: [
                stack.enter_context(br.RemoteDevice(one.address, dialect=dialect))
                for one in servers
            ]
            for dialect in SEEDS
        }


@pytest.mark.parametrize(
    ("dialect", "seeds"), CASES, ids=[f"{dialect}-{seeds.start}" for dialect, seeds in CASES]
)
def test_programs_on_a_gpu_agree_with_the_reference(
    devices: dict[str, list[br.Device]], dialect: str, seeds: range
) -> None:
    pair = devices[dialect]
    for seed in seeds:
        try:
            execute(generated(seed, len(pair), subnormals=False), pair)
        except Mismatch as mismatch:
            pytest.fail(f"the program of seed {seed}: {shrunk(mismatch, pair)}")
