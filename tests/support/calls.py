"""Calls that issue every row of the operation table, on a device of the test's choice."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G
from burn_remote.dispatch.operators import Operator
from burn_remote.dispatch.rows_with_fallbacks import CHOICES
from burn_remote_protocol.operations.families import numeric, search_rows
from burn_remote_protocol.operations.row import Row

__all__ = ["CALLS", "WITHOUT_A_DEVICE", "calling_on", "public_call", "public_functions"]

SCHEME: Final = br.QuantScheme("Q8S", "F32", "Native", None, "Symmetric")

_device: ContextVar[br.Device] = ContextVar("device")


@contextlib.contextmanager
def calling_on(device: br.Device) -> Iterator[None]:
    """Let the calls of the table create their tensors on a device."""
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)


def on_device() -> br.Device:
    """Return the device of ``calling_on``."""
    return _device.get()


def f(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.float32), device=_device.get())


def i(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.int64), device=_device.get())


def c(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.complex64), device=_device.get())


def b(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.bool_), device=_device.get())


def composed(row: Row) -> Callable[..., object]:
    """Return the function that composes a row from rows of Burn 0.21, for sessions without it."""
    return next(choice.composed for choice in CHOICES if choice.row is row)


CALLS: Final[dict[tuple[str, str], Callable[[], object]]] = {
    ("Base", "Reshape"): lambda: f(2, 3).reshape(3, 2),
    ("Base", "SwapDims"): lambda: f(2, 3).T,
    ("Base", "Permute"): lambda: f(2, 3, 4).permute_dims((2, 0, 1)),
    ("Base", "Flip"): lambda: f(2, 3).flip(axis=0),
    ("Base", "Expand"): lambda: f(2, 1).broadcast_to((2, 3)),
    ("Base", "Unfold"): lambda: f(5).unfold(0, 3, 1),
    ("Base", "Slice"): lambda: f(5)[1:3],
    ("Base", "SliceAssign"): lambda: f(5).set(slice(1, 3), 0),
    ("Base", "Select"): lambda: f(5).take(i(2), axis=0),
    ("Base", "SelectAssign"): lambda: f(5).set(i(2), 0),
    ("Base", "MaskWhere"): lambda: br.where(b(5), f(5), f(5)),
    ("Base", "MaskFill"): lambda: f(5).mask_fill(b(5), 0),
    ("Base", "Gather"): lambda: f(2, 3).gather(1, i(2, 1)),
    ("Base", "Scatter"): lambda: f(2, 3).scatter(1, i(2, 1), f(2, 1), update="add"),
    ("Base", "ScatterNd"): lambda: f(2, 3).scatter_nd(i(4, 2), f(4)),
    ("Base", "GatherNd"): lambda: f(2, 3).gather_nd(i(4, 2)),
    ("Base", "Equal"): lambda: f(2) == f(2),
    ("Base", "EqualElem"): lambda: f(2) == 1,
    ("Base", "NotEqual"): lambda: f(2) != f(2),
    ("Base", "NotEqualElem"): lambda: f(2) != 1,
    ("Base", "All"): lambda: br.all(f(2, 3)),
    ("Base", "Any"): lambda: br.any(f(2, 3)),
    ("Base", "AllDim"): lambda: br.all(f(2, 3), axis=0),
    ("Base", "AnyDim"): lambda: br.any(f(2, 3), axis=0),
    ("Base", "RepeatDim"): lambda: f(2).tile(3),
    ("Base", "Cat"): lambda: br.concat([f(2), f(3)]),
    ("Base", "Cast"): lambda: f(2).astype(br.float64),
    ("Base", "Empty"): lambda: br.empty((2,), device=_device.get()),
    ("Base", "Ones"): lambda: br.ones((2,), device=_device.get()),
    ("Base", "Zeros"): lambda: br.zeros((2,), device=_device.get()),
    ("Numeric", "Add"): lambda: f(2) + f(2),
    ("Numeric", "AddScalar"): lambda: f(2) + 1,
    ("Numeric", "Sub"): lambda: f(2) - f(2),
    ("Numeric", "SubScalar"): lambda: f(2) - 1,
    ("Numeric", "Div"): lambda: f(2) / f(2),
    ("Numeric", "DivScalar"): lambda: f(2) / 2,
    ("Numeric", "Rem"): lambda: f(2) % f(2),
    ("Numeric", "RemScalar"): lambda: f(2) % 2,
    ("Numeric", "Mul"): lambda: f(2) * f(2),
    ("Numeric", "MulScalar"): lambda: f(2) * 2,
    ("Numeric", "Abs"): lambda: abs(f(2)),
    ("Numeric", "Full"): lambda: br.full((2,), 3, device=_device.get()),
    ("Numeric", "MeanDim"): lambda: f(2, 3).mean(axis=0),
    ("Numeric", "Mean"): lambda: f(2, 3).mean(),
    ("Numeric", "Sum"): lambda: f(2, 3).sum(),
    ("Numeric", "SumDim"): lambda: f(2, 3).sum(axis=0),
    ("Numeric", "Prod"): lambda: f(2, 3).prod(),
    ("Numeric", "ProdDim"): lambda: f(2, 3).prod(axis=0),
    ("Numeric", "Greater"): lambda: f(2) > f(2),
    ("Numeric", "GreaterElem"): lambda: f(2) > 1,
    ("Numeric", "GreaterEqual"): lambda: f(2) >= f(2),
    ("Numeric", "GreaterEqualElem"): lambda: f(2) >= 1,
    ("Numeric", "Lower"): lambda: f(2) < f(2),
    ("Numeric", "LowerElem"): lambda: f(2) < 1,
    ("Numeric", "LowerEqual"): lambda: f(2) <= f(2),
    ("Numeric", "LowerEqualElem"): lambda: f(2) <= 1,
    ("Numeric", "ArgMax"): lambda: f(2, 3).argmax(axis=0),
    ("Numeric", "ArgTopK"): lambda: f(5).argtopk(2),
    ("Numeric", "TopK"): lambda: composed(numeric.TOP_K_WITH_INDICES)(f(5), 0, 2),
    ("Numeric", "ArgMin"): lambda: f(2, 3).argmin(axis=0),
    ("Numeric", "Max"): lambda: f(2, 3).max(),
    ("Numeric", "MaxDimWithIndices"): lambda: f(2, 3).max_with_indices(0),
    ("Numeric", "MinDimWithIndices"): lambda: f(2, 3).min_with_indices(0),
    ("Numeric", "Min"): lambda: f(2, 3).min(),
    ("Numeric", "MaxDim"): lambda: f(2, 3).max(axis=0),
    ("Numeric", "MinDim"): lambda: f(2, 3).min(axis=0),
    ("Numeric", "MaxAbs"): lambda: f(2, 3).max_abs(),
    ("Numeric", "MaxAbsDim"): lambda: f(2, 3).max_abs(axis=0),
    ("Numeric", "Clamp"): lambda: f(2).clip(0, 1),
    ("Numeric", "Neg"): lambda: -f(2),
    ("Numeric", "Sign"): lambda: f(2).sign(),
    ("Numeric", "ClampMin"): lambda: f(2).clip(min=0),
    ("Numeric", "ClampMax"): lambda: f(2).clip(max=0),
    ("Numeric", "SumDims"): lambda: f(2, 3, 4).sum(axis=(0, 2)),
    ("Numeric", "Sort"): lambda: br.sort(f(5)),
    ("Numeric", "SortWithIndices"): lambda: br.sort_with_indices(f(5)),
    ("Numeric", "ArgSort"): lambda: br.argsort(f(5)),
    ("Numeric", "TopKWithIndices"): lambda: f(5).topk(2),
    ("Numeric", "Pad"): lambda: F.pad(f(5), (1, 2)),
    ("Numeric", "IntRandom"): lambda: br.random.integers(0, 9, (2,), device=_device.get()),
    ("Numeric", "Powi"): lambda: f(2) ** i(2),
    ("Numeric", "PowiScalar"): lambda: f(2) ** 2,
    ("Numeric", "CumSum"): lambda: f(2).cumulative_sum(),
    ("Numeric", "CumProd"): lambda: f(2).cumulative_prod(),
    ("Numeric", "CumMin"): lambda: f(2).cummin(),
    ("Numeric", "CumMax"): lambda: f(2).cummax(),
    ("Float", "Exp"): lambda: f(2).exp(),
    ("Float", "Log"): lambda: f(2).log(),
    ("Float", "Log1p"): lambda: f(2).log1p(),
    ("Float", "Erf"): lambda: f(2).erf(),
    ("Float", "PowfScalar"): lambda: f(2) ** 0.5,
    ("Float", "Sqrt"): lambda: f(2).sqrt(),
    ("Float", "Cos"): lambda: f(2).cos(),
    ("Float", "Cosh"): lambda: f(2).cosh(),
    ("Float", "Sin"): lambda: f(2).sin(),
    ("Float", "Sinh"): lambda: f(2).sinh(),
    ("Float", "Tan"): lambda: f(2).tan(),
    ("Float", "Tanh"): lambda: f(2).tanh(),
    ("Float", "ArcCos"): lambda: f(2).acos(),
    ("Float", "ArcCosh"): lambda: f(2).acosh(),
    ("Float", "ArcSin"): lambda: f(2).asin(),
    ("Float", "ArcSinh"): lambda: f(2).asinh(),
    ("Float", "ArcTan"): lambda: f(2).atan(),
    ("Float", "ArcTanh"): lambda: f(2).atanh(),
    ("Float", "ArcTan2"): lambda: br.atan2(f(2), f(2)),
    ("Float", "Round"): lambda: f(2).round(),
    ("Float", "Floor"): lambda: f(2).floor(),
    ("Float", "Ceil"): lambda: f(2).ceil(),
    ("Float", "Trunc"): lambda: f(2).trunc(),
    ("Float", "IntoInt"): lambda: f(2).astype(br.int32),
    ("Float", "Matmul"): lambda: f(2, 3) @ f(3, 2),
    ("Float", "Cross"): lambda: br.cross(f(2, 3), f(2, 3)),
    ("Float", "Random"): lambda: br.random.normal((2,), device=_device.get()),
    ("Float", "Recip"): lambda: f(2).reciprocal(),
    ("Float", "IsNan"): lambda: f(2).isnan(),
    ("Float", "IsInf"): lambda: f(2).isinf(),
    ("Float", "Quantize"): lambda: br.quantize(f(4, 32), SCHEME, scales=f(1)),
    ("Float", "Dequantize"): lambda: br.dequantize(br.quantize(f(4, 32), SCHEME, scales=f(1))),
    ("Float", "GridSample2d"): lambda: F.grid_sample(f(1, 2, 4, 4), f(1, 3, 3, 2)),
    ("Float", "Powf"): lambda: f(2) ** f(2),
    ("Int", "IntoFloat"): lambda: i(2).astype(br.float32),
    ("Int", "BitwiseAnd"): lambda: i(2) & i(2),
    ("Int", "BitwiseAndScalar"): lambda: i(2) & 1,
    ("Int", "BitwiseOr"): lambda: i(2) | i(2),
    ("Int", "BitwiseOrScalar"): lambda: i(2) | 1,
    ("Int", "BitwiseXor"): lambda: i(2) ^ i(2),
    ("Int", "BitwiseXorScalar"): lambda: i(2) ^ 1,
    ("Int", "BitwiseNot"): lambda: ~i(2),
    ("Int", "BitwiseLeftShift"): lambda: i(2) << i(2),
    ("Int", "BitwiseLeftShiftScalar"): lambda: i(2) << 1,
    ("Int", "BitwiseRightShift"): lambda: i(2) >> i(2),
    ("Int", "BitwiseRightShiftScalar"): lambda: i(2) >> 1,
    ("Int", "Matmul"): lambda: i(2, 3) @ i(3, 2),
    ("Bool", "IntoFloat"): lambda: b(2).astype(br.float32),
    ("Bool", "IntoInt"): lambda: b(2).astype(br.int64),
    ("Bool", "Not"): lambda: ~b(2),
    ("Bool", "And"): lambda: b(2) & b(2),
    ("Bool", "Or"): lambda: b(2) | b(2),
    ("LinearAlgebra", "Cholesky"): lambda: br.linalg.cholesky(f(3, 3)),
    ("LinearAlgebra", "Det"): lambda: br.linalg.det(f(3, 3)),
    ("LinearAlgebra", "Eig"): lambda: br.linalg.eig(f(3, 3)),
    ("LinearAlgebra", "Eigvals"): lambda: br.linalg.eigvals(f(3, 3)),
    ("LinearAlgebra", "Eigh"): lambda: br.linalg.eigh(f(3, 3)),
    ("LinearAlgebra", "Eigvalsh"): lambda: br.linalg.eigvalsh(f(3, 3)),
    ("LinearAlgebra", "Inv"): lambda: br.linalg.inv(f(3, 3)),
    ("LinearAlgebra", "Qr"): lambda: br.linalg.qr(f(4, 3)),
    ("LinearAlgebra", "Slogdet"): lambda: br.linalg.slogdet(f(3, 3)),
    ("LinearAlgebra", "Solve"): lambda: br.linalg.solve(f(3, 3), f(3)),
    ("LinearAlgebra", "Svd"): lambda: br.linalg.svd(f(4, 3)),
    ("LinearAlgebra", "Svdvals"): lambda: br.linalg.svdvals(f(4, 3)),
    ("Bool", "Xor"): lambda: b(2) ^ b(2),
    ("Activation", "Relu"): lambda: F.relu(f(2)),
    ("Activation", "ReluBackward"): lambda: G.relu_backward(f(2), f(2)),
    ("Activation", "LeakyRelu"): lambda: F.leaky_relu(f(2)),
    ("Activation", "PRelu"): lambda: F.prelu(f(2, 3), f(3)),
    ("Activation", "Gelu"): lambda: F.gelu(f(2)),
    ("Activation", "GeluBackward"): lambda: G.gelu_backward(f(2), f(2)),
    ("Activation", "Sigmoid"): lambda: F.sigmoid(f(2)),
    ("Activation", "SigmoidBackward"): lambda: G.sigmoid_backward(f(2), f(2)),
    ("Activation", "HardSigmoid"): lambda: F.hard_sigmoid(f(2)),
    ("Activation", "LogSigmoid"): lambda: F.logsigmoid(f(2)),
    ("Activation", "LogSigmoidBackward"): lambda: G.log_sigmoid_backward(f(2), f(2)),
    ("Activation", "Softmax"): lambda: F.softmax(f(2, 3)),
    ("Activation", "LogSoftmax"): lambda: F.log_softmax(f(2, 3)),
    ("Activation", "Softmin"): lambda: F.softmin(f(2, 3)),
    ("Elementwise", "CopySign"): lambda: br.copysign(f(2), f(2)),
    ("Elementwise", "Expm1"): lambda: br.expm1(f(2)),
    ("Elementwise", "Log10"): lambda: br.log10(f(2)),
    ("Elementwise", "Log2"): lambda: br.log2(f(2)),
    ("Elementwise", "FloorDivide"): lambda: br.floor_divide(f(2), f(2)),
    ("Elementwise", "FloorDivideScalar"): lambda: br.floor_divide(f(2), 3.0),
    ("Elementwise", "LogAddExp"): lambda: br.logaddexp(f(2), f(2)),
    ("Elementwise", "NextAfter"): lambda: br.nextafter(f(2), f(2)),
    ("Float", "Hypot"): lambda: br.hypot(f(2), f(2)),
    ("Search", "Nonzero"): lambda: br.nonzero(f(2, 3), size=6),
    ("Search", "UniqueOrder"): lambda: Operator(search_rows.UNIQUE_ORDER).apply_all((f(3),)),
    ("Search", "Unique"): lambda: Operator(search_rows.UNIQUE).apply_all((f(3), i(3)), (2,)),
    ("Search", "SearchSorted"): lambda: br.searchsorted(f(3), f(2)),
    ("Complex", "FromParts"): lambda: br.complex(f(2), f(2)),
    ("Complex", "IntoComplex"): lambda: f(2).astype(br.complex64),
    ("Complex", "Real"): lambda: c(2).real,
    ("Complex", "Imaginary"): lambda: c(2).imag,
    ("Complex", "Abs"): lambda: abs(c(2)),
    ("Complex", "Angle"): lambda: c(2).angle(),
    ("Complex", "Conjugate"): lambda: c(2).conj(),
    ("Complex", "Negative"): lambda: -c(2),
    ("Fourier", "Fft"): lambda: br.fft.fft(c(4)),
    ("Fourier", "InverseFft"): lambda: br.fft.ifft(c(4)),
    ("Fourier", "RealFft"): lambda: br.fft.rfft(f(4)),
    ("Fourier", "InverseRealFft"): lambda: br.fft.irfft(c(4)),
    ("Module", "Embedding"): lambda: F.embedding(i(2, 3), f(5, 4)),
    ("Module", "EmbeddingBackward"): lambda: G.embedding_backward(f(5, 4), f(2, 3, 4), i(2, 3)),
    ("Module", "Linear"): lambda: F.linear(f(2, 3), f(4, 3), f(4)),
    ("Module", "LinearXBackward"): lambda: G.linear_x_backward(f(3, 4), f(2, 4)),
    ("Module", "LinearWeightBackward"): lambda: G.linear_weight_backward(f(2, 3), f(2, 4)),
    ("Module", "LinearBiasBackward"): lambda: G.linear_bias_backward(f(2, 4)),
    ("Module", "Conv1d"): lambda: F.conv1d(f(1, 3, 9), f(4, 3, 3)),
    ("Module", "Conv1dXBackward"): lambda: G.conv_x_backward(f(1, 3, 9), f(4, 3, 3), f(1, 4, 7)),
    ("Module", "Conv1dWeightBackward"): lambda: G.conv_weight_backward(
        f(1, 3, 9), f(4, 3, 3), f(1, 4, 7)
    ),
    ("Module", "Conv1dBiasBackward"): lambda: G.conv_bias_backward(f(1, 3, 9), f(4), f(1, 4, 7)),
    ("Module", "Conv2d"): lambda: F.conv2d(f(1, 3, 5, 5), f(4, 3, 3, 3)),
    ("Module", "Conv2dXBackward"): lambda: G.conv_x_backward(
        f(1, 3, 5, 5), f(4, 3, 3, 3), f(1, 4, 3, 3)
    ),
    ("Module", "Conv2dWeightBackward"): lambda: G.conv_weight_backward(
        f(1, 3, 5, 5), f(4, 3, 3, 3), f(1, 4, 3, 3)
    ),
    ("Module", "Conv2dBiasBackward"): lambda: G.conv_bias_backward(
        f(1, 3, 5, 5), f(4), f(1, 4, 3, 3)
    ),
    ("Module", "Conv3d"): lambda: F.conv3d(f(1, 3, 4, 4, 4), f(4, 3, 3, 3, 3)),
    ("Module", "Conv3dXBackward"): lambda: G.conv_x_backward(
        f(1, 3, 4, 4, 4), f(4, 3, 3, 3, 3), f(1, 4, 2, 2, 2)
    ),
    ("Module", "Conv3dWeightBackward"): lambda: G.conv_weight_backward(
        f(1, 3, 4, 4, 4), f(4, 3, 3, 3, 3), f(1, 4, 2, 2, 2)
    ),
    ("Module", "Conv3dBiasBackward"): lambda: G.conv_bias_backward(
        f(1, 3, 4, 4, 4), f(4), f(1, 4, 2, 2, 2)
    ),
    ("Module", "DeformableConv2d"): lambda: F.deform_conv2d(
        f(1, 3, 5, 5), f(1, 18, 3, 3), f(4, 3, 3, 3), mask=f(1, 9, 3, 3)
    ),
    ("Module", "DeformableConv2dBackward"): lambda: G.deform_conv2d_backward(
        f(1, 3, 5, 5), f(1, 18, 3, 3), f(4, 3, 3, 3), None, f(4), f(1, 4, 3, 3)
    ),
    ("Module", "ConvTranspose1d"): lambda: F.conv_transpose1d(f(1, 3, 5), f(3, 4, 3)),
    ("Module", "ConvTranspose2d"): lambda: F.conv_transpose2d(f(1, 3, 5, 5), f(3, 4, 3, 3)),
    ("Module", "ConvTranspose3d"): lambda: F.conv_transpose3d(f(1, 3, 5, 5, 5), f(3, 4, 3, 3, 3)),
    ("Module", "ConvTranspose1dWeightBackward"): lambda: G.conv_transpose_weight_backward(
        f(1, 3, 5), f(3, 4, 3), f(1, 4, 7)
    ),
    ("Module", "ConvTranspose1dBiasBackward"): lambda: G.conv_transpose_bias_backward(
        f(1, 3, 5), f(4), f(1, 4, 7)
    ),
    ("Module", "ConvTranspose2dWeightBackward"): lambda: G.conv_transpose_weight_backward(
        f(1, 3, 5, 5), f(3, 4, 3, 3), f(1, 4, 7, 7)
    ),
    ("Module", "ConvTranspose2dBiasBackward"): lambda: G.conv_transpose_bias_backward(
        f(1, 3, 5, 5), f(4), f(1, 4, 7, 7)
    ),
    ("Module", "ConvTranspose3dWeightBackward"): lambda: G.conv_transpose_weight_backward(
        f(1, 3, 5, 5, 5), f(3, 4, 3, 3, 3), f(1, 4, 7, 7, 7)
    ),
    ("Module", "ConvTranspose3dBiasBackward"): lambda: G.conv_transpose_bias_backward(
        f(1, 3, 5, 5, 5), f(4), f(1, 4, 7, 7, 7)
    ),
    ("Module", "AdaptiveAvgPool3d"): lambda: F.adaptive_avg_pool3d(f(1, 2, 6, 6, 6), (4, 3, 2)),
    ("Module", "AdaptiveAvgPool3dBackward"): lambda: G.adaptive_avg_pool_backward(
        f(1, 2, 6, 6, 6), f(1, 2, 4, 3, 2)
    ),
    ("Module", "LayerNorm"): lambda: F.layer_norm(f(2, 3), 3, f(3), f(3)),
    ("Module", "BatchNorm"): lambda: F.batch_norm(f(2, 3), f(3), f(3), f(3), f(3)),
    ("Module", "Unfold4d"): lambda: F.unfold(f(1, 2, 5, 5), 3),
    ("Module", "AvgPool1d"): lambda: F.avg_pool1d(f(1, 2, 6), 2),
    ("Module", "AvgPool2d"): lambda: F.avg_pool2d(f(1, 2, 6, 6), 2),
    ("Module", "AvgPool1dBackward"): lambda: G.avg_pool_backward(f(1, 2, 6), f(1, 2, 3), 2, 2),
    ("Module", "AvgPool2dBackward"): lambda: G.avg_pool_backward(
        f(1, 2, 6, 6), f(1, 2, 3, 3), 2, 2
    ),
    ("Module", "AdaptiveAvgPool1d"): lambda: F.adaptive_avg_pool1d(f(1, 2, 6), 4),
    ("Module", "AdaptiveAvgPool2d"): lambda: F.adaptive_avg_pool2d(f(1, 2, 6, 6), (4, 3)),
    ("Module", "AdaptiveAvgPool1dBackward"): lambda: G.adaptive_avg_pool_backward(
        f(1, 2, 6), f(1, 2, 4)
    ),
    ("Module", "AdaptiveAvgPool2dBackward"): lambda: G.adaptive_avg_pool_backward(
        f(1, 2, 6, 6), f(1, 2, 4, 3)
    ),
    ("Module", "MaxPool1d"): lambda: F.max_pool1d(f(1, 2, 6), 2),
    ("Module", "MaxPool1dWithIndices"): lambda: F.max_pool1d_with_indices(f(1, 2, 6), 2),
    ("Module", "MaxPool1dWithIndicesBackward"): lambda: G.max_pool_backward(
        f(1, 2, 6), f(1, 2, 3), i(1, 2, 3), 2, 2
    ),
    ("Module", "MaxPool2d"): lambda: F.max_pool2d(f(1, 2, 6, 6), 2),
    ("Module", "MaxPool2dWithIndices"): lambda: F.max_pool2d_with_indices(f(1, 2, 6, 6), 2),
    ("Module", "MaxPool2dWithIndicesBackward"): lambda: G.max_pool_backward(
        f(1, 2, 6, 6), f(1, 2, 3, 3), i(1, 2, 3, 3), 2, 2
    ),
    ("Module", "Interpolate"): lambda: F.interpolate(f(1, 2, 4, 4), size=8, mode="bilinear"),
    ("Module", "InterpolateBackward"): lambda: G.interpolate_backward(
        f(1, 2, 4, 4), f(1, 2, 8, 8), 8
    ),
    ("Module", "Rfft"): lambda: F.rfft(f(2, 8)),
    ("Module", "IRfft"): lambda: F.irfft(f(2, 5), f(2, 5)),
    ("Module", "Attention"): lambda: F.scaled_dot_product_attention(
        f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 6)
    ),
    ("Module", "CtcLoss"): lambda: F.ctc_loss(f(5, 2, 4), i(2, 3), [5, 5], [3, 2]),
    ("Module", "CtcLossBackward"): lambda: G.ctc_loss_backward(
        f(5, 2, 4), i(2, 3), i(2), i(2), f(2)
    ),
}


def public_functions() -> dict[str, Callable[..., Any]]:
    """Return every public function and method by name, such as ``functional.relu``."""
    modules = {
        "burn_remote": br,
        "fft": br.fft,
        "functional": F,
        "gradients": G,
        "init": br.init,
        "linalg": br.linalg,
        "random": br.random,
    }
    functions = {
        f"{name}.{key}": getattr(module, key)
        for name, module in modules.items()
        for key in module.__all__
        if inspect.isfunction(getattr(module, key))
    }
    methods = {
        f"Tensor.{key}": value
        for key, value in inspect.getmembers(br.Tensor, inspect.isfunction)
        if not key.startswith("_") or key in OPERATORS
    }
    return functions | methods


OPERATORS: Final = frozenset(
    f"__{name}__"
    for name in (
        *("abs", "add", "and", "eq", "floordiv", "ge", "getitem", "gt", "invert", "le", "lshift"),
        *("lt", "matmul", "mod", "mul", "ne", "neg", "or", "pow", "radd", "rfloordiv"),
        *("rmod", "rmul", "rpow", "rshift", "rsub", "rtruediv", "sub", "truediv", "xor"),
    )
)

# Public functions that issue no operation.
WITHOUT_A_DEVICE: Final = frozenset(
    {
        "burn_remote.address_to_id",
        "burn_remote.checkpoint",
        "burn_remote.compile",
        "burn_remote.custom_vjp",
        "burn_remote.default_device",
        "burn_remote.device",
        "burn_remote.grad",
        "burn_remote.id_to_address",
        "burn_remote.quant_scheme",
        "burn_remote.safetensors_metadata",
        "burn_remote.set_default_device",
        "burn_remote.set_printoptions",
        "burn_remote.value_and_grad",
        "init.calculate_gain",
    }
)

# Tuples of arguments. Most functions accept at least one of them.
_ARGUMENTS: Final[list[Callable[[], tuple[Any, ...]]]] = [
    lambda: (f(4, 4),),
    lambda: (f(4, 4), f(4, 4)),
    lambda: (f(4, 4), 1),
    lambda: (i(4, 4),),
    lambda: (i(4, 4), i(4, 4)),
    lambda: (b(4, 4),),
    lambda: (b(4, 4), b(4, 4)),
    lambda: (f(4, 4), f(4, 4), f(4, 4)),
    lambda: (f(4, 4), (4, 4)),
    lambda: ([f(4, 4), f(4, 4)],),
    lambda: ((4, 4),),
    lambda: (4,),
    lambda: (f(4, 4), i(4)),
    lambda: (b(4, 4), f(4, 4), f(4, 4)),
    lambda: (f(4, 4), 1, 1),
    lambda: (f(4, 4), 0, 1),
    lambda: (f(4, 4), br.float64),
    lambda: (f(4, 4), i(4), 1),
    lambda: (f(4, 4), f(4, 4), i(4)),
    lambda: (f(1, 2, 4, 4), 2),
    lambda: (f(1, 2, 4), 2),
    lambda: (f(1, 2, 4, 4), f(3, 2, 3, 3)),
    lambda: (f(1, 2, 4), f(3, 2, 3)),
    lambda: (f(1, 2, 4, 4, 4), f(3, 2, 3, 3, 3)),
]
_KEYWORDS: Final[list[dict[str, Any]]] = [
    {},
    {"a": 2.0},
    {"axis": 0},
    {"size": 8},
    {"num_groups": 1},
]


@functools.cache
def folder() -> Path:
    """Return a folder that is removed when the process exits."""
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return Path(made.name)


@functools.cache
def saved_file() -> Path:
    """Return a checkpoint with one tensor."""
    path = folder() / "read.safetensors"
    with br.LocalDevice() as device:
        br.save_safetensors(path, {"x": br.ones((2,), device=device)})
    return path


# Arguments of the functions that accept none of the tuples above.
EXPLICIT: Final[dict[str, Callable[[], tuple[Any, ...]]]] = {
    "burn_remote.bincount": lambda: (i(4), f(4)),
    "burn_remote.boolean_mask": lambda: (f(4, 2), b(4)),
    "burn_remote.histogram": lambda: (f(4), 3),
    "burn_remote.searchsorted": lambda: (f(4), f(2)),
    "burn_remote.cross": lambda: (f(2, 3), f(2, 3)),
    "burn_remote.einsum": lambda: ("ijj,jk->ki", f(2, 3, 3), f(3, 4)),
    "burn_remote.full": lambda: ((2,), 3),
    "burn_remote.gather": lambda: (f(2, 3), 1, i(2, 1)),
    "burn_remote.gather_nd": lambda: (f(2, 3), i(4, 2)),
    "burn_remote.interp": lambda: (f(4), [0.0, 0.45, 1.0], f(3)),
    "burn_remote.polyfit": lambda: (f(6), f(6), 2),
    "burn_remote.polyval": lambda: (f(3), f(4)),
    "burn_remote.jvp": lambda: (br.abs, (f(2),), (f(2),)),
    "burn_remote.linspace": lambda: (0, 1, 5),
    "burn_remote.load": lambda: (saved_file(),),
    "burn_remote.load_safetensors": lambda: (saved_file(),),
    "burn_remote.mask_fill": lambda: (f(4), b(4), 0),
    "burn_remote.meshgrid": lambda: (f(2), f(3)),
    "linalg.lstsq": lambda: (f(4, 3), f(4)),
    "linalg.matrix_power": lambda: (f(3, 3), -2),
    "linalg.pinv": lambda: (f(4, 3),),
    "linalg.cross": lambda: (f(2, 3), f(2, 3)),
    "linalg.outer": lambda: (f(2), f(3)),
    "burn_remote.outer": lambda: (f(2), f(3)),
    "burn_remote.permute_dims": lambda: (f(2, 3), (1, 0)),
    "burn_remote.quantized_tensor": lambda: (np.ones((4, 32), np.int8), 1.0, SCHEME),
    "burn_remote.read_quantized": lambda: (br.quantize(f(4, 32), SCHEME),),
    "burn_remote.save": lambda: (folder() / "written.safetensors", {"x": f(2)}),
    "burn_remote.save_safetensors": lambda: (folder() / "written.safetensors", {"x": f(2)}),
    "burn_remote.scatter": lambda: (f(2, 3), 1, i(2, 1), f(2, 1)),
    "burn_remote.scatter_nd": lambda: (f(2, 3), i(4, 2), f(4)),
    "burn_remote.unfold": lambda: (f(5), 0, 3, 1),
    "burn_remote.update_along": lambda: (f(2, 3), 1, i(2), f(2, 2)),
    "burn_remote.vjp": lambda: (br.abs, f(2)),
    "functional.batch_norm": lambda: (f(2, 3), f(3), f(3)),
    "functional.running_statistics": lambda: (f(2, 3), f(3), f(3)),
    "functional.conv_transpose1d": lambda: (f(1, 3, 5), f(3, 4, 3)),
    "functional.conv_transpose2d": lambda: (f(1, 3, 5, 5), f(3, 4, 3, 3)),
    "functional.conv_transpose3d": lambda: (f(1, 3, 5, 5, 5), f(3, 4, 3, 3, 3)),
    "functional.ctc_loss": lambda: (f(5, 2, 4), i(2, 3), [5, 5], [3, 2]),
    "functional.deform_conv2d": lambda: (f(1, 3, 5, 5), f(1, 18, 3, 3), f(4, 3, 3, 3)),
    "functional.embedding": lambda: (i(2, 3), f(5, 4)),
    "functional.fold": lambda: (f(1, 8, 4), (4, 4), (2, 2), 1, 0, 2),
    "functional.grid_sample": lambda: (f(1, 2, 4, 4), f(1, 3, 3, 2)),
    "functional.one_hot": lambda: (i(4), 3),
    "functional.pixel_shuffle": lambda: (f(1, 4, 2, 2), 2),
    "functional.prelu": lambda: (f(2, 3), f(3)),
    "functional.scaled_dot_product_attention": lambda: (
        f(1, 2, 3, 4),
        f(1, 2, 5, 4),
        f(1, 2, 5, 6),
    ),
    "gradients.adaptive_avg_pool_backward": lambda: (f(1, 2, 6), f(1, 2, 4)),
    "gradients.avg_pool_backward": lambda: (f(1, 2, 6), f(1, 2, 3), 2, 2),
    "gradients.conv_bias_backward": lambda: (f(1, 3, 9), f(4), f(1, 4, 7)),
    "gradients.conv_weight_backward": lambda: (f(1, 3, 9), f(4, 3, 3), f(1, 4, 7)),
    "gradients.conv_x_backward": lambda: (f(1, 3, 9), f(4, 3, 3), f(1, 4, 7)),
    "gradients.conv_transpose_bias_backward": lambda: (f(1, 3, 5), f(4), f(1, 4, 7)),
    "gradients.conv_transpose_weight_backward": lambda: (f(1, 3, 5), f(3, 4, 3), f(1, 4, 7)),
    "gradients.ctc_loss_backward": lambda: (f(5, 2, 4), i(2, 3), i(2), i(2), f(2)),
    "gradients.deform_conv2d_backward": lambda: (
        *(f(1, 3, 5, 5), f(1, 18, 3, 3), f(4, 3, 3, 3)),
        *(None, f(4), f(1, 4, 3, 3)),
    ),
    "gradients.interpolate_backward": lambda: (f(1, 2, 4, 4), f(1, 2, 8, 8), 8),
    "gradients.max_pool_backward": lambda: (f(1, 2, 6), f(1, 2, 3), i(1, 2, 3), 2, 2),
    "init.constant": lambda: ((2, 3), 1.5),
    "random.integers": lambda: (0, 9, (2,)),
    "Tensor.backward": lambda: (f(1).requires_grad_(),),
    "Tensor.gather": lambda: (f(2, 3), 1, i(2, 1)),
    "Tensor.gather_nd": lambda: (f(2, 3), i(4, 2)),
    "Tensor.mask_fill": lambda: (f(4), b(4), 0),
    "Tensor.masked_fill": lambda: (f(4), b(4), 0),
    "Tensor.permute_dims": lambda: (f(2, 3), (1, 0)),
    "Tensor.scatter": lambda: (f(2, 3), 1, i(2, 1), f(2, 1)),
    "Tensor.scatter_nd": lambda: (f(2, 3), i(4, 2), f(4)),
    "Tensor.unfold": lambda: (f(5), 0, 3, 1),
    "Tensor.update_along": lambda: (f(2, 3), 1, i(2), f(2, 2)),
    "Tensor.register_hook": lambda: (f(1).requires_grad_(), print),
    "Tensor.retain_grad": lambda: (f(1).requires_grad_() * 2,),
    "Tensor.item": lambda: (f(1),),
    "Tensor.to": lambda: (f(2), _device.get()),
    "Tensor.to_device": lambda: (f(2), _device.get()),
    "burn_remote.custom": lambda: ("double", f(4)),
    "burn_remote.__array_namespace_info__": lambda: (),
    "burn_remote.isdtype": lambda: (br.int8, "integral"),
}


def public_call(name: str) -> Callable[[], object]:
    """Return a call of a public function that succeeds, on the device of ``calling_on``.

    Raises ``LookupError`` if none of the arguments in this module fits the function.
    """
    function = public_functions()[name]
    places_device = "device" in inspect.signature(function).parameters
    places_device = places_device and name not in ("Tensor.to", "Tensor.to_device")
    is_explicit = name in EXPLICIT
    for arguments in [EXPLICIT[name]] if is_explicit else _ARGUMENTS:
        for keywords in [{}] if is_explicit else _KEYWORDS:

            def call(
                arguments: Callable[[], tuple[Any, ...]] = arguments,
                keywords: dict[str, Any] = keywords,
            ) -> object:
                more = dict(keywords)
                if places_device:
                    more["device"] = _device.get()
                if name == "burn_remote.custom":
                    more["outputs"] = br.TensorSpec((4,), br.float32)
                return function(*arguments(), **more)

            try:
                call()
            except (br.BurnRemoteError, TypeError, ValueError, AttributeError, IndexError):
                if is_explicit:
                    raise
                continue
            return call
    raise LookupError(f"{name} takes none of the arguments in tests/support/calls.py: add some")
