"""The arguments of the kernel for the largest elements of windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_server.backends.array.kernels.networks.windows import Windows
from burn_remote_server.backends.cupy.maxima_kernels import (
    MAX_GROUPS,
    MaximaLaunch,
    division_by,
    maxima_launch,
    maxima_source,
)

LARGEST = 2**31 - 1


@given(st.integers(1, LARGEST), st.integers(0, LARGEST))
def test_a_product_and_a_shift_give_the_quotient(divisor: int, number: int) -> None:
    factor, shift = division_by(divisor)
    assert factor < 2**32
    multiple = number // divisor * divisor
    for each in {number, multiple, max(0, multiple - 1), LARGEST}:
        total = (each * factor >> 32) + each
        assert total < 2**32
        assert total >> shift == each // divisor


def launch_of(*sizes: int, kernel: int, planes: int, **limits: int) -> MaximaLaunch:
    """Return the launch for windows whose stride is their number of taps."""
    shape = [kernel] * len(sizes)
    zeros, ones = [0] * len(sizes), [1] * len(sizes)
    return maxima_launch(Windows.of("MaxPool", sizes, shape, shape, zeros, ones), planes, **limits)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 2**40), st.integers(1, LARGEST))
def test_groups_of_planes_stay_within_the_kernels_count(
    height: int, width: int, planes: int, limit: int
) -> None:
    launch = launch_of(height, width, kernel=1, planes=planes, max_count=limit)
    (total,), (group,), _ = launch.values
    each = height * width
    assert total == planes
    assert 1 <= group <= planes
    assert group == 1 or group * each <= limit
    # Either each thread computes one maximum of a group, or the threads loop.
    assert launch.grid[0] * launch.block[0] >= group * each or launch.grid[0] == 2**16
    assert launch.grid[1] == min(math.ceil(planes / group), MAX_GROUPS)


def test_windows_along_one_axis_are_those_of_planes_with_one_row() -> None:
    structure = launch_of(7, kernel=2, planes=3).values[2]
    assert structure["size"].tolist() == [[1, 7]]
    assert structure["taps"].tolist() == [[1, 2]]
    assert structure["outputs"].tolist() == [[1, 3]]


@pytest.mark.parametrize(("kernel", "taps"), [(2, (2, 2)), (3, (3, 3)), (4, (0, 0))])
def test_common_windows_have_a_kernel_of_their_own(kernel: int, taps: tuple[int, int]) -> None:
    launch = launch_of(8, 8, kernel=kernel, planes=1)
    assert launch.taps == taps
    source = maxima_source(np.dtype(np.float32), launch.taps, False)
    assert f"ROWS = {taps[0]}, COLUMNS = {taps[1]}, INDEXED = 0" in source
