"""Tests of lookup and binding of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BF16, F16, F32, I32, DType
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.array_session import kernel_table
from burn_remote_server.backends.array.core.kernel_forms import KernelFamily
from burn_remote_server.backends.array.kernels.kernel_families import (
    random_families,
    shared_families,
)
from burn_remote_server.backends.array.kernels.random_numbers import RandomStream
from support.kernels import compute, new_session, on_host, signature, spec_of

# Rows without a kernel: operations of the session itself, operations that this server lacks, and
# those bound elsewhere (custom_kernels.py, quantized_kernels.py).
WITHOUT_KERNEL = {
    ("Init", "Init"),
    ("Drop", "Drop"),
    ("Custom", "Custom"),
    ("Distributed", "AllReduce"),
    ("Float", "Quantize"),
    ("Float", "Dequantize"),
}


def all_families() -> list[KernelFamily]:
    return [*shared_families(np), *random_families(np, RandomStream(np))]


def test_rows_of_the_table_and_kernels_correspond() -> None:
    assert set(kernel_table(all_families())) == set(TABLE) - WITHOUT_KERNEL


def test_low_precision_names_only_existing_kernels() -> None:
    for family in all_families():
        assert family.low_precision <= set(family.table())


def test_an_operation_without_a_kernel_is_unsupported() -> None:
    session = new_session()

    with pytest.raises(Unsupported, match=r"of Distributed\.AllReduce: Burn 0\.21 does not"):
        session.bind(
            signature("Distributed.AllReduce", TensorSpec((2,), F32), op="Sum", device_ids=())
        )


@on_host
def test_an_addition_calls_the_array_modules_function_directly() -> None:
    spec = TensorSpec((16, 16), F32)

    assert new_session().bind(signature("Numeric.Add", spec, spec)) is np.add


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_low_precision_is_rounded_once_after_several_steps(dtype: DType) -> None:
    array_dtype = new_session().array_dtype(dtype)
    tensor = np.array([300, 300, 300, 299], array_dtype).reshape(2, 2)

    # Squares of 300 do not fit float16, and 1200 + 1 is 1200 in bfloat16.
    mean = compute("Numeric.Mean", tensor)
    assert mean.dtype == array_dtype
    assert float(mean[0]) == float(np.array(tensor.astype(np.float32).mean()).astype(array_dtype))


def test_a_kernel_that_is_prepared_can_be_called_like_any_other() -> None:
    (arithmetic,) = [item for item in shared_families(np) if "AddScalar" in item.table()]
    tensor = np.arange(3, dtype=np.int16)

    seen = arithmetic.table()["AddScalar"](tensor, rhs=2, out=spec_of(tensor))

    assert seen.tolist() == [2, 3, 4]


def test_results_without_dimensions_are_arrays() -> None:
    number: Any = np.array(3, np.float32)

    assert type(compute("Float.Exp", number)) is np.ndarray
    assert type(compute("Base.Equal", number, number)) is np.ndarray
    index = np.array([[0]], np.int32)
    assert compute("Base.GatherNd", np.ones(2, np.int8), index[0]).shape == ()


def test_low_precision_with_several_outputs() -> None:
    tensor = np.array([[1, 5, 2]], np.float16)
    out = (TensorSpec((1, 1), F16), TensorSpec((1, 1), I32))

    values, positions = compute("Numeric.MaxDimWithIndices", tensor, dim=1, out=out)

    assert (values.tolist(), positions.tolist()) == ([[5]], [[1]])
