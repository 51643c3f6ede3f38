"""Kernels of searches refuse sizes that are not those of the elements."""

from __future__ import annotations

import numpy as np
import pytest

from burn_remote_protocol.errors import UsageError
from support.kernels import compute


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_nonzero_elements_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"there are 2 elements.*the size {count}"):
        compute("Search.Nonzero", np.array([0, 1, 0, 5]), count=count)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_distinct_elements_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"there are 2 distinct elements, but the size {count}"):
        compute("Search.Unique", np.array([5, 1, 5]), np.array([1, 0, 2]), count=count)


@pytest.mark.parametrize("order", [[0, 1, 3], [-1, 0, 1], [2**62, 0, 1]])
def test_an_order_with_an_index_out_of_range_is_refused(order: list[int]) -> None:
    with pytest.raises(UsageError, match="index out of range"):
        compute("Search.Unique", np.array([5, 1, 5]), np.array(order), count=2)


def test_an_order_that_is_no_permutation_crashes_nothing() -> None:
    indices, inverse, counts = compute(
        "Search.Unique", np.array([5, 1, 5]), np.array([0, 0, 0]), count=1
    )
    assert inverse.tolist() == [0, 0, 0]
    assert indices.tolist() == [0]
    assert counts.tolist() == [3]
