"""Rows of convolutions and their gradients."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    Field,
    optional_tensor_in,
    optional_tensor_out,
    options,
    paddings,
    tensor_in,
    tensor_out,
    usize,
    usize_array,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.convolution_rules import (
    bias_backward,
    convolution,
    deformable,
    deformable_backward,
    transposed,
    transposed_weight_backward,
    weight_backward,
    x_backward,
)
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

Fields = tuple[Field, ...]


def _layer(conv_options: Field) -> Fields:
    return (
        tensor_in("x"),
        tensor_in("weight"),
        optional_tensor_in("bias"),
        conv_options,
        tensor_out("out"),
    )


def _gradient(conv_options: Field) -> Fields:
    return (
        tensor_in("x"),
        tensor_in("weight"),
        tensor_in("output_grad"),
        conv_options,
        tensor_out("out"),
    )


def _options(spatial: int) -> Field:
    # Burn 0.22 pads the ends of an axis differently in one and two dimensions, but not in three.
    padding = usize_array if spatial == 3 else paddings
    return options(
        "options",
        usize_array("stride", spatial),
        padding("padding", spatial),
        usize_array("dilation", spatial),
        usize("groups"),
    )


def _transpose_options(spatial: int) -> Field:
    return options(
        "options",
        usize_array("stride", spatial),
        usize_array("padding", spatial),
        usize_array("padding_out", spatial),
        usize_array("dilation", spatial),
        usize("groups"),
    )


BIAS_GRADIENT: Final = (
    tensor_in("x"),
    tensor_in("bias"),
    tensor_in("output_grad"),
    tensor_out("out"),
)

DEFORMABLE_INPUTS: Final = (
    tensor_in("x"),
    tensor_in("offset"),
    tensor_in("weight"),
    optional_tensor_in("mask"),
    optional_tensor_in("bias"),
)
DEFORMABLE_OPTIONS: Final = options(
    "options",
    usize_array("stride", 2),
    usize_array("padding", 2),
    usize_array("dilation", 2),
    usize("weight_groups"),
    usize("offset_groups"),
)
DEFORMABLE_GRADIENTS: Final = (
    tensor_out("input_grad"),
    tensor_out("offset_grad"),
    tensor_out("weight_grad"),
    optional_tensor_out("mask_grad"),
    optional_tensor_out("bias_grad"),
)

CONV1D: Final = Row("Module", "Conv1d", _layer(_options(1)), convolution(1), estimates.CONVOLUTION)
CONV1D_X_BACKWARD: Final = Row(
    "Module",
    "Conv1dXBackward",
    _gradient(_options(1)),
    x_backward(1),
    estimates.CONVOLUTION_BACKWARD,
)
CONV1D_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "Conv1dWeightBackward",
    _gradient(_options(1)),
    weight_backward(1),
    estimates.CONVOLUTION_BACKWARD,
)
CONV1D_BIAS_BACKWARD: Final = Row(
    "Module", "Conv1dBiasBackward", BIAS_GRADIENT, bias_backward(1), estimates.per_element(3)
)
CONV2D: Final = Row("Module", "Conv2d", _layer(_options(2)), convolution(2), estimates.CONVOLUTION)
CONV2D_X_BACKWARD: Final = Row(
    "Module",
    "Conv2dXBackward",
    _gradient(_options(2)),
    x_backward(2),
    estimates.CONVOLUTION_BACKWARD,
)
CONV2D_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "Conv2dWeightBackward",
    _gradient(_options(2)),
    weight_backward(2),
    estimates.CONVOLUTION_BACKWARD,
)
CONV2D_BIAS_BACKWARD: Final = Row(
    "Module", "Conv2dBiasBackward", BIAS_GRADIENT, bias_backward(2), estimates.per_element(3)
)
CONV3D: Final = Row("Module", "Conv3d", _layer(_options(3)), convolution(3), estimates.CONVOLUTION)
CONV3D_X_BACKWARD: Final = Row(
    "Module",
    "Conv3dXBackward",
    _gradient(_options(3)),
    x_backward(3),
    estimates.CONVOLUTION_BACKWARD,
)
CONV3D_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "Conv3dWeightBackward",
    _gradient(_options(3)),
    weight_backward(3),
    estimates.CONVOLUTION_BACKWARD,
)
CONV3D_BIAS_BACKWARD: Final = Row(
    "Module", "Conv3dBiasBackward", BIAS_GRADIENT, bias_backward(3), estimates.per_element(3)
)
DEFORMABLE_CONV2D: Final = Row(
    "Module",
    "DeformableConv2d",
    (*DEFORMABLE_INPUTS, DEFORMABLE_OPTIONS, tensor_out("out")),
    deformable,
    estimates.DEFORMABLE,
)
DEFORMABLE_CONV2D_BACKWARD: Final = Row(
    "Module",
    "DeformableConv2dBackward",
    (*DEFORMABLE_INPUTS, tensor_in("out_grad"), DEFORMABLE_OPTIONS, *DEFORMABLE_GRADIENTS),
    deformable_backward,
    estimates.DEFORMABLE_BACKWARD,
)
CONV_TRANSPOSE1D: Final = Row(
    "Module",
    "ConvTranspose1d",
    _layer(_transpose_options(1)),
    transposed(1),
    estimates.TRANSPOSED_CONVOLUTION,
)
CONV_TRANSPOSE2D: Final = Row(
    "Module",
    "ConvTranspose2d",
    _layer(_transpose_options(2)),
    transposed(2),
    estimates.TRANSPOSED_CONVOLUTION,
)
CONV_TRANSPOSE3D: Final = Row(
    "Module",
    "ConvTranspose3d",
    _layer(_transpose_options(3)),
    transposed(3),
    estimates.TRANSPOSED_CONVOLUTION,
)

CONV_TRANSPOSE1D_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "ConvTranspose1dWeightBackward",
    _gradient(_transpose_options(1)),
    transposed_weight_backward(1),
    estimates.TRANSPOSED_BACKWARD,
    SINCE_BURN_0_22,
)
CONV_TRANSPOSE1D_BIAS_BACKWARD: Final = Row(
    "Module",
    "ConvTranspose1dBiasBackward",
    BIAS_GRADIENT,
    bias_backward(1),
    estimates.per_element(3),
    SINCE_BURN_0_22,
)
CONV_TRANSPOSE2D_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "ConvTranspose2dWeightBackward",
    _gradient(_transpose_options(2)),
    transposed_weight_backward(2),
    estimates.TRANSPOSED_BACKWARD,
    SINCE_BURN_0_22,
)
CONV_TRANSPOSE2D_BIAS_BACKWARD: Final = Row(
    "Module",
    "ConvTranspose2dBiasBackward",
    BIAS_GRADIENT,
    bias_backward(2),
    estimates.per_element(3),
    SINCE_BURN_0_22,
)
CONV_TRANSPOSE3D_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "ConvTranspose3dWeightBackward",
    _gradient(_transpose_options(3)),
    transposed_weight_backward(3),
    estimates.TRANSPOSED_BACKWARD,
    SINCE_BURN_0_22,
)
CONV_TRANSPOSE3D_BIAS_BACKWARD: Final = Row(
    "Module",
    "ConvTranspose3dBiasBackward",
    BIAS_GRADIENT,
    bias_backward(3),
    estimates.per_element(3),
    SINCE_BURN_0_22,
)

ROWS: Final = (
    CONV1D, CONV1D_X_BACKWARD, CONV1D_WEIGHT_BACKWARD, CONV1D_BIAS_BACKWARD, CONV2D,
    CONV2D_X_BACKWARD, CONV2D_WEIGHT_BACKWARD, CONV2D_BIAS_BACKWARD, CONV3D, CONV3D_X_BACKWARD,
    CONV3D_WEIGHT_BACKWARD, CONV3D_BIAS_BACKWARD, DEFORMABLE_CONV2D, DEFORMABLE_CONV2D_BACKWARD,
    CONV_TRANSPOSE1D, CONV_TRANSPOSE2D, CONV_TRANSPOSE3D,
    CONV_TRANSPOSE1D_WEIGHT_BACKWARD, CONV_TRANSPOSE1D_BIAS_BACKWARD,
    CONV_TRANSPOSE2D_WEIGHT_BACKWARD, CONV_TRANSPOSE2D_BIAS_BACKWARD,
    CONV_TRANSPOSE3D_WEIGHT_BACKWARD, CONV_TRANSPOSE3D_BIAS_BACKWARD,
)  # fmt: skip
