"""Rows of network layers without spatial axes, and of losses."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    boolean,
    optional_scalar,
    optional_tensor_in,
    options,
    scalar,
    tensor_in,
    tensor_out,
    usize,
    usize_array,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.convolution_rules import unfolded
from burn_remote_protocol.operations.shape_rules.linear_rules import (
    attention,
    batch_norm,
    embedding,
    embedding_backward,
    layer_norm,
    linear,
    linear_bias_backward,
    linear_weight_backward,
    linear_x_backward,
)
from burn_remote_protocol.operations.shape_rules.signal_rules import ctc_loss, ctc_loss_backward
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

EMBEDDING: Final = Row(
    "Module",
    "Embedding",
    (tensor_in("weights"), tensor_in("indices"), tensor_out("out")),
    embedding,
    estimates.indexed(4),
)
EMBEDDING_BACKWARD: Final = Row(
    "Module",
    "EmbeddingBackward",
    (tensor_in("weights"), tensor_in("out_grad"), tensor_in("indices"), tensor_out("out")),
    embedding_backward,
    estimates.EMBEDDING_BACKWARD,
)
LINEAR: Final = Row(
    "Module",
    "Linear",
    (tensor_in("x"), tensor_in("weight"), optional_tensor_in("bias"), tensor_out("out")),
    linear,
    estimates.LINEAR,
)
LINEAR_X_BACKWARD: Final = Row(
    "Module",
    "LinearXBackward",
    (tensor_in("weight"), tensor_in("output_grad"), tensor_out("out")),
    linear_x_backward,
    estimates.LINEAR_X_BACKWARD,
)
LINEAR_WEIGHT_BACKWARD: Final = Row(
    "Module",
    "LinearWeightBackward",
    (tensor_in("x"), tensor_in("output_grad"), tensor_out("out")),
    linear_weight_backward,
    estimates.LINEAR_WEIGHT_BACKWARD,
)
LINEAR_BIAS_BACKWARD: Final = Row(
    "Module",
    "LinearBiasBackward",
    (tensor_in("output_grad"), tensor_out("out")),
    linear_bias_backward,
    estimates.per_element(4, 4),
)
ATTENTION: Final = Row(
    "Module",
    "Attention",
    (
        tensor_in("query"),
        tensor_in("key"),
        tensor_in("value"),
        optional_tensor_in("mask"),
        optional_tensor_in("attn_bias"),
        options(
            "options", optional_scalar("scale"), optional_scalar("softcap"), boolean("is_causal")
        ),
        tensor_out("out"),
    ),
    attention,
    estimates.ATTENTION,
)
CTC_LOSS: Final = Row(
    "Module",
    "CtcLoss",
    (
        tensor_in("log_probs"),
        tensor_in("targets"),
        tensor_in("input_lengths"),
        tensor_in("target_lengths"),
        usize("blank"),
        tensor_out("out"),
    ),
    ctc_loss,
    estimates.CTC,
)
CTC_LOSS_BACKWARD: Final = Row(
    "Module",
    "CtcLossBackward",
    (
        tensor_in("log_probs"),
        tensor_in("targets"),
        tensor_in("input_lengths"),
        tensor_in("target_lengths"),
        tensor_in("grad_loss"),
        usize("blank"),
        tensor_out("out"),
    ),
    ctc_loss_backward,
    estimates.CTC_BACKWARD,
)

LAYER_NORM: Final = Row(
    "Module",
    "LayerNorm",
    (
        tensor_in("input"),
        tensor_in("gamma"),
        optional_tensor_in("beta"),
        scalar("epsilon"),
        tensor_out("out"),
    ),
    layer_norm,
    estimates.per_element(12, 12, call_cost=20_000),
    SINCE_BURN_0_22,
)
# Normalization with given statistics of each channel.
BATCH_NORM: Final = Row(
    "Module",
    "BatchNorm",
    (
        tensor_in("x"),
        tensor_in("gamma"),
        tensor_in("beta"),
        tensor_in("mean"),
        tensor_in("variance"),
        scalar("epsilon"),
        tensor_out("out"),
    ),
    batch_norm,
    estimates.per_element(6, 8, call_cost=20_000),
    SINCE_BURN_0_22,
)
UNFOLD4D: Final = Row(
    "Module",
    "Unfold4d",
    (
        tensor_in("x"),
        usize_array("kernel_size", 2),
        options(
            "options",
            usize_array("stride", 2),
            usize_array("padding", 2),
            usize_array("dilation", 2),
        ),
        tensor_out("out"),
    ),
    unfolded,
    estimates.UNFOLD4D,
    SINCE_BURN_0_22,
)

ROWS: Final = (
    EMBEDDING, EMBEDDING_BACKWARD, LINEAR, LINEAR_X_BACKWARD, LINEAR_WEIGHT_BACKWARD,
    LINEAR_BIAS_BACKWARD, ATTENTION, CTC_LOSS, CTC_LOSS_BACKWARD, LAYER_NORM,
    BATCH_NORM, UNFOLD4D,
)  # fmt: skip
