"""Large matrix products are divided among threads by their shapes alone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from burn_remote_server.backends.array.kernels import matrix_products
from burn_remote_server.backends.array.kernels.matrix_products import (
    PART_MULTIPLICATIONS,
    Part,
    divided,
    matmul,
    parts_of,
)
from support.missing_threads import no_thread
from support.waiting import PATIENCE_SECONDS


def operands(lhs: Sequence[int], rhs: Sequence[int]) -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    return tuple(random.standard_normal(shape).astype(np.float32) for shape in (lhs, rhs))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "shape", [(500, 70), (70, 500), (33, 33), (7, 90, 40), (2, 90, 40), (3, 4, 5, 600), (1, 999, 1)]
)
@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_parts_cover_each_element_once(shape: tuple[int, ...], most: int) -> None:
    parts = parts_of(shape, PART_MULTIPLICATIONS, most)
    assert len(parts) <= most
    seen = np.zeros(shape, np.int64)
    for part in parts:
        place: list[Any] = [slice(None)] * len(shape)
        place[part.axis] = part.range
        seen[tuple(place)] += 1
    assert np.all(seen == 1) or not parts


def test_a_product_of_less_than_two_parts_is_not_divided() -> None:
    assert parts_of((64, 64), PART_MULTIPLICATIONS // 2048 - 1, 8) == ()
    assert len(parts_of((64, 64), PART_MULTIPLICATIONS // 2048, 8)) == 2


@pytest.mark.parametrize(
    ("lhs", "rhs", "part"),
    [
        ((100, 30), (30, 50), Part(-2, slice(32, 100))),
        ((100, 30), (30, 50), Part(-1, slice(32, 50))),
        ((6, 10, 3), (6, 3, 4), Part(0, slice(2, 6))),
        ((6, 10, 3), (3, 4), Part(0, slice(2, 6))),
        ((10, 3), (6, 3, 4), Part(0, slice(2, 6))),
        ((1, 10, 3), (6, 3, 4), Part(0, slice(2, 6))),
        ((2, 1, 10, 3), (6, 3, 4), Part(0, slice(1, 2))),
        ((2, 1, 100, 3), (6, 3, 4), Part(-2, slice(0, 32))),
    ],
)
def test_the_parts_of_a_product_are_those_of_the_whole(
    lhs: tuple[int, ...], rhs: tuple[int, ...], part: Part
) -> None:
    first, second = operands(lhs, rhs)
    expected = first @ second
    length = expected.shape[part.axis]
    rest = [
        Part(part.axis, slice(start, stop))
        for start, stop in itertools.pairwise((0, part.range.start, part.range.stop, length))
        if start < stop and start != part.range.start
    ]
    found = divided(np.matmul, [part, *rest])(first, second)
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_a_divided_product_equals_numpys(turned: bool) -> None:
    first, second = operands((700, 200), (200, 300))
    if turned:
        first, second = second.T, first.T
    assert np.allclose(matmul(np, first, second), first @ second, atol=1e-4)
    out = np.empty((first.shape[0], second.shape[1]), np.float32)
    assert matmul(np, first, second, out=out) is out
    assert np.allclose(out, first @ second, atol=1e-4)


def test_a_product_does_not_wait_for_threads_that_are_busy() -> None:
    leave = threading.Event()
    pool = matrix_products._pool()
    try:
        for _ in range(matrix_products.cores()):
            pool.submit(leave.wait, PATIENCE_SECONDS)
        first, second = operands((64, 20), (20, 30))
        parts = [Part(-2, slice(0, 32)), Part(-2, slice(32, 64))]
        assert np.allclose(divided(np.matmul, parts)(first, second), first @ second, atol=1e-5)
    finally:
        leave.set()


def test_an_error_in_a_part_is_an_error_of_the_product() -> None:
    def fail(*_: Any, out: Any) -> None:
        if out.shape[0] == 1:
            raise MemoryError

    parts = [Part(-2, slice(0, 32)), Part(-2, slice(32, 33))]
    with pytest.raises(MemoryError):
        divided(fail, parts)(*operands((33, 5), (5, 2)))


def test_a_large_product_has_the_same_bits_while_others_multiply() -> None:
    first, second = operands((512, 300), (300, 512))
    small = operands((64, 300), (300, 128))
    expected = matmul(np, first, second).tobytes()
    done = threading.Event()

    def disturb() -> None:
        while not done.is_set():
            matmul(np, *small)

    with ThreadPoolExecutor(1) as others:
        other = others.submit(disturb)
        try:
            for _ in range(50):
                assert matmul(np, first, second).tobytes() == expected
        finally:
            done.set()
        other.result(PATIENCE_SECONDS)


def test_a_product_is_computed_in_one_thread_if_the_system_has_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lhs, rhs = np.full((64, 8), 2.0), np.full((8, 4), 3.0)
    parts = [Part(-2, slice(first, first + 16)) for first in range(0, 64, 16)]
    out = np.zeros((64, 4))
    multiply = divided(np.matmul, parts, out)
    matrix_products._pool.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "_start_new_thread", no_thread)
        assert (multiply(lhs, rhs) == 48).all()
    out[:] = 7
    assert (divided(np.matmul, parts)(lhs, rhs) == 48).all()
    assert (out == 7).all()  # what could not be started is not computed later
