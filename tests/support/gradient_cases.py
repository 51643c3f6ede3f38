"""Calls of every row that has a gradient rule, with inputs for finite differences.

A case is a function of the floating-point inputs to be differentiated. Inputs stay away from jumps
and kinks, so that central differences are accurate. Integer inputs, masks and options are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

import burn_remote as br
from burn_remote.dispatch.operators import Operator
from burn_remote_protocol.operations.families import (
    activations,
    base,
    complex_rows,
    convolution_rows,
    elementwise_rows,
    floats,
    fourier_rows,
    layers,
    matrix_rows,
    numeric,
    pooling_rows,
    sampling,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice

__all__ = ["CASES", "Array", "Case", "cases_of"]

Array = np.ndarray[Any, Any]
Function = Callable[..., br.Tensor]


class Case(NamedTuple):
    """A call of ``row``: a function of tensors, and their elements as float64."""

    row: Row
    name: str
    function: Function
    inputs: tuple[Array, ...]
    # The most relative error of first derivatives; looser only where float32 is involved.
    bound: float = 1e-6
    # Why there is no second derivative, as a part of the error's text; None if there is one.
    second_order_refusal: str | None = None

    def __str__(self) -> str:
        return f"{self.row}-{self.name}" if self.name else str(self.row)


_random = np.random.default_rng(20261122)


def normal(*shape: int) -> Array:
    return _random.normal(size=shape)


def between(low: float, high: float, *shape: int) -> Array:
    return _random.uniform(low, high, size=shape)


def distinct(*shape: int) -> Array:
    """Return shuffled numbers that are at least 0.37 apart, and none near 0."""
    size = math.prod(shape)
    return (_random.permutation(size).reshape(shape) - size // 2) * 0.37 + 0.11


def integers(high: int, *shape: int) -> Array:
    return _random.integers(0, high, size=shape)


CASES: Final[list[Case]] = []


def case(row: Row, function: Function, *inputs: Array, name: str = "", **options: Any) -> None:
    CASES.append(Case(row, name, function, tuple(map(np.asarray, inputs)), **options))


def cases_of(row: Row) -> list[Case]:
    """Return the cases of a row."""
    return [one for one in CASES if one.row is row]


def _like(x: br.Tensor, array: Array) -> br.Tensor:
    return br.tensor(array, device=x.device)


def apply(row: Row, *parameters: Any) -> Function:
    """Return a function that applies a row to its tensors."""
    operator = Operator(row)
    return lambda *inputs: operator.apply(inputs, parameters)


def into(row: Row, wanted: Any) -> Function:
    operator = Operator(row)
    return lambda x: operator.into(x, wanted)


def unary(row: Row) -> Function:
    return Operator(row).unary


def binary(row: Row) -> Function:
    return Operator(row).binary


def scalar(row: Row, number: float) -> Function:
    operator = Operator(row)
    return lambda x: operator.scalar(x, number)


def with_fixed(row: Row, places: dict[int, Array], *parameters: Any) -> Function:
    """Return a function that applies a row; the inputs at ``places`` are fixed arrays."""
    operator = Operator(row)

    def function(*inputs: br.Tensor) -> br.Tensor:
        listed = list(inputs)
        for place, array in sorted(places.items()):
            listed.insert(place, _like(inputs[0], array))
        return operator.apply(tuple(listed), parameters)

    return function


# -- Base -----------------------------------------------------------------------------------------

case(base.RESHAPE, into(base.RESHAPE, (6,)), normal(2, 3))
case(base.RESHAPE, into(base.RESHAPE, ()), normal(1), name="to-rank-0")
case(base.SWAP_DIMS, apply(base.SWAP_DIMS, 0, 2), normal(2, 3, 4))
case(base.PERMUTE, apply(base.PERMUTE, (2, 0, 1)), normal(2, 3, 4))
case(base.FLIP, apply(base.FLIP, (0, 1)), normal(2, 3))
case(base.EXPAND, into(base.EXPAND, (2, 4, 3)), normal(2, 1, 3))
case(base.EXPAND, into(base.EXPAND, (4, 2, 3)), normal(2, 1), name="more-axes")
case(base.UNFOLD, apply(base.UNFOLD, 1, 3, 2), normal(2, 8, 3))
case(base.UNFOLD, apply(base.UNFOLD, 0, 2, 3), normal(7), name="with-gaps")
case(base.SLICE, apply(base.SLICE, (Slice(1, 5, 2),)), normal(6, 3))
case(
    base.SLICE,
    apply(base.SLICE, (Slice(1, -1, -2), Slice(0, None, -1))),
    normal(7, 3),
    name="negative-steps",
)
case(base.SLICE, apply(base.SLICE, (Slice(2, 2, 1),)), normal(4), name="empty")
case(
    base.SLICE_ASSIGN,
    apply(base.SLICE_ASSIGN, (Slice(1, 5, 2), Slice(0, None, -1))),
    normal(6, 3),
    normal(2, 3),
)
_PICKED = integers(4, 5)
case(base.SELECT, with_fixed(base.SELECT, {1: _PICKED}, 0), normal(4, 3))
_ROWS = np.array([2, 0, 2, 1])
for _update in ("Assign", "Add", "Mul", "Min", "Max"):
    _refusal = "by multiplication" if _update == "Mul" else None
    case(
        base.SELECT_ASSIGN,
        with_fixed(base.SELECT_ASSIGN, {1: np.array([2, 0])}, 0, _update),
        normal(4, 3),
        normal(2, 3),
        name=_update,
        second_order_refusal=_refusal,
    )
    case(
        base.SELECT_ASSIGN,
        with_fixed(base.SELECT_ASSIGN, {1: _ROWS}, 0, _update),
        normal(4, 3),
        normal(4, 3),
        name=f"{_update}-repeated",
        second_order_refusal=_refusal,
    )
    case(
        base.SCATTER,
        with_fixed(base.SCATTER, {1: np.array([[0, 1, 2], [3, 0, 1]])}, 0, _update),
        normal(4, 3),
        normal(2, 3),
        name=_update,
        second_order_refusal=_refusal,
    )
    case(
        base.SCATTER,
        with_fixed(base.SCATTER, {1: np.array([[0, 1, 2], [0, 0, 1]])}, 0, _update),
        normal(4, 3),
        normal(2, 3),
        name=f"{_update}-repeated",
        second_order_refusal=_refusal,
    )
    case(
        base.SCATTER_ND,
        with_fixed(base.SCATTER_ND, {1: np.array([[0, 1], [3, 2]])}, _update),
        normal(4, 3),
        normal(2),
        name=_update,
        second_order_refusal=_refusal,
    )
    case(
        base.SCATTER_ND,
        with_fixed(base.SCATTER_ND, {1: np.array([[1], [3], [1]])}, _update),
        normal(4, 3),
        normal(3, 3),
        name=f"{_update}-repeated-slices",
        second_order_refusal=_refusal,
    )
case(
    base.SCATTER,
    with_fixed(base.SCATTER, {1: np.array([[0, 1, 2, 2], [0, 0, 1, 2]])}, 1, "Mul"),
    normal(2, 3),
    np.array([[0.0, 2, 0, 3], [0, 0, 4, 0]]),
    name="Mul-zeros",
    second_order_refusal="by multiplication",
)
_MASK = _random.random((4, 3)) > 0.5
case(base.MASK_WHERE, with_fixed(base.MASK_WHERE, {1: _MASK}), normal(4, 3), normal(4, 3))
case(
    base.MASK_WHERE,
    with_fixed(base.MASK_WHERE, {1: _MASK}),
    normal(1, 3),
    normal(4, 1),
    name="broadcast",
)
case(base.MASK_FILL, lambda x: x.mask_fill(_like(x, _MASK), 2.0), normal(4, 3))
case(base.MASK_FILL, lambda x: x.mask_fill(_like(x, _MASK), 2.0), normal(1, 3), name="broadcast")
case(base.GATHER, with_fixed(base.GATHER, {1: integers(4, 2, 3)}, 0), normal(4, 3))
case(base.GATHER_ND, with_fixed(base.GATHER_ND, {1: np.array([[0, 1], [3, 2]])}), normal(4, 3))
case(
    base.GATHER_ND,
    with_fixed(base.GATHER_ND, {1: np.array([[3], [3], [0]])}),
    normal(4, 3),
    name="repeated-slices",
)
case(base.REPEAT_DIM, apply(base.REPEAT_DIM, 1, 3), normal(2, 3))
case(base.CAST, lambda x: x.astype(br.float32).astype(br.float64), normal(2, 3), bound=2e-2)
case(base.CAT, lambda x, y: br.concat([x, y], axis=1), normal(2, 3), normal(2, 4))
case(base.CAT, lambda x: br.concat([x, x, x]), normal(2, 3), name="repeated-input")

# -- Numeric --------------------------------------------------------------------------------------

for _row in (numeric.ADD, numeric.SUB, numeric.MUL, floats.ARC_TAN2, floats.HYPOT):
    case(_row, binary(_row), normal(2, 3), normal(2, 3))
    case(_row, binary(_row), normal(2, 1), normal(1, 3), name="broadcast")
    case(_row, binary(_row), normal(4, 2, 3), normal(3), name="ranks")
    case(_row, binary(_row), normal(), normal(2), name="rank-0")
    case(_row, lambda x, _row=_row: Operator(_row).binary(x, x), between(0.4, 1, 4), name="twice")
case(numeric.DIV, binary(numeric.DIV), normal(2, 3), between(1.2, 2, 1, 3))
case(numeric.DIV, lambda x: x / x, between(1, 2, 3), name="twice")
case(
    numeric.REM,
    binary(numeric.REM),
    np.array([1.3, 2.9, -1.1, -3.3]),
    np.array([0.7, -1.1, 0.4, -0.5]),
)
for _row in (numeric.ADD_SCALAR, numeric.SUB_SCALAR, numeric.MUL_SCALAR, numeric.DIV_SCALAR):
    case(_row, scalar(_row, 1.7), normal(2, 3))
case(numeric.REM_SCALAR, scalar(numeric.REM_SCALAR, 0.7), np.array([1.3, 2.9, -1.1]))
case(numeric.ABS, unary(numeric.ABS), normal(2, 3))
case(numeric.CLAMP, lambda x: x.clip(-0.5, 0.5), normal(3, 4))
case(numeric.CLAMP, lambda x: x.clip(min=0.1), normal(3, 4), name="below")
case(numeric.CLAMP, lambda x: x.clip(max=0.1), normal(3, 4), name="above")
_EXPONENTS = np.array([2, 3, 0])
case(numeric.POWI, with_fixed(numeric.POWI, {1: _EXPONENTS}), normal(2, 3))
case(
    numeric.POWI,
    with_fixed(numeric.POWI, {1: _EXPONENTS.astype(np.uint8)}),
    np.array([0.0, 0.0, 0.0]),
    name="zeros",
)
case(numeric.POWI, with_fixed(numeric.POWI, {1: -_EXPONENTS}), between(1, 2, 3), name="negative")
for _exponent in (0, 1, 2, 3, -2):
    case(
        numeric.POWI_SCALAR,
        lambda x, n=_exponent: Operator(numeric.POWI_SCALAR).exact_scalar(x, n),
        between(0.5, 2, 3),
        name=str(_exponent),
    )
for _row in (numeric.SUM, numeric.MEAN, numeric.PROD):
    case(_row, unary(_row), normal(2, 3))
    case(_row, unary(_row), normal(), name="rank-0")
for _row in (numeric.SUM_DIM, numeric.MEAN_DIM, numeric.PROD_DIM):
    case(_row, apply(_row, 1, 1), normal(2, 3, 2))
_ZEROS = np.array([[1.0, 0, 2, 4], [0, 4, 0, 2], [3, 1, 2, 5]])
case(numeric.PROD, unary(numeric.PROD), np.array([[1.0, 0, 2], [3, 4, 0.5]]), name="zero")
case(numeric.PROD, unary(numeric.PROD), np.array([[1.0, 0, 2], [3, 0, 0.5]]), name="two-zeros")
case(numeric.PROD_DIM, apply(numeric.PROD_DIM, 1, 1), _ZEROS, name="zeros")
case(numeric.PROD_DIM, apply(numeric.PROD_DIM, 0, 1), normal(1, 2), name="one-element")
for _row in (numeric.MAX, numeric.MIN, numeric.MAX_ABS):
    case(_row, unary(_row), distinct(2, 3))
for _row in (numeric.MAX_DIM, numeric.MIN_DIM, numeric.MAX_ABS_DIM):
    case(_row, apply(_row, 1, 1), distinct(2, 3, 2))
case(numeric.TOP_K, apply(numeric.TOP_K, 1, 2), distinct(2, 5))
for _row in (numeric.MAX_DIM_WITH_INDICES, numeric.MIN_DIM_WITH_INDICES):
    case(_row, lambda x, _row=_row: Operator(_row).apply_all((x,), (1,))[0], distinct(2, 3, 2))
for _row in (numeric.CUM_SUM, numeric.CUM_PROD):
    case(_row, apply(_row, 1), normal(2, 4))
    case(_row, apply(_row, 0), normal(9, 2), name="longer")
    case(_row, apply(_row, 1), normal(2, 1), name="one-element")
case(numeric.CUM_PROD, apply(numeric.CUM_PROD, 1), _ZEROS, name="zeros")
for _row in (numeric.CUM_MIN, numeric.CUM_MAX):
    case(_row, apply(_row, 1), distinct(2, 5))

# -- Float ----------------------------------------------------------------------------------------

for _row in (
    *(floats.EXP, floats.ERF, floats.COS, floats.COSH, floats.SIN, floats.SINH, floats.TANH),
    *(floats.ARC_SINH, floats.ARC_TAN),
):
    case(_row, unary(_row), normal(2, 3))
for _row in (
    *(floats.LOG, floats.LOG1P, floats.SQRT, floats.TAN, floats.ARC_COS, floats.ARC_SIN),
    *(floats.ARC_TANH, floats.RECIP, floats.ROUND, floats.FLOOR, floats.CEIL, floats.TRUNC),
):
    case(_row, unary(_row), between(0.15, 0.45, 2, 3))
case(floats.ARC_COSH, unary(floats.ARC_COSH), between(1.2, 2, 2, 3))
for _number in (2.5, -0.5, 0.0, 1.0, 2.0):
    case(
        floats.POWF_SCALAR,
        scalar(floats.POWF_SCALAR, _number),
        between(0.5, 2, 2, 3),
        name=str(_number),
    )
case(floats.POWF, binary(floats.POWF), between(0.5, 2, 2, 3), normal(1, 3))
case(
    floats.POWF,
    binary(floats.POWF),
    between(0.5, 2, 3),
    np.array([0.0, 1.0, 2.0]),
    name="whole-exponents",
)
case(floats.MATMUL, binary(floats.MATMUL), normal(2, 3), normal(3, 2))
case(floats.MATMUL, binary(floats.MATMUL), normal(1, 2, 3), normal(4, 3, 2), name="left-for-all")
case(floats.MATMUL, binary(floats.MATMUL), normal(4, 2, 3), normal(1, 3, 2), name="right-for-all")
case(floats.MATMUL, lambda x, y: x @ y, normal(2, 4, 2, 3), normal(4, 3, 2), name="ranks")
case(floats.MATMUL, lambda x, y: x @ y, normal(2, 2, 2, 3), normal(3, 2), name="matrix-for-all")
case(floats.MATMUL, lambda x, y: x @ y, normal(3), normal(3), name="vectors")
case(floats.MATMUL, lambda x: x @ x, normal(3, 3), name="twice")
case(floats.CROSS, apply(floats.CROSS, 1), normal(2, 3), normal(2, 3))
case(floats.CROSS, apply(floats.CROSS, 0), normal(3, 1), normal(3, 2), name="broadcast")
for _padding in ("Zeros", "Border", "Reflection"):
    for _corners in (True, False):
        case(
            floats.GRID_SAMPLE2D,
            apply(floats.GRID_SAMPLE2D, ("Bilinear", _padding, _corners)),
            normal(1, 2, 4, 5),
            between(-1.4, 1.4, 1, 3, 2, 2),
            name=f"{_padding}-{_corners}",
        )
    case(
        floats.GRID_SAMPLE2D,
        apply(floats.GRID_SAMPLE2D, ("Nearest", _padding, False)),
        normal(2, 2, 3, 3),
        between(-1.4, 1.4, 2, 3, 2, 2),
        name=f"{_padding}-nearest",
    )

# -- Rows of Burn 0.22 ---------------------------------------------------------------------------

_AWAY = between(0.2, 1.5, 2, 3) * np.array([1.0, -1.0, 1.0])
for _row in (
    *(activations.RELU, activations.GELU, activations.SIGMOID, activations.LOG_SIGMOID),
    *(numeric.NEG, numeric.SIGN),
):
    case(_row, unary(_row), _AWAY)
case(activations.LEAKY_RELU, scalar(activations.LEAKY_RELU, 0.1), _AWAY)
case(activations.P_RELU, binary(activations.P_RELU), _AWAY, normal(1, 3))
for _row in (
    *(activations.RELU_BACKWARD, activations.GELU_BACKWARD, activations.SIGMOID_BACKWARD),
    activations.LOG_SIGMOID_BACKWARD,
):
    case(_row, binary(_row), _AWAY, normal(2, 3))
case(
    activations.HARD_SIGMOID,
    lambda x: Operator(activations.HARD_SIGMOID).numbers((x,), (0.3, 0.4)),
    np.array([-3.0, -0.7, 0.4, 1.1, 4.0]),
)
for _row in (activations.SOFTMAX, activations.LOG_SOFTMAX, activations.SOFTMIN):
    case(_row, apply(_row, 0), normal(4, 3))
    case(_row, apply(_row, 1), normal(2, 5), name="last-axis")
case(numeric.CLAMP_MIN, scalar(numeric.CLAMP_MIN, 0.1), normal(3, 4))
case(numeric.CLAMP_MAX, scalar(numeric.CLAMP_MAX, 0.1), normal(3, 4))
case(numeric.SUM_DIMS, apply(numeric.SUM_DIMS, (0, 2)), normal(2, 3, 2))
for _descending in (False, True):
    case(
        numeric.SORT,
        apply(numeric.SORT, 1, _descending),
        distinct(2, 5),
        name=f"descending-{_descending}",
    )
case(
    numeric.SORT_WITH_INDICES,
    lambda x: Operator(numeric.SORT_WITH_INDICES).apply_all((x,), (0, True))[0],
    distinct(4, 2),
)
case(
    numeric.TOP_K_WITH_INDICES,
    lambda x: Operator(numeric.TOP_K_WITH_INDICES).apply_all((x,), (1, 2))[0],
    distinct(2, 5),
)
_BORDERS = ((1, 2), (0, 0), (2, 1))
for _padding_mode in (("Constant", Scalar.of(2.0)), ("Reflect",), ("Edge",)):
    case(
        numeric.PAD,
        apply(numeric.PAD, _BORDERS, _padding_mode),
        normal(3, 2, 3),
        name=str(_padding_mode[0]),
    )
case(
    layers.LAYER_NORM,
    apply(layers.LAYER_NORM, Scalar.of(1e-3)),
    normal(2, 3, 4),
    normal(4),
    normal(4),
)
case(
    layers.LAYER_NORM,
    lambda x, gamma: Operator(layers.LAYER_NORM).apply((x, gamma, None), (Scalar.of(1e-3),)),
    normal(2, 4),
    normal(4),
    name="without-bias",
)
case(
    layers.BATCH_NORM,
    apply(layers.BATCH_NORM, Scalar.of(1e-3)),
    *(normal(2, 3, 2), normal(3), normal(3), normal(3), between(0.5, 2, 3)),
)
case(
    layers.UNFOLD4D,
    apply(layers.UNFOLD4D, (2, 3), ((1, 2), (1, 0), (2, 1))),
    normal(1, 2, 4, 5),
)
case(
    pooling_rows.ADAPTIVE_AVG_POOL3D,
    apply(pooling_rows.ADAPTIVE_AVG_POOL3D, (2, 1, 3)),
    normal(1, 2, 3, 2, 4),
)
case(
    pooling_rows.ADAPTIVE_AVG_POOL3D_BACKWARD,
    apply(pooling_rows.ADAPTIVE_AVG_POOL3D_BACKWARD),
    normal(1, 2, 3, 2, 4),
    normal(1, 2, 2, 1, 3),
)
for _row, _bias_row, _places, _taps, _found in (
    (
        convolution_rows.CONV_TRANSPOSE1D_WEIGHT_BACKWARD,
        convolution_rows.CONV_TRANSPOSE1D_BIAS_BACKWARD,
        *((3,), (2,), (6,)),
    ),
    (
        convolution_rows.CONV_TRANSPOSE2D_WEIGHT_BACKWARD,
        convolution_rows.CONV_TRANSPOSE2D_BIAS_BACKWARD,
        *((3, 2), (2, 3), (6, 5)),
    ),
    (
        convolution_rows.CONV_TRANSPOSE3D_WEIGHT_BACKWARD,
        convolution_rows.CONV_TRANSPOSE3D_BIAS_BACKWARD,
        *((2, 2, 1), (2, 1, 2), (4, 3, 2)),
    ),
):
    _each = len(_places)
    case(
        _row,
        apply(
            _row,
            (
                (2,) * _each,
                (0,) * _each,
                tuple(
                    found - ((place - 1) * 2 + tap)
                    for place, tap, found in zip(_places, _taps, _found, strict=True)
                ),
                (1,) * _each,
                2,
            ),
        ),
        *(normal(1, 4, *_places), normal(4, 1, *_taps), normal(1, 2, *_found)),
    )
    case(_bias_row, apply(_bias_row), normal(1, 4, *_places), normal(2), normal(1, 2, *_found))

# -- Layers ---------------------------------------------------------------------------------------

_WORDS = integers(5, 2, 3)
case(layers.EMBEDDING, with_fixed(layers.EMBEDDING, {1: _WORDS}), normal(5, 4))
case(
    layers.EMBEDDING_BACKWARD,
    with_fixed(layers.EMBEDDING_BACKWARD, {2: _WORDS}),
    normal(5, 4),
    normal(2, 3, 4),
)
case(layers.LINEAR, apply(layers.LINEAR), normal(2, 5, 3), normal(3, 4), normal(4))
case(
    layers.LINEAR,
    lambda x, w: Operator(layers.LINEAR).apply((x, w, None)),
    normal(3),
    normal(3, 4),
    name="one-row",
)
case(layers.LINEAR_X_BACKWARD, apply(layers.LINEAR_X_BACKWARD), normal(3, 4), normal(2, 4))
case(
    layers.LINEAR_WEIGHT_BACKWARD, apply(layers.LINEAR_WEIGHT_BACKWARD), normal(2, 3), normal(2, 4)
)
case(layers.LINEAR_BIAS_BACKWARD, apply(layers.LINEAR_BIAS_BACKWARD), normal(2, 5, 4))


def _attention(
    mask: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = False,
) -> Function:
    operator = Operator(layers.ATTENTION)
    options = (
        None if scale is None else Scalar.of(scale),
        None if softcap is None else Scalar.of(softcap),
        causal,
    )

    def function(
        query: br.Tensor, key: br.Tensor, value: br.Tensor, bias: br.Tensor | None = None
    ) -> br.Tensor:
        hidden = None if mask is None else _like(query, mask)
        return operator.apply((query, key, value, hidden, bias), (options,))

    return function


_QKV = (normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 3))
_HIDDEN = np.zeros((1, 1, 3, 5), bool)
_HIDDEN[..., 1, :] = True  # the second query attends to no key
_HIDDEN[..., 0, 2:] = True
case(layers.ATTENTION, _attention(), *_QKV)
case(layers.ATTENTION, _attention(causal=True), *_QKV, name="causal")
case(
    layers.ATTENTION,
    _attention(causal=True, scale=0.3),
    *(_QKV[1], _QKV[0], _QKV[2][:, :, :3]),
    name="causal-without-keys",
)
case(layers.ATTENTION, _attention(_HIDDEN, softcap=1.3), *_QKV, name="masked")
case(
    layers.ATTENTION,
    _attention(_HIDDEN, scale=0.7),
    *_QKV,
    normal(1, 2, 1, 5),
    name="biased",
)
_TARGETS, _STEPS, _LENGTHS = np.array([[1, 2, 3], [2, 2, 0]]), np.array([5, 4]), np.array([3, 2])


def _ctc(x: br.Tensor) -> br.Tensor:
    # Burn's and PyTorch's gradient holds for log-probabilities that are a log-softmax.
    fixed = [_like(x, array) for array in (_TARGETS, _STEPS, _LENGTHS)]
    return Operator(layers.CTC_LOSS).apply((x.log_softmax(axis=-1), *fixed), (0,))


case(layers.CTC_LOSS, _ctc, normal(5, 2, 4), second_order_refusal="CtcLossBackward")

# -- Convolutions ---------------------------------------------------------------------------------

_CONVOLUTIONS = {
    1: (
        *(convolution_rows.CONV1D, convolution_rows.CONV1D_X_BACKWARD),
        *(convolution_rows.CONV1D_WEIGHT_BACKWARD, convolution_rows.CONV1D_BIAS_BACKWARD),
        convolution_rows.CONV_TRANSPOSE1D,
    ),
    2: (
        *(convolution_rows.CONV2D, convolution_rows.CONV2D_X_BACKWARD),
        *(convolution_rows.CONV2D_WEIGHT_BACKWARD, convolution_rows.CONV2D_BIAS_BACKWARD),
        convolution_rows.CONV_TRANSPOSE2D,
    ),
    3: (
        *(convolution_rows.CONV3D, convolution_rows.CONV3D_X_BACKWARD),
        *(convolution_rows.CONV3D_WEIGHT_BACKWARD, convolution_rows.CONV3D_BIAS_BACKWARD),
        convolution_rows.CONV_TRANSPOSE3D,
    ),
}


def _convolutions(spatial: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    forward, to_x, to_weight, to_bias, _ = _CONVOLUTIONS[spatial]
    kernel = (3, 2, 2)[:spatial]
    sizes = (5, 6)[:spatial] if spatial < 3 else (4, 3, 4)
    options = ((stride,) * spatial, (padding,) * spatial, (dilation,) * spatial, groups)
    x, weight = normal(1, 2, *sizes), normal(4, 2 // groups, *kernel)
    windows = [
        (size + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        for size, k in zip(sizes, kernel, strict=True)
    ]
    output, name = normal(1, 4, *windows), f"stride-{stride}"
    case(forward, apply(forward, options), x, weight, normal(4), name=name)
    case(to_x, apply(to_x, options), x, weight, output, name=name)
    case(to_weight, apply(to_weight, options), x, weight, output, name=name)
    case(to_bias, apply(to_bias), x, normal(4), output, name=name)


def _transposed(
    spatial: int, stride: int, padding: int, extra: int, dilation: int, groups: int
) -> None:
    row = _CONVOLUTIONS[spatial][4]
    pairs = [(number,) * spatial for number in (stride, padding, extra, dilation)]
    x, weight = normal(1, 4, *(3, 2, 2)[:spatial]), normal(4, 2 // groups, *(3, 2, 2)[:spatial])
    name = f"stride-{stride}-extra-{extra}"
    case(row, apply(row, (*pairs, groups)), x, weight, normal(2), name=name)


for _spatial in (1, 2, 3):
    _convolutions(_spatial, 1, 0, 1, 1)
    _convolutions(_spatial, 2, 1, 1, 2)
    _transposed(_spatial, 1, 0, 0, 1, 1)
    _transposed(_spatial, 2, 1, 1, 1, 2)
    _transposed(_spatial, 2, 0, 3, 1, 1)
    _transposed(_spatial, 1, 1, 1, 2, 1)
    _transposed(_spatial, 1, 2, 2, 3, 2)
_convolutions(2, 1, 2, 2, 1)
_convolutions(1, 3, 0, 1, 1)
case(
    convolution_rows.DEFORMABLE_CONV2D,
    apply(convolution_rows.DEFORMABLE_CONV2D, ((1, 1), (1, 1), (1, 1), 1, 1)),
    normal(1, 2, 3, 3),
    between(0.1, 0.4, 1, 18, 3, 3),
    normal(2, 2, 3, 3),
    between(0.3, 0.9, 1, 9, 3, 3),
    normal(2),
    second_order_refusal="DeformableConv2dBackward",
)
case(
    convolution_rows.DEFORMABLE_CONV2D,
    lambda x, offset, weight: Operator(convolution_rows.DEFORMABLE_CONV2D).apply(
        (x, offset, weight, None, None), (((2, 2), (0, 0), (1, 1), 2, 1),)
    ),
    normal(1, 2, 4, 4),
    between(0.1, 0.4, 1, 8, 2, 2),
    normal(2, 1, 2, 2),
    name="without-mask",
    second_order_refusal="DeformableConv2dBackward",
)

# -- Pooling --------------------------------------------------------------------------------------

for _ceil in (False, True):
    for _counted in (False, True):
        case(
            pooling_rows.AVG_POOL1D,
            apply(pooling_rows.AVG_POOL1D, 3, 2, 1, _counted, _ceil),
            normal(2, 2, 8),
            name=f"{_counted}-{_ceil}",
        )
        case(
            pooling_rows.AVG_POOL2D,
            apply(pooling_rows.AVG_POOL2D, (3, 2), (2, 1), (1, 1), _counted, _ceil),
            normal(1, 2, 6, 5),
            name=f"{_counted}-{_ceil}",
        )
    case(
        pooling_rows.MAX_POOL1D,
        apply(pooling_rows.MAX_POOL1D, 3, 2, 1, 1, _ceil),
        distinct(1, 2, 8),
        name=str(_ceil),
    )
    case(
        pooling_rows.MAX_POOL2D,
        apply(pooling_rows.MAX_POOL2D, (3, 2), (2, 1), (1, 1), (1, 2), _ceil),
        distinct(1, 2, 6, 5),
        name=str(_ceil),
    )
case(
    pooling_rows.AVG_POOL1D_BACKWARD,
    apply(pooling_rows.AVG_POOL1D_BACKWARD, 3, 2, 1, True, False),
    normal(2, 2, 7),
    normal(2, 2, 4),
)
case(
    pooling_rows.AVG_POOL2D_BACKWARD,
    apply(pooling_rows.AVG_POOL2D_BACKWARD, (2, 2), (2, 2), (0, 0), True, False),
    normal(1, 2, 6, 6),
    normal(1, 2, 3, 3),
)
case(pooling_rows.ADAPTIVE_AVG_POOL1D, apply(pooling_rows.ADAPTIVE_AVG_POOL1D, 3), normal(1, 2, 7))
case(
    pooling_rows.ADAPTIVE_AVG_POOL2D,
    apply(pooling_rows.ADAPTIVE_AVG_POOL2D, (3, 2)),
    normal(1, 2, 7, 5),
)
case(
    pooling_rows.ADAPTIVE_AVG_POOL1D_BACKWARD,
    apply(pooling_rows.ADAPTIVE_AVG_POOL1D_BACKWARD),
    normal(1, 2, 7),
    normal(1, 2, 3),
)
case(
    pooling_rows.ADAPTIVE_AVG_POOL2D_BACKWARD,
    apply(pooling_rows.ADAPTIVE_AVG_POOL2D_BACKWARD),
    normal(1, 2, 7, 5),
    normal(1, 2, 3, 2),
)
_MAX_1D = (3, 2, 1, 1, False)
_MAX_2D = ((3, 2), (2, 1), (1, 1), (1, 1), False)
case(
    pooling_rows.MAX_POOL1D_WITH_INDICES,
    lambda x: Operator(pooling_rows.MAX_POOL1D_WITH_INDICES).apply_all((x,), _MAX_1D)[0],
    distinct(1, 2, 7),
)
case(
    pooling_rows.MAX_POOL2D_WITH_INDICES,
    lambda x: Operator(pooling_rows.MAX_POOL2D_WITH_INDICES).apply_all((x,), _MAX_2D)[0],
    distinct(1, 2, 6, 5),
)


def _spread_maxima(row: Row, indexed: Row, x: Array, window: tuple[Any, ...]) -> Function:
    def function(grad: br.Tensor) -> br.Tensor:
        image = _like(grad, x)
        _, indices = Operator(indexed).apply_all((image,), window)
        return Operator(row).apply((image, grad, indices), window)

    return function


case(
    pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
    _spread_maxima(
        pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
        pooling_rows.MAX_POOL1D_WITH_INDICES,
        distinct(1, 2, 7),
        _MAX_1D,
    ),
    normal(1, 2, 4),
)
case(
    pooling_rows.MAX_POOL2D_WITH_INDICES_BACKWARD,
    _spread_maxima(
        pooling_rows.MAX_POOL2D_WITH_INDICES_BACKWARD,
        pooling_rows.MAX_POOL2D_WITH_INDICES,
        distinct(1, 2, 6, 5),
        _MAX_2D,
    ),
    normal(1, 2, 3, 6),
)
case(
    pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
    _spread_maxima(
        pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
        pooling_rows.MAX_POOL1D_WITH_INDICES,
        distinct(1, 2, 3),
        (2, 1, 1, 4, True),
    ),
    normal(1, 2, 1),
    name="padding-only",
)

# -- Elementwise ----------------------------------------------------------------------------------

for _row in (elementwise_rows.EXPM1, elementwise_rows.LOG2, elementwise_rows.LOG10):
    case(_row, unary(_row), between(0.3, 2, 2, 3))
case(elementwise_rows.COPYSIGN, binary(elementwise_rows.COPYSIGN), distinct(2, 3), distinct(3))
case(
    elementwise_rows.FLOOR_DIVIDE,
    binary(elementwise_rows.FLOOR_DIVIDE),
    np.array([1.3, 2.9, -1.1]),
    np.array([0.7, -0.4, 0.6]),
)
case(
    elementwise_rows.FLOOR_DIVIDE_SCALAR,
    scalar(elementwise_rows.FLOOR_DIVIDE_SCALAR, 0.7),
    np.array([1.3, 2.9, -1.1]),
)
case(elementwise_rows.LOG_ADD_EXP, binary(elementwise_rows.LOG_ADD_EXP), normal(2, 3), normal(3))

# -- Linear algebra -------------------------------------------------------------------------------


def _weighted(*results: br.Tensor) -> br.Tensor:
    """Join several results, each times fixed weights: some plain sums of elements are constant."""
    parts = []
    for place, x in enumerate(results):
        weights = np.random.default_rng(place).normal(size=x.shape)
        parts.append(br.flatten(x * _like(x, weights)))
    return br.concat(parts)


def _definite(x: br.Tensor) -> br.Tensor:
    return x @ x.mT + _like(x, np.eye(x.shape[-1]))


def _symmetric(x: br.Tensor) -> br.Tensor:
    return x + x.mT


case(matrix_rows.INV, br.linalg.inv, normal(2, 3, 3))
case(matrix_rows.DET, br.linalg.det, normal(2, 3, 3))
case(matrix_rows.SLOGDET, lambda x: _weighted(*br.linalg.slogdet(x)), normal(2, 3, 3))
case(matrix_rows.SOLVE, br.linalg.solve, normal(2, 3, 3), normal(2, 3, 2))
case(matrix_rows.SOLVE, br.linalg.solve, normal(3, 3), normal(2, 3, 2), name="one-matrix")
case(matrix_rows.SOLVE, br.linalg.solve, normal(2, 3, 3), normal(3), name="vector")
# Functions of symmetric matrices read one triangle, so the cases make their arguments symmetric.
for _upper in (False, True):
    case(
        matrix_rows.CHOLESKY,
        lambda x, upper=_upper: br.linalg.cholesky(_definite(x), upper=upper),
        normal(2, 3, 3),
        name="upper" if _upper else "lower",
    )
case(matrix_rows.EIGH, lambda x: _weighted(*br.linalg.eigh(_symmetric(x))), normal(2, 4, 4))
case(
    matrix_rows.EIGH,
    lambda x: br.linalg.eigh(_symmetric(x)).eigenvectors,
    normal(3, 3),
    name="vectors",
)
case(matrix_rows.EIGVALSH, lambda x: br.linalg.eigvalsh(_symmetric(x)), normal(2, 4, 4))
for _shape, _name in (((2, 4, 3), "tall"), ((3, 5), "wide"), ((3, 3), "square")):
    case(matrix_rows.QR, lambda x: _weighted(*br.linalg.qr(x)), normal(*_shape), name=_name)
    case(
        matrix_rows.SVD,
        lambda x: _weighted(*br.linalg.svd(x, full_matrices=False)),
        normal(*_shape),
        name=_name,
    )
    case(matrix_rows.SVDVALS, br.linalg.svdvals, normal(*_shape), name=_name)
case(matrix_rows.QR, lambda x: br.linalg.qr(x).R, normal(4, 3), name="triangular-factor")
case(
    matrix_rows.QR,
    lambda x: _weighted(*br.linalg.qr(x, mode="complete")),
    normal(3, 5),
    name="complete",
)
case(matrix_rows.SVD, lambda x: br.linalg.svd(x, full_matrices=False).U, normal(3, 5), name="left")

# -- Sampling -------------------------------------------------------------------------------------

for _mode in ("Nearest", "Bilinear", "Bicubic", "Lanczos3"):
    case(
        sampling.INTERPOLATE,
        apply(sampling.INTERPOLATE, (5, 7), (_mode, True)),
        normal(1, 2, 4, 3),
        name=_mode,
    )
case(
    sampling.INTERPOLATE,
    apply(sampling.INTERPOLATE, (2, 3), ("Bilinear", False)),
    normal(1, 2, 4, 3),
    name="smaller",
)
case(
    sampling.INTERPOLATE_BACKWARD,
    apply(sampling.INTERPOLATE_BACKWARD, (5, 7), ("Bilinear", True)),
    normal(1, 2, 4, 3),
    normal(1, 2, 5, 7),
)
for _samples, _size in ((None, 8), (None, 7), (8, 6), (8, 11), (1, 3), (5, 5)):
    case(
        sampling.RFFT,
        lambda x, n=_samples: br.concat(list(Operator(sampling.RFFT).apply_all((x,), (1, n))), 1),
        normal(2, _size),
        name=f"{_size}-{_samples}",
    )
case(
    sampling.RFFT,
    lambda x: Operator(sampling.RFFT).apply_all((x,), (0, None))[1],
    normal(6, 2),
    name="imaginary-only",
)
for _samples, _size in ((None, 5), (8, 5), (8, 4), (8, 7), (7, 4), (1, 2)):
    case(
        sampling.IRFFT,
        lambda re, im, n=_samples: Operator(sampling.IRFFT).apply((re, im), (1, n)),
        normal(2, _size),
        normal(2, _size),
        name=f"{_size}-{_samples}",
    )


# -- Complex numbers ------------------------------------------------------------------------------

# The inputs of these cases are the real parts of all complex inputs, and then the imaginary parts.
# The results are the real and imaginary parts. So finite differences check both.


def of_parts(function: Function) -> Function:
    """Return a function of the parts of complex tensors that returns the parts of its result."""

    def split(*parts: br.Tensor) -> br.Tensor:
        half = len(parts) // 2
        pairs = zip(parts[:half], parts[half:], strict=True)
        result = function(*[br.complex(real, imag) for real, imag in pairs])
        if not result.dtype.is_complex:
            return result
        return br.stack([result.real, result.imag])

    return split


def complex_case(row: Row, function: Function, *shapes: tuple[int, ...], name: str = "") -> None:
    # Away from 0, and from the cuts of inverse functions along the axes.
    parts = [between(0.4, 1.2, *shape) for shape in (*shapes, *shapes)]
    case(row, of_parts(function), *parts, name=f"complex-{name}" if name else "complex")


case(complex_rows.FROM_PARTS, lambda x, y: br.abs(br.complex(x, y)), normal(2, 3), normal(2, 3))
case(
    complex_rows.FROM_PARTS,
    lambda x, y: br.abs(br.complex(x, y) * 2j),
    normal(2, 1),
    normal(1, 3),
    name="broadcast",
)
case(complex_rows.INTO_COMPLEX, lambda x: (x.astype(br.complex128) * (1 + 2j)).imag, normal(3))
for _row in (
    complex_rows.REAL,
    complex_rows.IMAGINARY,
    complex_rows.ABS,
    complex_rows.ANGLE,
    complex_rows.CONJUGATE,
    complex_rows.NEGATIVE,
):
    complex_case(_row, unary(_row), (2, 3))
for _row in (
    *(floats.EXP, floats.LOG, floats.LOG1P, floats.SQRT, floats.COS, floats.COSH, floats.SIN),
    *(floats.SINH, floats.TAN, floats.TANH, floats.ARC_COS, floats.ARC_COSH, floats.ARC_SIN),
    *(floats.ARC_SINH, floats.ARC_TAN, floats.ARC_TANH, floats.RECIP),
):
    complex_case(_row, unary(_row), (4,))
for _row in (numeric.ADD, numeric.SUB, numeric.MUL, numeric.DIV, floats.POWF):
    complex_case(_row, binary(_row), (2, 1), (1, 3))
for _row in (numeric.ADD_SCALAR, numeric.SUB_SCALAR, numeric.MUL_SCALAR, numeric.DIV_SCALAR):
    complex_case(_row, scalar(_row, 1.7), (3,))
complex_case(floats.MATMUL, binary(floats.MATMUL), (2, 2, 3), (3, 2))
complex_case(floats.POWF_SCALAR, scalar(floats.POWF_SCALAR, 1.5), (3,))
complex_case(numeric.POWI_SCALAR, lambda x: x**3, (3,))
complex_case(numeric.SUM, lambda x: x.sum(), (2, 3))
complex_case(numeric.SUM_DIM, lambda x: x.sum(axis=0), (2, 3))
complex_case(numeric.MEAN, lambda x: x.mean() * x, (2, 3))
complex_case(numeric.MEAN_DIM, lambda x: x.mean(axis=1), (2, 3))
complex_case(numeric.PROD, lambda x: x.prod(), (4,))
complex_case(numeric.PROD_DIM, lambda x: x.prod(axis=1), (2, 3))
complex_case(numeric.CUM_SUM, lambda x: br.cumulative_sum(x), (4,))
complex_case(numeric.CUM_PROD, lambda x: br.cumulative_prod(x), (4,))
complex_case(base.RESHAPE, into(base.RESHAPE, (6,)), (2, 3))
complex_case(base.SLICE, lambda x: x[::-1, 1:], (2, 3))
complex_case(base.SELECT, lambda x: x.take(_like(x, _ROWS), axis=0), (3, 2))
complex_case(base.CAT, lambda x, y: br.concat([x, y]), (2, 3), (1, 3))
complex_case(base.EXPAND, into(base.EXPAND, (2, 3)), (1, 3))
complex_case(
    base.MASK_WHERE,
    lambda x, y: br.where(_like(x, np.array([True, False, True])), x, y),
    (3,),
    (3,),
)
complex_case(base.CAST, lambda x: x.astype(br.complex128), (3,))


# Singular vectors and eigenvectors are unique only up to phases, so the functions of these cases
# must not depend on the phases.


def matrix_case(row: Row, function: Function, *shapes: tuple[int, ...], name: str = "") -> None:
    parts = [normal(*shape) for shape in (*shapes, *shapes)]
    case(row, of_parts(function), *parts, name=f"complex-{name}" if name else "complex")


def _weighted_complex(*results: br.Tensor) -> br.Tensor:
    """Join results times fixed complex weights."""
    parts = []
    for place, x in enumerate(results):
        draw = np.random.default_rng(place)
        weights = draw.normal(size=x.shape) + 1j * draw.normal(size=x.shape)
        parts.append(br.flatten(x * _like(x, weights)))
    return br.concat(parts)


def _adjoint(x: br.Tensor) -> br.Tensor:
    return br.conj(x.mT)


def _positive(x: br.Tensor) -> br.Tensor:
    return x @ _adjoint(x) + _like(x, np.eye(x.shape[-1]))


def _between_phases(x: br.Tensor) -> br.Tensor:
    """Return the columns of matrices times the conjugates of their first elements."""
    return x * br.conj(x[..., :1, :])


def _of_singular_vectors(x: br.Tensor) -> br.Tensor:
    u, s, vh = br.linalg.svd(x, full_matrices=False)
    both = u * _like(x, np.arange(1.0, u.shape[-1] + 1)) @ vh
    return _weighted_complex(both, _between_phases(u), _between_phases(_adjoint(vh)), s)


def _of_hermitian(x: br.Tensor) -> br.Tensor:
    values, vectors = br.linalg.eigh(x + _adjoint(x))
    return _weighted_complex(values, _between_phases(vectors))


def _of_general(x: br.Tensor) -> br.Tensor:
    values, vectors = br.linalg.eig(x)
    return _weighted_complex(values, _between_phases(vectors))


def _parts_of(function: Function) -> Function:
    """Return a function of a real tensor that returns the parts of complex results."""

    def parts(x: br.Tensor) -> br.Tensor:
        result = function(x)
        return br.stack([result.real, result.imag])

    return parts


matrix_case(matrix_rows.INV, br.linalg.inv, (2, 3, 3))
matrix_case(matrix_rows.DET, br.linalg.det, (2, 3, 3))
matrix_case(matrix_rows.SLOGDET, lambda x: _weighted_complex(*br.linalg.slogdet(x)), (2, 3, 3))
matrix_case(matrix_rows.SLOGDET, lambda x: br.linalg.slogdet(x).sign, (3, 3), name="sign")
matrix_case(matrix_rows.SLOGDET, lambda x: br.linalg.slogdet(x).logabsdet, (3, 3), name="logarithm")
matrix_case(matrix_rows.SOLVE, br.linalg.solve, (2, 3, 3), (3, 2))
for _upper in (False, True):
    matrix_case(
        matrix_rows.CHOLESKY,
        lambda x, upper=_upper: br.linalg.cholesky(_positive(x), upper=upper),
        (2, 3, 3),
        name="upper" if _upper else "lower",
    )
matrix_case(matrix_rows.EIGH, _of_hermitian, (3, 3))
matrix_case(matrix_rows.EIGVALSH, lambda x: br.linalg.eigvalsh(x + _adjoint(x)), (2, 3, 3))
matrix_case(matrix_rows.EIG, _of_general, (3, 3))
case(matrix_rows.EIG, _parts_of(_of_general), normal(2, 3, 3), name="real")
matrix_case(matrix_rows.EIGVALS, br.linalg.eigvals, (3, 3))
case(matrix_rows.EIGVALS, _parts_of(br.linalg.eigvals), normal(2, 3, 3), name="real")
for _shape, _name in (((2, 4, 3), "tall"), ((3, 5), "wide"), ((3, 3), "square")):
    matrix_case(matrix_rows.QR, lambda x: _weighted_complex(*br.linalg.qr(x)), _shape, name=_name)
    matrix_case(matrix_rows.SVD, _of_singular_vectors, _shape, name=_name)
    matrix_case(matrix_rows.SVDVALS, br.linalg.svdvals, _shape, name=_name)
matrix_case(
    matrix_rows.SVD,
    lambda x: _between_phases(br.linalg.svd(x, full_matrices=False).U),
    (4, 3),
    name="left",
)
matrix_case(
    matrix_rows.SVD,
    lambda x: _between_phases(_adjoint(br.linalg.svd(x, full_matrices=False).Vh)),
    (3, 4),
    name="right",
)


def transform(row: Row, axes: tuple[int, ...], sizes: tuple[int, ...], norm: str) -> Function:
    return apply(row, axes, sizes, norm)


for _row in (fourier_rows.FFT, fourier_rows.INVERSE_FFT, fourier_rows.INVERSE_REAL_FFT):
    complex_case(_row, transform(_row, (1,), (4,), "Backward"), (2, 4))
    complex_case(_row, transform(_row, (0, 2), (3, 6), "Ortho"), (3, 2, 4), name="several")
    complex_case(_row, transform(_row, (1, 0), (5, 2), "Forward"), (3, 4), name="cut-and-padded")
for _sizes, _norm in (((6,), "Backward"), ((5,), "Ortho"), ((9,), "Forward")):
    case(
        fourier_rows.REAL_FFT,
        lambda x, _sizes=_sizes, _norm=_norm: br.stack(
            [(y := Operator(fourier_rows.REAL_FFT).apply((x,), ((1,), _sizes, _norm))).real, y.imag]
        ),
        normal(2, 7),
        name=f"{_sizes[0]}-{_norm}",
    )
case(
    fourier_rows.REAL_FFT,
    lambda x: br.abs(br.fft.rfftn(x, s=(4, 3), axes=(0, 2))),
    normal(3, 2, 5),
    name="several",
)
