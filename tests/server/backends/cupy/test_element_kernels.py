"""Where the kernels of single element-wise operations read their operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BOOL, F32
from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.cupy.cuda_expressions import expression_of
from burn_remote_server.backends.cupy.element_kernels import element_source, placement
from support.kernels import signature


@st.composite
def broadcasts(draw: Any) -> tuple[Shape, list[Shape]]:
    """Draw the shape of a result, and two that are broadcast to it."""
    result = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    shapes = []
    for _ in range(2):
        kept = draw(st.integers(0, len(result)))
        own = [length if draw(st.booleans()) else 1 for length in result[len(result) - kept :]]
        shapes.append(tuple(own))
    return result, shapes


@given(broadcasts())
def test_an_element_is_read_where_broadcasting_puts_it(shapes: tuple[Shape, list[Shape]]) -> None:
    result, operands = shapes
    placed = placement(operands, result)
    if placed is None:
        return
    for operand, place in zip(operands, placed.places, strict=True):
        expected = np.broadcast_to(np.arange(math.prod(operand)).reshape(operand), result).ravel()
        python = place.replace("/", "//")
        places = [eval(python, {"i": i, "inner": placed.inner}) for i in range(expected.size)]
        assert places == [*expected]


@pytest.mark.parametrize(
    ("shapes", "result", "expected"),
    [
        ([(3, 4), (3, 4)], (3, 4), (("i", "i"), 1)),
        ([(3, 4), ()], (3, 4), (("i", "0"), 1)),
        ([(3, 4), (1, 4)], (3, 4), (("i", "i % inner"), 4)),
        ([(3, 4), (3, 1)], (3, 4), (("i", "i / inner"), 4)),
        ([(1, 4), (3, 1)], (3, 4), (("i % inner", "i / inner"), 4)),
        ([(2, 3, 4), (4,)], (2, 3, 4), (("i", "i % inner"), 4)),
        ([(1, 1), (1, 1)], (1, 1), (("i", "i"), 1)),
    ],
)
def test_common_broadcasts_have_a_kernel(shapes: Any, result: Any, expected: Any) -> None:
    assert placement(shapes, result) == expected


@pytest.mark.parametrize(
    ("shapes", "result"),
    [
        ([(2, 3, 4), (2, 1, 4)], (2, 3, 4)),
        ([(2, 3, 4), (1, 3, 1)], (2, 3, 4)),
        ([(3, 4), (3, 4)], (0, 4)),
        ([(2, 3, 4), (4,), (3, 4)], (2, 3, 4)),
        ([(2**16, 2**16)], (2**16, 2**16)),
    ],
)
def test_other_broadcasts_and_sizes_are_left_to_cupy(shapes: Any, result: Any) -> None:
    assert placement(shapes, result) is None


def test_operands_precede_the_numbers_of_an_expression() -> None:
    spec = TensorSpec((2, 3), F32)
    fill = expression_of(signature("Base.MaskFill", spec, TensorSpec((2, 3), BOOL), value=0.5))
    assert fill is not None
    source = element_source(fill, [np.dtype(np.float32), np.dtype(np.bool_)], ["i", "i % inner"])

    assert "struct Numbers { float n0; };" in source
    assert "const float v0 = in0[i]; const bool v1 = in1[i % inner];" in source
    assert "out[i] = (v1 ? numbers.n0 : v0);" in source
    assert "Numbers numbers, const unsigned int size, const unsigned int inner" in source
