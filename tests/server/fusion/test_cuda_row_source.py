"""The source of CUDA kernels around reductions."""

from __future__ import annotations

import numpy as np
import pytest

from burn_remote_server.backends.cupy.column_kernels import are_columns_fitting, column_passes
from burn_remote_server.backends.cupy.cuda_expressions import Expression
from burn_remote_server.backends.cupy.row_kernels import are_fitting, row_grid, row_threads
from burn_remote_server.fusion.cuda.column_source import column_epilogue_source
from burn_remote_server.fusion.cuda.kernel_source import KernelStep
from burn_remote_server.fusion.cuda.row_source import row_source

F32 = np.dtype(np.float32)
ADDED = Expression("({0} + {1})", F32)
HALVED = Expression("({0} * {1})", F32, (np.float32(0.5),))
REDUCED = Expression("{0}", F32)


def body(source: str) -> str:
    return source[source.index('extern "C"') :]


def test_a_reduction_reads_only_the_inputs_that_it_needs() -> None:
    steps = [
        KernelStep(REDUCED, (0,), "sum", is_narrow=True),
        KernelStep(HALVED, (2,), None, is_narrow=True),
        KernelStep(ADDED, (1, 3)),
    ]
    source = body(row_source((6, 40), [((6, 40), F32), ((40,), F32)], steps, [4]))
    sums, results = source.split("row_all<RowSum, 32>(v2);")

    assert "in0[i]" in sums
    assert "in1" not in sums.split("{", 1)[1]
    assert "const float v3 = (v2 * numbers.n0);" in results
    assert "in0" not in results
    assert "const float v1 = in1[i % 40u];" in results
    assert "out0[i] = v4;" in results


def test_values_before_a_reduction_are_computed_again_after_it() -> None:
    steps = [
        KernelStep(HALVED, (0,)),
        KernelStep(REDUCED, (1,), "max", is_narrow=True),
        KernelStep(ADDED, (1, 2)),
    ]
    source = body(row_source((6, 40), [((6, 40), F32)], steps, [3]))

    assert source.count("const float v1 = (v0 * numbers.n0);") == 2
    assert "RowMax::of(v2, v1)" in source


def test_a_narrow_result_is_written_once_for_each_row() -> None:
    steps = [
        KernelStep(REDUCED, (0,), "sum", is_narrow=True),
        KernelStep(ADDED, (2, 1), None, is_narrow=True),
    ]
    source = body(row_source((6, 2000), [((6, 2000), F32), ((6, 1), F32)], steps, [3]))

    assert "const float v1 = in1[row];" in source
    assert "if (threadIdx.x == 0) out0[row] = v3;" in source
    assert "c += 256" in source


@pytest.mark.parametrize("columns", [2, 3, 8, 31, 32, 33, 1024, 1025, 65536])
@pytest.mark.parametrize("rows", [1, 5, 64, 1000])
def test_each_row_has_threads_of_one_block(rows: int, columns: int) -> None:
    grid, block = row_grid(rows, columns)

    assert block[0] == row_threads(columns)
    assert block[0] * block[1] in (128, 256)
    assert grid[0] * block[1] >= rows
    assert (grid[0] - 1) * block[1] < rows
    assert columns > 32 or block[0] >= columns


@pytest.mark.parametrize(
    ("shape", "dtype", "is_fitting"),
    [
        ((4, 2), F32, True),
        ((4, 1), F32, False),
        ((4, 65537), F32, False),
        ((0, 5), F32, False),
        ((5,), np.dtype(np.float64), True),
        ((4, 5), np.dtype(np.float16), False),
        ((), F32, False),
    ],
)
def test_rows_of_some_shapes_are_left_to_other_kernels(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], is_fitting: bool
) -> None:
    assert are_fitting(shape, dtype) == is_fitting


def test_the_passes_of_a_sum_of_columns_leave_one_row() -> None:
    for length in (64, 256, 257, 4096, 300_001):
        passes = column_passes((3, length, 70), 1)

        assert [each.rows for each in passes] == [length, *[e.remaining for e in passes[:-1]]]
        assert passes[-1].remaining == 1
        assert all(each.chunk * each.remaining >= each.rows for each in passes)


def test_operations_on_a_sum_of_columns_follow_in_its_kernel() -> None:
    steps = [KernelStep(REDUCED, (0,), "sum"), KernelStep(HALVED, (2,)), KernelStep(ADDED, (1, 3))]
    inputs = [((64, 10), F32), ((1, 10), F32)]
    source = body(column_epilogue_source((1, 10), inputs, steps, [2, 4]))

    assert "const float* __restrict__ source, const float* __restrict__ in1" in source
    assert "const float v2 = total;" in source
    assert "const float v4 = (v1 + v3);" in source
    assert "out0[i] = v2;" in source
    assert "out1[i] = v4;" in source
    assert not are_columns_fitting((64, 10), 1, F32)
