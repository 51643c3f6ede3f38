"""Index updates on a GPU have the bits of NumPy's, which applies one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends import Backend
from support.kernels import signature

pytestmark = pytest.mark.gpu

UPDATES: Any = {
    "Add": np.add, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum,
}  # fmt: skip
# Numbers of updates and of rows, and the length of a row: few comparisons, links, and sorting.
SIZES: Any = [
    (1, 3, 5), (40, 7, 5), (1000, 50, 96), (1000, 1, 33), (5000, 10_000, 3),
    (2**14, 300, 2), (2**14 + 1, 300, 2),
]  # fmt: skip


def test_the_sizes_cover_each_way_to_find_updates() -> None:
    from burn_remote_server.backends.cupy.index_updates import MAX_COMPARISONS, MAX_LINKED

    ways = {
        (count <= MAX_LINKED, count * count * width <= MAX_COMPARISONS) for count, _, width in SIZES
    }
    assert ways == {(True, True), (True, False), (False, False)}


def drawn(count: int, rows: int, width: int) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(count)
    target = draw.normal(size=(rows, width)).astype(np.float32)
    values = draw.normal(size=(count, width)).astype(np.float32)
    return target, draw.integers(0, rows, count), values


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_repeated_rows_are_updated_in_order(
    gpu: Backend, update: str, sizes: tuple[int, int, int]
) -> None:
    cupy: Any = gpu.array_module  # type: ignore[attr-defined]
    target, chosen, values = drawn(*sizes)
    session = gpu.open_session()
    session.activate()
    specs = [TensorSpec(target.shape, F32), TensorSpec(chosen.shape, I64)]
    run = session.bind(
        signature("Base.SelectAssign", *specs, TensorSpec(values.shape, F32), dim=0, update=update)
    )
    found = run(*map(cupy.asarray, (target, chosen, values)))
    UPDATES[update].at(target, chosen, values)
    np.testing.assert_array_equal(found.get(), target)


def test_slices_of_a_middle_axis_are_updated_in_order(gpu: Backend) -> None:
    from burn_remote_server.backends.cupy.index_updates import (
        MAX_COMPARISONS,
        update_slices_in_order,
    )

    cupy: Any = gpu.array_module  # type: ignore[attr-defined]
    draw = np.random.default_rng(0)
    target = draw.normal(size=(4, 30, 25)).astype(np.float32)
    chosen = draw.integers(0, 30, 600)
    values = draw.normal(size=(4, 600, 25)).astype(np.float32)
    assert 600 * values.size > MAX_COMPARISONS  # so that links are made
    found = cupy.asarray(target)
    update_slices_in_order(found, cupy.asarray(chosen), cupy.asarray(values), 1, "Add")
    for each in range(4):
        np.add.at(target[each], chosen, values[each])
    np.testing.assert_array_equal(found.get(), target)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_gradient_of_an_embedding_adds_in_order(
    gpu: Backend, sizes: tuple[int, int, int]
) -> None:
    cupy: Any = gpu.array_module  # type: ignore[attr-defined]
    table, chosen, grads = drawn(*sizes)
    session = gpu.open_session()
    session.activate()
    specs = [TensorSpec(table.shape, F32), TensorSpec((1, *grads.shape), F32)]
    run = session.bind(
        signature("Module.EmbeddingBackward", *specs, TensorSpec((1, chosen.size), I64))
    )
    found = run(cupy.asarray(table), cupy.asarray(grads[None]), cupy.asarray(chosen[None]))
    expected = np.zeros_like(table)
    np.add.at(expected, chosen, grads)
    np.testing.assert_array_equal(found.get(), expected)
