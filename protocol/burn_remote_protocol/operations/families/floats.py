"""Rows of operations on floating-point tensors only."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    boolean,
    name_of,
    options,
    quantization_parameters,
    quantization_scheme,
    tensor_in,
    tensor_out,
    usize,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import FLOATS, INEXACT
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    broadcast,
    compare_scalar,
    created,
    into_int,
    same,
)
from burn_remote_protocol.operations.shape_rules.linear_rules import cross, matmul
from burn_remote_protocol.operations.shape_rules.pooling_rules import grid_sample
from burn_remote_protocol.operations.shape_rules.signal_rules import dequantize, quantize
from burn_remote_protocol.operations.shared_fields import (
    BINARY,
    INTERPOLATE_MODES,
    INTERPOLATE_MODES_SINCE,
    RANDOM_NUMBERS,
    SCALAR,
    UNARY,
)
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

EXP: Final = Row("Float", "Exp", UNARY, same(INEXACT), estimates.elementwise(10))
LOG: Final = Row("Float", "Log", UNARY, same(INEXACT), estimates.elementwise(10))
LOG1P: Final = Row("Float", "Log1p", UNARY, same(INEXACT), estimates.elementwise(15))
ERF: Final = Row(
    "Float",
    "Erf",
    UNARY,
    same(FLOATS),
    estimates.elementwise(60, 16, call_cost=20_000, converts=True),
)
POWF_SCALAR: Final = Row(
    "Float", "PowfScalar", SCALAR, same(INEXACT), estimates.elementwise(60, converts=True)
)
SQRT: Final = Row("Float", "Sqrt", UNARY, same(INEXACT), estimates.elementwise(4))
COS: Final = Row("Float", "Cos", UNARY, same(INEXACT), estimates.elementwise(25))
COSH: Final = Row("Float", "Cosh", UNARY, same(INEXACT), estimates.elementwise(25))
SIN: Final = Row("Float", "Sin", UNARY, same(INEXACT), estimates.elementwise(25))
SINH: Final = Row("Float", "Sinh", UNARY, same(INEXACT), estimates.elementwise(25))
TAN: Final = Row("Float", "Tan", UNARY, same(INEXACT), estimates.elementwise(25))
TANH: Final = Row("Float", "Tanh", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_COS: Final = Row("Float", "ArcCos", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_COSH: Final = Row("Float", "ArcCosh", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_SIN: Final = Row("Float", "ArcSin", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_SINH: Final = Row("Float", "ArcSinh", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_TAN: Final = Row("Float", "ArcTan", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_TANH: Final = Row("Float", "ArcTanh", UNARY, same(INEXACT), estimates.elementwise(25))
ARC_TAN2: Final = Row("Float", "ArcTan2", BINARY, broadcast(FLOATS), estimates.elementwise(40))
ROUND: Final = Row("Float", "Round", UNARY, same(FLOATS), estimates.elementwise(4))
FLOOR: Final = Row("Float", "Floor", UNARY, same(FLOATS), estimates.elementwise(2))
CEIL: Final = Row("Float", "Ceil", UNARY, same(FLOATS), estimates.elementwise(2))
TRUNC: Final = Row("Float", "Trunc", UNARY, same(FLOATS), estimates.elementwise(2))
INTO_INT: Final = Row(
    "Float", "IntoInt", UNARY, into_int(FLOATS), estimates.elementwise(10, 12, call_cost=4_000)
)
MATMUL: Final = Row("Float", "Matmul", BINARY, matmul(INEXACT), estimates.MATMUL)
CROSS: Final = Row(
    "Float",
    "Cross",
    (tensor_in("lhs"), tensor_in("rhs"), tensor_out("out"), usize("dim")),
    cross,
    estimates.elementwise(15, 16, call_cost=5_000),
)
RANDOM: Final = Row(
    "Float",
    "Random",
    RANDOM_NUMBERS,
    created(FLOATS),
    # Numbers are drawn in float64; those of 16 bits are rounded once, in several passes.
    estimates.elementwise(20, 16, halves=44, call_cost=5_000),
)
RECIP: Final = Row("Float", "Recip", UNARY, same(INEXACT), estimates.elementwise(3))
IS_NAN: Final = Row("Float", "IsNan", UNARY, compare_scalar(INEXACT), estimates.elementwise(2))
IS_INF: Final = Row("Float", "IsInf", UNARY, compare_scalar(INEXACT), estimates.elementwise(2))
QUANTIZE: Final = Row(
    "Float",
    "Quantize",
    (
        tensor_in("tensor"),
        quantization_parameters("qparams"),
        quantization_scheme("scheme"),
        tensor_out("out"),
    ),
    quantize,
    estimates.per_element(20, 16),
)
DEQUANTIZE: Final = Row("Float", "Dequantize", UNARY, dequantize, estimates.per_element(8, 1))
GRID_SAMPLE2D: Final = Row(
    "Float",
    "GridSample2d",
    (
        tensor_in("tensor"),
        tensor_in("grid"),
        options(
            "options",
            name_of("mode", *INTERPOLATE_MODES, since=INTERPOLATE_MODES_SINCE),
            name_of("padding_mode", "Zeros", "Border", "Reflection"),
            boolean("align_corners"),
        ),
        tensor_out("out"),
    ),
    grid_sample,
    estimates.GRID_SAMPLE,
)
POWF: Final = Row("Float", "Powf", BINARY, broadcast(INEXACT), estimates.elementwise(60))

HYPOT: Final = Row(
    "Float", "Hypot", BINARY, broadcast(FLOATS), estimates.elementwise(15), SINCE_BURN_0_22
)

ROWS: Final = (
    EXP, LOG, LOG1P, ERF, POWF_SCALAR, SQRT, COS, COSH, SIN, SINH, TAN, TANH, ARC_COS, ARC_COSH,
    ARC_SIN, ARC_SINH, ARC_TAN, ARC_TANH, ARC_TAN2, ROUND, FLOOR, CEIL, TRUNC, INTO_INT, MATMUL,
    CROSS, RANDOM, RECIP, IS_NAN, IS_INF, QUANTIZE, DEQUANTIZE, GRID_SAMPLE2D, POWF,
    HYPOT,
)  # fmt: skip
