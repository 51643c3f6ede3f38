"""The choice between cuDNN and our own kernels for convolutions.

=============  ==========  =========================
layer          float32     float16, bfloat16
=============  ==========  =========================
depthwise      ours        ours, in ``float32``
pointwise      cuBLAS      cuDNN
all others     cuDNN       cuDNN
=============  ==========  =========================

Our own kernels also run ``float64``, empty arrays, and arrays of 2**31 elements or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16, LOW_PRECISION, array_dtype
from burn_remote_server.backends.array.kernels.networks.correlation import Layer, checked_layer

__all__ = ["Direction", "Task", "task_of"]

FLOATS: Final = frozenset({np.dtype(np.float32), np.dtype(np.float16), BFLOAT16})

# Kernels with 32-bit element counts give wrong results for arrays of this size and larger ones.
MAX_ELEMENTS: Final = 2**31


class Direction(Enum):
    """The direction of a convolution: its output, or one of its gradients."""

    FORWARD = "output from input and filters"
    TO_INPUT = "the input's gradient from the output's gradient and the filters"
    TO_FILTERS = "the filters' gradient from the input and the output's gradient"


_DIRECTIONS: Final = {
    "Conv1d": Direction.FORWARD,
    "Conv1dXBackward": Direction.TO_INPUT,
    "Conv1dWeightBackward": Direction.TO_FILTERS,
    "Conv2d": Direction.FORWARD,
    "Conv2dXBackward": Direction.TO_INPUT,
    "Conv2dWeightBackward": Direction.TO_FILTERS,
    "Conv3d": Direction.FORWARD,
    "Conv3dXBackward": Direction.TO_INPUT,
    "Conv3dWeightBackward": Direction.TO_FILTERS,
}


@dataclass(frozen=True, slots=True)
class Task:
    """A convolution, or a gradient of one, with two or three spatial axes, in cuDNN's terms.

    ``input`` is ``[batch, channels, *sizes]``, ``filters`` is ``[filters, channels / groups,
    *kernel]``, ``output`` is ``[batch, filters, *outputs]``; ``result`` is the declared shape of
    the operation's result. The number of groups follows from the channels.
    """

    direction: Direction
    dtype: Any
    input: Shape
    filters: Shape
    output: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    result: Shape


class _ShapeOnly(NamedTuple):
    """The shape of an array, which is all that the layer checks read."""

    shape: Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)


def task_of(signature: Signature) -> Task | None:
    """Return the cuDNN task of an operation, or ``None`` if our own kernels run it.

    The signature must have passed its row's shape rule.
    """
    row = signature.row
    direction = _DIRECTIONS.get(row.name) if row.family == "Module" else None
    if direction is None:
        return None
    x, weight, _ = signature.call.inputs
    dtype, options = array_dtype(x.dtype), signature.call.parameters
    if dtype not in FLOATS:
        return None
    layer = checked_layer(row.name, _ShapeOnly(x.shape), _ShapeOnly(weight.shape), options)  # type: ignore[arg-type]
    output = (x.shape[0], layer.filters, *layer.windows.outputs)
    if _is_ours(layer, dtype) or not _is_countable(x.shape, weight.shape, output):
        return None
    # cuDNN has no 1-d convolution: use a 2-d one of height one.
    rows = (1,) if len(layer.windows) == 1 else ()
    return Task(
        direction=direction,
        dtype=dtype,
        input=(*x.shape[:2], *rows, *layer.windows.sizes),
        filters=(*weight.shape[:2], *rows, *layer.windows.kernel),
        output=(*output[:2], *rows, *layer.windows.outputs),
        stride=(*rows, *options["stride"]),
        padding=(*(0 for _ in rows), *options["padding"]),
        dilation=(*rows, *options["dilation"]),
        result=signature.outputs[0].shape,
    )


def _is_ours(layer: Layer, dtype: Any) -> bool:
    """Return whether our kernels run the layer in one launch or as a plain matrix product."""
    # In low precision our pointwise kernel would first convert everything to float32.
    return layer.depthwise or (layer.pointwise and dtype not in LOW_PRECISION)


def _is_countable(*shapes: Shape) -> bool:
    return all(0 < math.prod(shape) < MAX_ELEMENTS for shape in shapes)
