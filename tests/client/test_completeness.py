"""Every row of the operation table is issued by a method or function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G
from burn_remote_protocol.operations.table import TABLE
from support.runners import RecordingDevice

FAMILIES: Final = ("Base", "Numeric", "Float", "Int", "Bool", "Module")
SCHEME: Final = br.QuantScheme("Q8S", "F32", "Native", None, "Symmetric")

DEVICE: Final = RecordingDevice()


def f(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.float32), device=DEVICE)


def i(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.int64), device=DEVICE)


def b(*shape: int) -> br.Tensor:
    return br.tensor(np.ones(shape, np.bool_), device=DEVICE)


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
    ("Base", "RepeatDim"): lambda: f(2).tile(3),
    ("Base", "Cat"): lambda: br.concat([f(2), f(3)]),
    ("Base", "Cast"): lambda: f(2).astype(br.float64),
    ("Base", "Empty"): lambda: br.empty((2,), device=DEVICE),
    ("Base", "Ones"): lambda: br.ones((2,), device=DEVICE),
    ("Base", "Zeros"): lambda: br.zeros((2,), device=DEVICE),
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
    ("Numeric", "Full"): lambda: br.full((2,), 3, device=DEVICE),
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
    ("Numeric", "TopK"): lambda: f(5).topk(2),
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
    ("Numeric", "IntRandom"): lambda: br.random.integers(0, 9, (2,), device=DEVICE),
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
    ("Float", "Random"): lambda: br.random.normal((2,), device=DEVICE),
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


def test_every_row_has_a_call() -> None:
    assert set(CALLS) == {key for key in TABLE if key[0] in FAMILIES}


@pytest.mark.parametrize("family, name", CALLS, ids=".".join)
def test_the_call_issues_its_row(family: str, name: str) -> None:
    before = len(DEVICE.runner.operations)
    CALLS[family, name]()
    issued = [operation.signature.row for operation in DEVICE.runner.operations[before:]]
    assert TABLE[family, name] in issued


def test_creating_a_tensor_uploads_it() -> None:
    tensor = f(2, 3)
    assert DEVICE.runner.uploads[tensor.handle.id].spec == tensor.handle.spec
