"""Random programs on a GPU, and across a GPU and a CPU, agree with the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import burn_remote as br
from burn_remote_server.backends import Backend
from differential.program import Mismatch, execute, generated, shrunk
from differential.reusing_server import server

pytestmark = pytest.mark.gpu

PROGRAMS = 500
BATCH = 50


@pytest.fixture(scope="module", params=["native", "burn-0.21"])
def devices(request: pytest.FixtureRequest, gpu: Backend) -> Iterator[list[br.Device]]:
    """A GPU and a CPU that tensors move between."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server("--backend", name)) for name in ("cupy", "numpy")]
        yield [
            stack.enter_context(br.RemoteDevice(one.address, dialect=request.param))
            for one in servers
        ]


@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_programs_on_a_gpu_agree_with_the_reference(devices: list[br.Device], first: int) -> None:
    for seed in range(first, first + BATCH):
        try:
            execute(generated(seed, len(devices)), devices)
        except Mismatch as mismatch:
            pytest.fail(f"the program of seed {seed}: {shrunk(mismatch, devices)}")
