"""The source of CUDA kernels: which operations have one, and where elements are read."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BOOL, F16, F32, F64, I32, DType
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.cupy.cuda_expressions import _ROWS, expression_of
from burn_remote_server.fusion.cuda.kernel_source import (
    KernelStep,
    kernel_source,
    place_expression,
)
from support.kernels import signature


@st.composite
def broadcasts(draw: Any) -> tuple[Shape, Shape]:
    """Draw the shape of a result, and one that is broadcast to it."""
    result = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    kept = draw(st.integers(0, len(result)))
    own = [length if draw(st.booleans()) else 1 for length in result[len(result) - kept :]]
    return result, tuple(own)


@given(broadcasts())
def test_an_element_is_read_where_broadcasting_puts_it(shapes: tuple[Shape, Shape]) -> None:
    result, operand = shapes
    expected = np.broadcast_to(np.arange(math.prod(operand)).reshape(operand), result).ravel()
    place = place_expression(operand, result)
    python = re.sub(r"(\d)u", r"\1", place).replace("/", "//")

    assert [eval(python, {"i": i}) for i in range(math.prod(result))] == [*expected]


@pytest.mark.parametrize("key", _ROWS, ids="".join)
def test_each_expression_belongs_to_a_row_of_the_table(key: tuple[str, str]) -> None:
    assert key in TABLE


@pytest.mark.parametrize(
    ("name", "dtypes", "parameters"),
    [
        ("Numeric.Add", [I32, I32], {}),
        ("Numeric.Add", [F16, F16], {}),
        ("Numeric.PowiScalar", [F32], {"rhs": 2**60}),
        ("Float.Matmul", [F32, F32], {}),
    ],
)
def test_what_a_kernel_could_round_or_overflow_otherwise_stays_a_single_operation(
    name: str, dtypes: list[DType], parameters: dict[str, Any]
) -> None:
    signed = signature(name, *[TensorSpec((2, 2), each) for each in dtypes], **parameters)

    assert expression_of(signed) is None


def test_the_numbers_of_operations_are_arguments_so_that_others_need_no_other_kernel() -> None:
    sources = set()
    for rate in (0.1, 0.2, math.inf):
        spec = TensorSpec((4, 3), F64)
        product = expression_of(signature("Numeric.MulScalar", spec, rhs=rate))
        positive = expression_of(signature("Numeric.GreaterElem", spec, rhs=0.0))
        assert product is not None
        assert positive is not None
        assert product.numbers == (np.float64(rate),)
        steps = [KernelStep(product, (0,)), KernelStep(positive, (1,))]
        sources.add(kernel_source((4, 3), [((4, 3), np.dtype(np.float64))], steps, [1, 2]))

    (source,) = sources
    assert "struct Numbers { double n0; double n1; };" in source
    assert "double* __restrict__ out0, bool* __restrict__ out1" in source
    assert "const double v1 = (v0 * numbers.n0);" in source
    assert "const bool v2 = (v1 > numbers.n1);" in source


def test_bools_select_and_fill() -> None:
    spec = TensorSpec((4,), F32)
    select = expression_of(signature("Base.MaskWhere", spec, TensorSpec((4,), BOOL), spec))
    assert select is not None
    assert select.text == "({1} ? {2} : {0})"
