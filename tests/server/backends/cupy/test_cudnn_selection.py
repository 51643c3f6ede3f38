"""The choice of convolutions for cuDNN from their signatures; needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.cupy.cudnn_selection import Direction, Task, task_of
from support.kernels import signature

Shape = tuple[int, ...]


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.from_wire(dtype))


def options(rank: int, **changed: Any) -> dict[str, Any]:
    plain = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, "groups": 1}
    return {**plain, **changed}


def planned(dtype: str, x: Shape, weight: Shape, groups: int = 1, **changed: Any) -> Task | None:
    chosen = options(len(x) - 2, groups=groups, **changed)
    name = f"Module.Conv{len(x) - 2}d"
    return task_of(signature(name, spec(dtype, *x), spec(dtype, *weight), None, **chosen))


LAYERS = {
    "3x3": ((2, 8, 9, 9), (8, 8, 3, 3), 1),
    "3x3 in groups": ((2, 8, 9, 9), (8, 4, 3, 3), 2),
    "1x1": ((2, 8, 9, 9), (16, 8, 1, 1), 1),
    "depthwise": ((2, 8, 9, 9), (8, 1, 3, 3), 8),
    "depthwise 1x1": ((2, 8, 9, 9), (8, 1, 1, 1), 8),
    "a line": ((2, 8, 9), (8, 8, 3), 1),
    "a volume": ((2, 8, 9, 9, 9), (8, 8, 3, 3, 3), 1),
}
EVERY_LAYER = frozenset(LAYERS)
TAKEN = {
    "F64": frozenset[str](),
    "F32": EVERY_LAYER - {"1x1", "depthwise", "depthwise 1x1"},
    "Flex32": EVERY_LAYER - {"1x1", "depthwise", "depthwise 1x1"},
    "F16": EVERY_LAYER - {"depthwise", "depthwise 1x1"},
    "BF16": EVERY_LAYER - {"depthwise", "depthwise 1x1"},
}


@pytest.mark.parametrize("dtype", TAKEN)
def test_the_table_decides_which_layers_go_to_cudnn(dtype: str) -> None:
    seen = {
        name
        for name, (x, weight, groups) in LAYERS.items()
        if planned(dtype, x, weight, groups) is not None
    }
    assert seen == TAKEN[dtype]


@pytest.mark.parametrize(
    ("name", "direction", "third", "result"),
    [
        ("Conv2d", Direction.FORWARD, (6,), (2, 6, 5, 2)),
        ("Conv2dXBackward", Direction.TO_INPUT, (2, 6, 5, 2), (2, 4, 9, 7)),
        ("Conv2dWeightBackward", Direction.TO_FILTERS, (2, 6, 5, 2), (6, 2, 3, 2)),
    ],
)
def test_a_task_has_the_shapes_of_all_three_tensors(
    name: str, direction: Direction, third: Shape, result: Shape
) -> None:
    chosen = options(2, stride=(2, 3), padding=(1, 0), dilation=(1, 2), groups=2)
    x, weight = spec("F16", 2, 4, 9, 7), spec("F16", 6, 2, 3, 2)
    task = task_of(signature(f"Module.{name}", x, weight, spec("F16", *third), **chosen))
    assert task == Task(
        direction,
        np.dtype(np.float16),
        input=(2, 4, 9, 7),
        filters=(6, 2, 3, 2),
        output=(2, 6, 5, 2),
        stride=(2, 3),
        padding=(1, 0),
        dilation=(1, 2),
        result=result,
    )


def test_a_one_dimensional_layer_is_a_plane_of_one_row() -> None:
    task = planned("F32", (2, 4, 9), (6, 4, 3), stride=(2,), padding=(1,), dilation=(2,))
    assert task == Task(
        Direction.FORWARD,
        np.dtype(np.float32),
        input=(2, 4, 1, 9),
        filters=(6, 4, 1, 3),
        output=(2, 6, 1, 4),
        stride=(1, 2),
        padding=(0, 1),
        dilation=(1, 2),
        result=(2, 6, 4),
    )


def test_a_task_has_the_array_dtype() -> None:
    task = planned("BF16", (1, 2, 4, 4), (5, 2, 3, 3))
    assert task is not None
    assert task.dtype == array_dtype(DType.from_wire("BF16"))


@pytest.mark.parametrize("batch", [0, 2**20])
def test_empty_layers_and_layers_beyond_32_bits_do_not_go_to_cudnn(batch: int) -> None:
    assert planned("F32", (batch, 8, 256, 256), (8, 8, 3, 3)) is None


@pytest.mark.parametrize("name", ["ConvTranspose2d", "MaxPool2d", "Conv2dBiasBackward"])
def test_other_operations_do_not_go_to_cudnn(name: str) -> None:
    x, weight, grad = spec("F32", 2, 8, 9, 9), spec("F32", 8, 8, 3, 3), spec("F32", 2, 8, 7, 7)
    transposed = options(2, padding_out=(0, 0))
    pooling: dict[str, Any] = {
        "kernel_size": (2, 2),
        "stride": (2, 2),
        "padding": (0, 0),
        "dilation": (1, 1),
    }
    signed = {
        "ConvTranspose2d": lambda: signature(f"Module.{name}", x, weight, None, **transposed),
        "MaxPool2d": lambda: signature(f"Module.{name}", x, ceil_mode=False, **pooling),
        "Conv2dBiasBackward": lambda: signature(f"Module.{name}", x, spec("F32", 8), grad),
    }[name]()
    assert task_of(signed) is None
