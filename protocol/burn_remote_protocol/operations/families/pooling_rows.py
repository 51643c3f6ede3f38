"""Rows of pooling operations and their gradients.

Operations of one spatial axis carry plain sizes, those of two axes carry pairs.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    boolean,
    tensor_in,
    tensor_out,
    usize,
    usize_array,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.pooling_rules import (
    adaptive,
    adaptive_backward,
    pool,
    pool_backward,
    pool_with_indices,
    pool_with_indices_backward,
)
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

X: Final = tensor_in("x")
GRAD: Final = tensor_in("grad")
INDICES: Final = tensor_in("indices")
OUT: Final = tensor_out("out")
OUT_INDICES: Final = tensor_out("out_indices")

WINDOW_1D: Final = (usize("kernel_size"), usize("stride"), usize("padding"))
WINDOW_2D: Final = (
    usize_array("kernel_size", 2),
    usize_array("stride", 2),
    usize_array("padding", 2),
)
AVERAGE: Final = (boolean("count_include_pad"), boolean("ceil_mode"))
MAX_1D: Final = (usize("dilation"), boolean("ceil_mode"))
MAX_2D: Final = (usize_array("dilation", 2), boolean("ceil_mode"))

AVG_POOL1D: Final = Row(
    "Module", "AvgPool1d", (X, *WINDOW_1D, *AVERAGE, OUT), pool(1), estimates.POOL
)
AVG_POOL2D: Final = Row(
    "Module", "AvgPool2d", (X, *WINDOW_2D, *AVERAGE, OUT), pool(2), estimates.POOL
)
AVG_POOL1D_BACKWARD: Final = Row(
    "Module",
    "AvgPool1dBackward",
    (X, GRAD, *WINDOW_1D, *AVERAGE, OUT),
    pool_backward(1),
    estimates.POOL_BACKWARD,
)
AVG_POOL2D_BACKWARD: Final = Row(
    "Module",
    "AvgPool2dBackward",
    (X, GRAD, *WINDOW_2D, *AVERAGE, OUT),
    pool_backward(2),
    estimates.POOL_BACKWARD,
)
ADAPTIVE_AVG_POOL1D: Final = Row(
    "Module",
    "AdaptiveAvgPool1d",
    (X, usize("output_size"), OUT),
    adaptive(1),
    estimates.ADAPTIVE_POOLING,
)
ADAPTIVE_AVG_POOL2D: Final = Row(
    "Module",
    "AdaptiveAvgPool2d",
    (X, usize_array("output_size", 2), OUT),
    adaptive(2),
    estimates.ADAPTIVE_POOLING,
)
ADAPTIVE_AVG_POOL1D_BACKWARD: Final = Row(
    "Module",
    "AdaptiveAvgPool1dBackward",
    (X, GRAD, OUT),
    adaptive_backward(1),
    estimates.ADAPTIVE_POOLING_BACKWARD,
)
ADAPTIVE_AVG_POOL2D_BACKWARD: Final = Row(
    "Module",
    "AdaptiveAvgPool2dBackward",
    (X, GRAD, OUT),
    adaptive_backward(2),
    estimates.ADAPTIVE_POOLING_BACKWARD,
)
ADAPTIVE_AVG_POOL3D: Final = Row(
    "Module",
    "AdaptiveAvgPool3d",
    (X, usize_array("output_size", 3), OUT),
    adaptive(3),
    estimates.ADAPTIVE_POOLING,
    SINCE_BURN_0_22,
)
ADAPTIVE_AVG_POOL3D_BACKWARD: Final = Row(
    "Module",
    "AdaptiveAvgPool3dBackward",
    (X, GRAD, OUT),
    adaptive_backward(3),
    estimates.ADAPTIVE_POOLING_BACKWARD,
    SINCE_BURN_0_22,
)
MAX_POOL1D: Final = Row(
    "Module", "MaxPool1d", (X, *WINDOW_1D, *MAX_1D, OUT), pool(1), estimates.POOL
)
MAX_POOL1D_WITH_INDICES: Final = Row(
    "Module",
    "MaxPool1dWithIndices",
    (X, *WINDOW_1D, *MAX_1D, OUT, OUT_INDICES),
    pool_with_indices(1),
    estimates.POOL_WITH_INDICES,
)
MAX_POOL1D_WITH_INDICES_BACKWARD: Final = Row(
    "Module",
    "MaxPool1dWithIndicesBackward",
    (X, GRAD, INDICES, *WINDOW_1D, *MAX_1D, OUT),
    pool_with_indices_backward(1),
    estimates.POOL_INDICES_BACKWARD,
)
MAX_POOL2D: Final = Row(
    "Module", "MaxPool2d", (X, *WINDOW_2D, *MAX_2D, OUT), pool(2), estimates.POOL
)
MAX_POOL2D_WITH_INDICES: Final = Row(
    "Module",
    "MaxPool2dWithIndices",
    (X, *WINDOW_2D, *MAX_2D, OUT, OUT_INDICES),
    pool_with_indices(2),
    estimates.POOL_WITH_INDICES,
)
MAX_POOL2D_WITH_INDICES_BACKWARD: Final = Row(
    "Module",
    "MaxPool2dWithIndicesBackward",
    (X, GRAD, INDICES, *WINDOW_2D, *MAX_2D, OUT),
    pool_with_indices_backward(2),
    estimates.POOL_INDICES_BACKWARD,
)

ROWS: Final = (
    AVG_POOL1D, AVG_POOL2D, AVG_POOL1D_BACKWARD, AVG_POOL2D_BACKWARD, ADAPTIVE_AVG_POOL1D,
    ADAPTIVE_AVG_POOL2D, ADAPTIVE_AVG_POOL1D_BACKWARD, ADAPTIVE_AVG_POOL2D_BACKWARD, MAX_POOL1D,
    MAX_POOL1D_WITH_INDICES, MAX_POOL1D_WITH_INDICES_BACKWARD, MAX_POOL2D,
    MAX_POOL2D_WITH_INDICES, MAX_POOL2D_WITH_INDICES_BACKWARD, ADAPTIVE_AVG_POOL3D,
    ADAPTIVE_AVG_POOL3D_BACKWARD,
)  # fmt: skip
