"""Collectives of NCCL on simulated GPUs: the results, and how many calls of CUDA they take.

tests/gpu/test_nccl.py tests them on GPUs.
"""

from __future__ import annotations

import gc
import importlib
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, Reduction
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.tensors import TensorSpec
from support import simulated_cuda
from support.waiting import PATIENCE_SECONDS, wait_until

MODULES = [f"burn_remote_server.backends.cupy.{name}" for name in ("device", "communicator")]


@pytest.fixture
def modules() -> Iterator[list[Any]]:
    """The modules of GPUs and communicators, on simulated CUDA."""
    names = (*MODULES, "cupy", "cupy.cuda", "cupy.cuda.nccl")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    simulated_cuda.install()
    try:
        yield [importlib.import_module(name) for name in MODULES]
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


class Pair:
    """Two GPUs of this process, with a communicator."""

    def __init__(self, modules: Sequence[Any], identifier: bytes) -> None:
        device, communicator = modules
        self._shared = device.Shared
        self.gpus = [device.Gpu(index) for index in range(2)]
        self.communicators = [
            communicator.NcclCommunicator(gpu, identifier, 2, rank)
            for rank, gpu in enumerate(self.gpus)
        ]
        self.streams = [gpu.take_stream() for gpu in self.gpus]

    def start(self, call: CollectiveCall, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Start a collective on both; return the members' pending outputs."""
        made = []
        for rank, (gpu, communicator) in enumerate(zip(self.gpus, self.communicators, strict=True)):
            outputs: queue.Queue[Any] = queue.Queue()
            ready = gpu.recorded(self.streams[rank])
            shared = [self._shared(array, ready) for array in arrays[rank]]
            communicator.start(call, shared, call.output_specs(2, rank))
            communicator.watch(outputs.put)()
            made.append(outputs)
        return made

    def all_reduced(self, call: CollectiveCall, arrays: Sequence[Sequence[Any]]) -> list[Any]:
        """Reduce; return the members' outputs."""
        return [one.get(timeout=PATIENCE_SECONDS)[0] for one in self.start(call, arrays)]


def all_reduce(dtype: DType, *sizes: int, by: Reduction = Reduction.SUM) -> CollectiveCall:
    specs = tuple(TensorSpec((size,), dtype) for size in sizes)
    return CollectiveCall(CollectiveKind.ALL_REDUCE, specs, by)


# Other reductions change the outputs afterwards, for which the simulation does not wait.
@pytest.mark.parametrize("by", [Reduction.SUM, Reduction.PRODUCT])
def test_both_members_get_the_reduction(modules: list[Any], by: Reduction) -> None:
    pair = Pair(modules, str(by).encode())
    given = [[np.arange(5, dtype=np.float32) * n, np.full(2, n, np.float32)] for n in (1, -2)]
    combine = np.add if by is Reduction.SUM else np.multiply
    for outputs in pair.all_reduced(all_reduce(F32, 5, 2, by=by), given):
        for place, shared in enumerate(outputs):
            np.testing.assert_array_equal(shared.array, combine(given[0][place], given[1][place]))


def test_a_collective_of_one_tensor_makes_four_calls_that_release_the_interpreter_lock(
    modules: list[Any],
) -> None:
    pair = Pair(modules, b"calls")
    given = [[np.ones(3, np.float32)], [np.ones(3, np.float32)]]
    for _ in range(4):  # creates the events that are reused
        pair.all_reduced(all_reduce(F32, 3), given)
    wait_until(lambda: all(gpu._idle_events for gpu in pair.gpus))
    simulated_cuda.CALLS.clear()
    pair.all_reduced(all_reduce(F32, 3), given)
    seen = {name: count for name, count in simulated_cuda.CALLS.items() if name != "eventQuery"}
    # For each member: one event makes the inputs ready, and one the outputs.
    assert seen == {"eventRecord": 4, "streamWaitEvent": 2, "ncclAllReduce": 2}


def test_the_tensors_of_a_collective_are_one_group_of_calls_with_one_event(
    modules: list[Any],
) -> None:
    pair = Pair(modules, b"several")
    given = [[np.ones(n, np.float32) for n in (1, 2, 3)] for _ in range(2)]
    simulated_cuda.CALLS.clear()
    made = pair.all_reduced(all_reduce(F32, 1, 2, 3), given)
    calls = simulated_cuda.CALLS
    assert (calls["ncclGroupStart"], calls["ncclGroupEnd"], calls["ncclAllReduce"]) == (2, 2, 6)
    assert calls["eventRecord"] == 4
    for outputs in made:
        assert len({id(shared.ready) for shared in outputs}) == 1


def test_a_collective_queries_no_event_in_the_thread_that_starts_it(
    modules: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(modules, b"queries")
    threads: list[int] = []
    query = simulated_cuda.query

    def noted(pointer: int) -> int:
        threads.append(threading.get_ident())
        return query(pointer)

    monkeypatch.setattr(simulated_cuda, "query", noted)
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "eventQuery", noted)
    pair.all_reduced(all_reduce(F32, 3), [[np.ones(3, np.float32)], [np.ones(3, np.float32)]])
    assert threading.get_ident() not in threads


def test_a_stream_waits_for_inputs_that_are_not_ready(modules: list[Any]) -> None:
    pair = Pair(modules, b"waits")
    values = [[np.ones(3, np.float32)], [np.ones(3, np.float32)]]
    for stream in pair.streams:
        stream.last = simulated_cuda.NEVER
    simulated_cuda.CALLS.clear()
    pair.start(all_reduce(F32, 3), values)
    assert simulated_cuda.CALLS["streamWaitEvent"] == 2


def test_an_event_is_not_reused_while_an_output_refers_to_it(modules: list[Any]) -> None:
    pair = Pair(modules, b"kept")
    given = [[np.ones(3, np.float32)], [np.ones(3, np.float32)]]
    kept = [pair.all_reduced(all_reduce(F32, 3), given) for _ in range(5)]
    events = [shared.ready.ptr for made in kept for outputs in made for shared in outputs]
    assert len({*events}) == len(events)


def test_an_event_that_the_garbage_collector_finds_in_a_cycle_is_reused_intact(
    modules: list[Any],
) -> None:
    gpu = modules[0].Gpu(0)
    stream = gpu.take_stream()
    for _ in range(20):
        cycle: list[Any] = [gpu.recorded(stream)]
        cycle.append(cycle)
        del cycle
        gc.collect()
    used = [gpu.recorded(stream) for _ in range(20)]
    assert not any(one._event.is_destroyed for one in used)


def test_idle_events_beyond_the_bound_are_destroyed(
    modules: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules[0], "MAX_IDLE_EVENTS", 3)
    gpu = modules[0].Gpu(0)
    stream = gpu.take_stream()
    used = [gpu.recorded(stream) for _ in range(10)]
    pointers = {one.ptr for one in used}
    del used
    gpu.release_finished()
    gc.collect()
    assert len(pointers & {*simulated_cuda.Event._events}) == 3
