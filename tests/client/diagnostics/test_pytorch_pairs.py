"""Results that PyTorch returns as a pair of values and indices."""

from __future__ import annotations

import _thread
import collections
import operator
import queue
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br

Call = Callable[[Any], object]

# The package, without the type checker's knowledge of its names and arguments.
ANY: Any = br


@pytest.fixture(scope="module")
def x() -> Iterator[Any]:
    with br.LocalDevice() as device:
        yield br.tensor(np.arange(6.0).reshape(2, 3), device=device)


def _unpack_max(x: Any) -> object:
    values, indices = x.max(1)
    return values, indices


def _unpack_sort(x: Any) -> object:
    values, indices = x.sort(descending=True)
    return values, indices


def _unpack_median(x: Any) -> object:
    values, indices = ANY.median(x, 1)
    return values, indices


def _unpack_over_several_lines(x: Any) -> object:
    values, indices = (
        x.abs()
        .min(
            1,
        )
    )  # fmt: skip
    return values, indices


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (_unpack_max, "max"),
        (_unpack_sort, "sort"),
        (_unpack_median, "median"),
        (_unpack_over_several_lines, "min"),
        (lambda x: x.max(1)[1], "max"),
        (lambda x: ANY.min(x, 1)[0], "min"),
        (lambda x: x.cummax(0)[1], "cummax"),
    ],
)
def test_taking_rows_apart_as_a_pair_of_pytorch_warns(x: Any, call: Call, name: str) -> None:
    with pytest.warns(RuntimeWarning, match=rf"{name}\(…\) returns values and indices in PyTorch"):
        call(x)


@pytest.mark.parametrize("shape", [(3, 2), (2,)])
def test_unpacking_another_number_of_rows_as_a_pair_of_pytorch_is_refused(
    device: br.Device, shape: tuple[int, ...]
) -> None:
    with pytest.raises(br.ShapeMismatch, match=r"max\(…\) .*x\.max_with_indices\(axis\) for both"):
        _values, _indices = br.ones(shape, device=device).max(len(shape) - 1)


def _unpack_with_axis(x: Any) -> None:
    low, high = x.max(axis=1)
    assert (low.item(), high.item()) == (2.0, 5.0)


def _unpack_what_follows_the_call(x: Any) -> None:
    low, high = x.max(1) * 2
    assert (low.item(), high.item()) == (4.0, 10.0)


def _unpack_three(x: Any) -> None:
    a, b, c = x.max(0)
    assert (a.item(), b.item(), c.item()) == (3.0, 4.0, 5.0)


@pytest.mark.parametrize(
    "call",
    [
        _unpack_with_axis,
        _unpack_what_follows_the_call,
        _unpack_three,
        lambda x: x.max(axis=1)[1],
        lambda x: x.sort(0)[0],
        lambda x: x.max(1)[:1],
        lambda x: dict([x.max(1)]),  # iterated by C code
        lambda x: operator.getitem(x.max(1), 1),
    ],
)
def test_calls_with_one_meaning_do_not_warn(x: Any, call: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(x)


def test_a_thread_may_consist_of_the_selection_of_a_row_alone(x: Any) -> None:
    made: queue.SimpleQueue[br.Tensor] = queue.SimpleQueue()
    # No Python code calls the method: ``map`` and ``deque`` are C code.
    _thread.start_new_thread(collections.deque, (map(made.put, map(x.__getitem__, [1])),))
    assert made.get(timeout=30).tolist() == [3.0, 4.0, 5.0]
