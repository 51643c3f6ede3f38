"""Matrix products run on one BLAS thread; the BLAS decides for very small ones."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import ArraySpec
from burn_remote_server.backends.array.kernels import blas_threads
from burn_remote_server.backends.array.kernels.linear_algebra import FloatLinearAlgebra
from support.interrupts import InterruptAfterCall, Walk


class Library:
    """A BLAS that records its number of threads at each product."""

    num_threads = 8

    def __init__(self) -> None:
        self.seen: list[int] = []

    def set_num_threads(self, count: int) -> None:
        self.num_threads = count

    def matmul(self, lhs: Any, rhs: Any, out: Any = None) -> Any:
        self.seen.append(self.num_threads)
        return np.matmul(lhs, rhs, out=out)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    limit = blas_threads.Limit(made.set_num_threads, 8)
    monkeypatch.setattr(blas_threads, "limits", lambda: (limit,))
    return made


def test_a_process_without_the_threads_of_its_blas_starts_them(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas_threads, "_native_threads", lambda: 0)
    library.num_threads = 0
    blas_threads.start_threads()
    assert library.num_threads == 8


def test_a_process_may_start_too_few_threads_for_its_blas(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas_threads, "_native_threads", lambda: 5)
    library.num_threads = 0
    alive = threading.active_count()
    start, allowed = threading._start_new_thread, iter([True])  # type: ignore[attr-defined]

    def start_one(*arguments: Any) -> Any:
        if not next(allowed, False):
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    monkeypatch.setattr(threading, "_start_new_thread", start_one)
    with pytest.raises(UsageError, match="the 2 threads that multiply matrices"):
        blas_threads.start_threads()
    assert library.num_threads == 0, "the library was asked for threads"
    assert threading.active_count() == alive


def test_a_process_whose_blas_has_its_threads_starts_none(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas_threads, "_native_threads", lambda: 7)
    library.num_threads = 0
    blas_threads.start_threads()
    assert library.num_threads == 0


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "threads"),
    [
        (16, 16, 16, 8),
        (64, 784, 128, 1),
        (784, 64, 128, 1),
        (255, 255, 255, 1),
        (1, 10_000, 1, 8),
        (1, 20_000, 1, 1),  # a sum that OpenBLAS would divide
    ],
)
def test_the_size_of_a_product_decides_its_number_of_threads(
    rows: int, inner: int, columns: int, threads: int, library: Library
) -> None:
    lhs = np.ones((3, rows, inner), np.float32)
    rhs = np.ones((inner, columns), np.float32)
    out = TensorSpec((3, rows, columns), F32)
    run = FloatLinearAlgebra(library).prepare_matmul(ArraySpec(lhs.shape, lhs.dtype), out, {})
    assert np.array_equal(run(lhs, rhs), np.full(out.shape, inner))
    assert {*library.seen} == {threads}
    assert library.num_threads == 8


def test_a_failed_product_restores_the_number_of_threads(library: Library) -> None:
    run = blas_threads.on_one_thread(library.matmul)
    with pytest.raises(ValueError, match="mismatch"):
        run(np.ones((2, 3)), np.ones((2, 3)))
    assert library.num_threads == 8


def test_a_single_threaded_blas_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "limits", lambda: ())
    assert blas_threads.on_one_thread(np.matmul) is np.matmul


def test_the_number_of_threads_is_restored_after_the_last_of_products_at_a_time(
    library: Library,
) -> None:
    seen = []

    def inner() -> None:
        seen.append(library.num_threads)

    def outer() -> None:
        blas_threads.on_one_thread(inner)()
        seen.append(library.num_threads)

    blas_threads.on_one_thread(outer)()
    assert seen == [1, 1]
    assert library.num_threads == 8


def test_ctrl_c_at_any_instruction_leaves_the_number_of_threads(library: Library) -> None:
    run = blas_threads.on_one_thread(lambda: None)
    codes = frozenset({run.__code__, blas_threads._set_threads.__code__})
    walk = Walk()
    for place in walk:
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            run()
        assert library.num_threads == 8, interrupt.place
    walk.check(run, blas_threads._set_threads)


def test_each_thread_restores_its_own_number_if_the_library_has_one_per_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenBLAS with OpenMP has one per thread. Another thread's product may run longer."""
    numbers = threading.local()

    def set_threads(count: int) -> None:
        numbers.own = count

    limit = blas_threads.Limit(set_threads, 8, is_per_thread=True)
    monkeypatch.setattr(blas_threads, "limits", lambda: (limit,))
    seen = []

    def short() -> None:
        seen.append(numbers.own)

    def short_product() -> None:
        blas_threads.on_one_thread(short)()
        seen.append(numbers.own)

    with ThreadPoolExecutor(1) as other:
        blas_threads.on_one_thread(lambda: other.submit(short_product).result())()
    assert seen == [1, 8]
    assert numbers.own == 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_during_a_product_restores_the_number_of_threads(
    library: Library,
) -> None:
    def fork_and_multiply() -> int:
        with blas_threads._lock:  # as another thread may hold it
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(5)
                blas_threads.on_one_thread(lambda: None)()
            finally:
                os._exit(library.num_threads)
        return child

    child = blas_threads.on_one_thread(fork_and_multiply)()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8


@pytest.mark.skipif(not blas_threads.limits(), reason="NumPy's BLAS has one thread")
def test_products_of_all_sessions_run_on_one_thread() -> None:
    """threadpoolctl sets the threads of OpenBLAS only for the first thread that asks."""
    libraries = threadpoolctl.ThreadpoolController().select(user_api="blas")
    run = blas_threads.on_one_thread(lambda: [each["num_threads"] for each in libraries.info()])
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        seen = first.submit(run).result() + second.submit(run).result()
    assert {*seen} == {1}
