"""A server that dies inside a graph or a fused block, and cuts inside definitions of graphs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

import burn_remote as br
from endurance.processes import TESTS
from support.faults import faulty_proxy
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS

SIZE = 2_000_000  # several blocks


def stepped(x: br.Tensor) -> br.Tensor:
    a = (x * 2.0 + 1.0) * x - 3.0
    b = (a * x + x) * 0.5 - x
    return ((a - b) * (b + x) - a).tanh()


def computed(function: Callable[[br.Tensor], br.Tensor], device: br.Device) -> np.ndarray:
    x = device.tensor(np.linspace(-1, 0, SIZE, dtype=np.float32))
    for _ in range(8):
        x = function(x)
        device.sync()
    return x.numpy()


# The values of ``KILLED_INSIDE`` and ``KILLED_AT`` (see ``support/killing_server.py``), and whether
# the function is compiled. Operations on such large tensors form no automatic graph.
PLACES = {
    "first graph": ("graph", "1", True),
    "second graph": ("graph", "2", True),
    "first block of a fused graph": ("block", "2", True),
    "later block of a fused graph": ("block", "30", True),
    "first block of a fused window": ("block", "2", False),
    "later block of a fused window": ("block", "30", False),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_server_that_dies_inside_a_program_loses_the_session_and_a_new_one_computes(
    place: str,
) -> None:
    inside, at, is_compiled = PLACES[place]
    function = br.compile(stepped) if is_compiled else stepped
    fusion = "--fusion" if inside == "block" else "--no-fusion"
    flags = (fusion, "--no-compiled-kernels", "--inline-cost-limit", "0")
    variables = {
        "KILLED_INSIDE": inside,
        "KILLED_AT": at,
        "PYTHONPATH": str(TESTS),
    }
    with server(*flags, module="support.killing_server", **variables) as dying:
        device = br.RemoteDevice(dying.address)
        with pytest.raises(br.ConnectionLost):
            computed(function, device)
        assert dying.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        with pytest.raises(br.ConnectionLost):
            device.tensor([1.0]).numpy()
        device.close()
    with (
        server(*flags) as running,
        br.RemoteDevice(running.address) as device,
        br.LocalDevice() as local,
    ):
        np.testing.assert_array_equal(computed(function, device), computed(stepped, local))


def test_a_cut_anywhere_in_a_definition_of_a_graph_changes_nothing(
    first_server: RunningServer,
) -> None:
    def defined(x: br.Tensor) -> br.Tensor:
        for step in range(150):
            x = x * (step % 7 + 1.0) - x.sum() + (x if step % 2 else 1.0)
        return x / x.abs().max()

    def run(cut_at: int | None) -> tuple[np.ndarray, int, int]:
        carried = 0
        cuts = iter([cut_at])

        def count(data: bytes, goes_up: bool) -> bytes:
            nonlocal carried
            carried += len(data)
            return data

        with (
            faulty_proxy(first_server.port, lambda: next(cuts, None), change=count) as proxy,
            br.RemoteDevice(proxy.address) as device,
        ):
            x = device.tensor(np.arange(4, dtype=np.float32))
            device.sync()
            before = carried
            found = br.compile(defined)(x).numpy()
            assert proxy.cuts == (cut_at is not None)
        return found, before, carried

    expected, first, last = run(None)
    assert last - first > 3_000  # the definition is most of it
    rng = Random(1)
    for _ in range(12):
        found, *_ = run(rng.randrange(first + 100, last - 200))
        np.testing.assert_array_equal(found, expected)
