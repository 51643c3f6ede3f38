"""Trimming of the C library's heaps, with a fake process; some tests run a real server."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

import burn_remote as br
from burn_remote_server.access.quota import Pool
from burn_remote_server.command_line import heap_trimming
from burn_remote_server.command_line.heap_trimming import (
    HeapTrimmer,
    keep_freed_memory,
    malloc_trim,
    share_one_heap,
)
from support.servers import UNFORKED, RunningServer, server
from support.waiting import PATIENCE_SECONDS

MIB = 2**20
START = 70 * MIB


class Heap:
    """A process whose heap keeps ``kept`` freed bytes, of which trimming leaves ``pinned``."""

    def __init__(self, limit: int = 128 * MIB) -> None:
        self.pool = Pool(limit)
        self.kept = self.pinned = self.trimmed = 0
        self.has_trimmed = threading.Event()
        self.trimmer = HeapTrimmer([self.pool], self.trim, self.resident)

    def resident(self) -> int:
        return START + self.pool.taken + self.kept

    def trim(self) -> None:
        self.trimmed += 1
        self.kept = self.pinned
        self.has_trimmed.set()


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Heap:
    monkeypatch.setattr(heap_trimming, "PAUSE", 0.0)
    return Heap()


def test_freed_memory_beyond_an_eighth_of_the_limit_is_returned(heap: Heap) -> None:
    heap.kept = 15 * MIB
    assert heap.trimmer.examine() == 0 and heap.trimmed == 0
    heap.kept = 16 * MIB
    assert heap.trimmer.examine() == 0 and heap.trimmed == 1
    assert heap.resident() == START


def test_memory_that_tensors_use_is_not_trimmed(heap: Heap) -> None:
    assert heap.pool.take(100 * MIB)
    heap.trimmer.examine()
    assert heap.trimmed == 0


def test_memory_that_trimming_does_not_return_is_expected_from_then_on(heap: Heap) -> None:
    heap.kept = heap.pinned = 40 * MIB
    for _ in range(3):
        heap.trimmer.examine()
    assert heap.trimmed == 1
    heap.kept += 16 * MIB
    heap.trimmer.examine()
    assert heap.trimmed == 2


@pytest.fixture
def watched(heap: Heap, monkeypatch: pytest.MonkeyPatch) -> Heap:
    """Return a heap with 40 MiB in use, whose memory only ``free`` examines, and no thread."""
    monkeypatch.setattr(heap.trimmer, "_work", lambda: None)
    heap.trimmer.start()
    heap.kept = heap.pinned = 40 * MIB
    return heap


def free(heap: Heap, size: int) -> None:
    """Free tensors, and examine the memory as the trimmer's thread does."""
    assert heap.pool.take(size)
    heap.pool.give_back(size)
    heap.trimmer.examine()


def test_memory_that_was_in_use_while_trimming_is_returned_after_it_was_freed(
    watched: Heap,
) -> None:
    watched.trimmer.examine()
    assert watched.trimmed == 1
    watched.pinned = 0  # free, but resident
    free(watched, 8 * MIB)
    assert watched.trimmed == 1
    free(watched, 8 * MIB)
    assert watched.trimmed == 2
    assert watched.resident() == START


def test_memory_that_is_never_returned_is_trimmed_less_and_less_often(watched: Heap) -> None:
    trims = []
    for place in range(100):
        before = watched.trimmed
        free(watched, 8 * MIB)
        if watched.trimmed > before:
            trims.append(place)
    pauses = [later - earlier for earlier, later in pairwise(trims)]
    assert len(pauses) >= 3
    assert all(later >= 2 * earlier for earlier, later in pairwise(pauses))


def test_memory_that_is_returned_later_is_not_expected_any_more(heap: Heap) -> None:
    heap.kept = heap.pinned = 40 * MIB
    heap.trimmer.examine()
    heap.kept = heap.pinned = 0
    heap.trimmer.examine()
    heap.kept = 16 * MIB
    heap.trimmer.examine()
    assert heap.trimmed == 2


def test_trimming_pauses_in_proportion_to_its_cpu_time_and_less_above_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([100.0, 101.0, 102.0, 102.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    processor = iter([7.0, 8.0])  # trimming takes one second
    monkeypatch.setattr(time, "thread_time", lambda: next(processor))
    heap = Heap()
    heap.kept = 16 * MIB
    assert heap.trimmer.examine() == 0
    heap.kept = 16 * MIB
    assert heap.trimmer.examine() == 99
    heap.kept = 129 * MIB
    assert heap.trimmer.examine() == pytest.approx(99 / 20)
    assert heap.trimmed == 1


def test_a_pool_reports_each_time_enough_bytes_were_returned() -> None:
    pool = Pool(1000)
    reports: queue.SimpleQueue[None] = queue.SimpleQueue()
    pool.on_given_back(100, lambda: reports.put(None))
    assert pool.take(300)
    pool.give_back(60)
    assert reports.empty()
    pool.give_back(60)
    pool.give_back(60)
    assert reports.qsize() == 1
    pool.give_back(80)
    assert reports.qsize() == 2
    pool.give_back(0)
    assert reports.qsize() == 2


def test_memory_is_examined_after_half_the_tolerated_bytes_were_freed(heap: Heap) -> None:
    heap.trimmer.start()
    assert heap.pool.take(8 * MIB)
    heap.kept = 16 * MIB
    heap.pool.give_back(8 * MIB)
    assert heap.has_trimmed.wait(PATIENCE_SECONDS)


def test_memory_is_examined_again_when_the_worker_has_freed_its_tensors(
    heap: Heap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap_trimming, "EXAMINE_AGAIN_SECONDS", 0.001)
    kept = iter([0, 16 * MIB])  # in the first examination and in the next one
    examine = heap.trimmer.examine

    def examined() -> float:
        heap.kept = next(kept, 0)
        return examine()

    monkeypatch.setattr(heap.trimmer, "examine", examined)
    heap.trimmer.start()
    assert heap.pool.take(8 * MIB)
    heap.pool.give_back(8 * MIB)
    assert heap.has_trimmed.wait(PATIENCE_SECONDS)


def test_memory_is_examined_until_the_pause_has_ended(
    heap: Heap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap_trimming, "EXAMINE_AGAIN_SECONDS", 0.001)
    ended = threading.Event()
    pauses = iter([60.0] * 4)

    def examined() -> float:
        pause = next(pauses, 0.0)
        if not pause:
            ended.set()
        return pause

    monkeypatch.setattr(heap.trimmer, "examine", examined)
    heap.trimmer.start()
    assert heap.pool.take(8 * MIB)
    heap.pool.give_back(8 * MIB)
    assert ended.wait(PATIENCE_SECONDS)


@pytest.mark.skipif(malloc_trim() is None, reason="the C library is not glibc")
def test_a_server_that_dropped_small_tensors_has_room_for_large_ones() -> None:
    limit = 128 * MIB
    with server(f"--max-total-bytes={limit}", module=UNFORKED) as running:
        with br.RemoteDevice(running.address) as device:
            assert br.ones((2,), device=device).tolist() == [1, 1]
            base = running.resident_bytes
            small = [br.ones((25 * 1024,), device=device) for _ in range(1000)]
            device.sync()
            kept = small[::50]  # they keep the freed memory between them in the heap
            del small
            device.sync()
            large = [br.ones((2**21,), device=device) for _ in range(13)]
            device.sync()
            assert kept[-1][0].item() == large[-1][0].item() == 1
        assert running.peak_bytes - base <= 1.25 * limit


@pytest.mark.skipif(malloc_trim() is None, reason="the C library is not glibc")
def test_repeated_steps_of_a_graph_map_no_new_pages() -> None:
    @br.compile
    def step(x: br.Tensor) -> br.Tensor:
        products = [x * float(factor) for factor in range(2, 18)]  # 1 MiB each
        for product in reversed(products):
            x = x + product
        return x

    with server(module=UNFORKED) as running, br.RemoteDevice(running.address) as device:
        x = br.ones((512, 512), device=device)
        for _ in range(20):
            result = step(x)
        device.sync()
        before = page_faults(running)
        for _ in range(50):
            result = step(x)
        device.sync()
        assert result.shape == x.shape
        assert page_faults(running) - before < 1_000  # 10,000 with glibc's own thresholds


# Frees 64 MiB in one thread, but for the last block, and allocates 64 MiB in another one.
TWO_THREADS = """
import threading
from burn_remote_server.backends.numpy.memory_limits import resident_bytes
from burn_remote_server.command_line.heap_trimming import keep_freed_memory, share_one_heap

assert share_one_heap() and keep_freed_memory(2**30)
freed = [b"1" * 2**20 for _ in range(64)]
last = b"1" * 2**20
before = resident_bytes()
freed.clear()
kept = []
thread = threading.Thread(target=lambda: kept.extend(b"2" * 2**20 for _ in range(64)))
thread.start()
thread.join()
print((resident_bytes() - before) // 2**20)
"""


@pytest.mark.skipif(malloc_trim() is None, reason="the C library is not glibc")
def test_memory_that_one_thread_freed_is_used_by_another() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TWO_THREADS], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(ran.stdout) < 8  # 64 without the shared heap


# Counts the heaps of the process after three threads have allocated.
HEAPS = """
import ctypes, threading
import numpy as np
from burn_remote_server.custom import custom_operation

@custom_operation("heaps", inputs={"x": "any"}, shapes=lambda x: x)
def heaps(xp, x):
    barrier, kept = threading.Barrier(3), []
    def allocate():
        kept.append(b"1" * 2**20)
        barrier.wait()
    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(b"FILE", b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return np.full(x.shape, open("FILE").read().count("<heap nr="), x.dtype)
"""


@pytest.mark.skipif(malloc_trim() is None, reason="the C library is not glibc")
def test_the_threads_of_a_server_share_one_heap(tmp_path: Path) -> None:
    (tmp_path / "heaps.py").write_text(HEAPS.replace("FILE", str(tmp_path / "heaps.xml")))
    search = ":".join([*sys.path, str(tmp_path)])
    with (
        server("--custom-operations", "heaps", PYTHONPATH=search) as running,
        br.RemoteDevice(running.address) as device,
    ):
        x = br.zeros((1,), device=device)
        assert br.custom("heaps", x, outputs=x.handle.spec).tolist() == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1"),
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
    ],
)
def test_thresholds_of_the_environment_are_kept(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory(64 * MIB)


@pytest.mark.parametrize(
    ("name", "value"),
    [("GLIBC_TUNABLES", "glibc.malloc.arena_max=4"), ("MALLOC_ARENA_MAX", "4")],
)
def test_the_number_of_heaps_of_the_environment_is_kept(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert not share_one_heap()


def page_faults(running: RunningServer) -> int:
    """Return the page faults of a server since its start, without those that read a disk."""
    stat = Path(f"/proc/{running.process.pid}/stat").read_text("ascii")
    return int(stat.rsplit(")", 1)[1].split()[7])


def test_the_thread_goes_on_after_it_had_no_memory(heap: Heap) -> None:
    has_failed = threading.Event()

    def resident() -> int:
        if not has_failed.is_set():
            has_failed.set()
            raise MemoryError
        return heap.resident()

    trimmer = heap.trimmer
    trimmer._resident = resident  # type: ignore[misc]
    heap.kept = 16 * MIB
    trimmer.start()
    heap.pool.add(16 * MIB)
    heap.pool.give_back(16 * MIB)
    assert has_failed.wait(PATIENCE_SECONDS)
    assert heap.has_trimmed.wait(PATIENCE_SECONDS)
