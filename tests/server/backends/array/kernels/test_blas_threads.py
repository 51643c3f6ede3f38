"""Matrix products of medium size run on one BLAS thread, all others on the default number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import ArraySpec
from burn_remote_server.backends.array.kernels import blas_threads
from burn_remote_server.backends.array.kernels.linear_algebra import FloatLinearAlgebra


class Library:
    """A BLAS that records its number of threads at each product."""

    num_threads = 8

    def __init__(self) -> None:
        self.seen: list[int] = []

    def set_num_threads(self, count: int) -> None:
        self.num_threads = count

    def matmul(self, lhs: Any, rhs: Any) -> Any:
        self.seen.append(self.num_threads)
        return np.matmul(lhs, rhs)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(blas_threads, "_libraries", lambda: ((made, 8),))
    return made


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "threads"),
    [(16, 16, 16, 8), (64, 784, 128, 1), (784, 64, 128, 1), (256, 256, 256, 8)],
)
def test_the_size_of_a_product_decides_its_number_of_threads(
    rows: int, inner: int, columns: int, threads: int, library: Library
) -> None:
    lhs = np.ones((3, rows, inner), np.float32)
    rhs = np.ones((inner, columns), np.float32)
    out = TensorSpec((3, rows, columns), F32)
    run = FloatLinearAlgebra(library).prepare_matmul(ArraySpec(lhs.shape, lhs.dtype), out, {})
    assert np.array_equal(run(lhs, rhs), np.full(out.shape, inner))
    assert library.seen == [threads]
    assert library.num_threads == 8


def test_a_failed_product_restores_the_number_of_threads(library: Library) -> None:
    run = blas_threads.on_one_thread(library.matmul)
    with pytest.raises(ValueError, match="mismatch"):
        run(np.ones((2, 3)), np.ones((2, 3)))
    assert library.num_threads == 8


def test_a_single_threaded_blas_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "_libraries", lambda: ())
    assert blas_threads.on_one_thread(np.matmul) is np.matmul
