"""Rows of activation functions and their gradients, which Burn has as operations since 0.22."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import scalar, tensor_in, tensor_out
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import FLOATS
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    alike,
    broadcast_to_first,
    same,
)
from burn_remote_protocol.operations.shape_rules.reduction_rules import along_nonempty_axis
from burn_remote_protocol.operations.shared_fields import BINARY, DIM, SCALAR, UNARY
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

RELU: Final = Row(
    "Activation", "Relu", UNARY, same(FLOATS), estimates.elementwise(4, 8), SINCE_BURN_0_22
)
# ``lhs`` is the result of the function, ``rhs`` the gradient with respect to it.
RELU_BACKWARD: Final = Row(
    "Activation",
    "ReluBackward",
    BINARY,
    alike(FLOATS),
    estimates.elementwise(6, 1),
    SINCE_BURN_0_22,
)
LEAKY_RELU: Final = Row(
    "Activation",
    "LeakyRelu",
    SCALAR,
    same(FLOATS),
    estimates.elementwise(8, 17, converts=True),
    SINCE_BURN_0_22,
)
# ``rhs`` holds the slopes for negative elements.
P_RELU: Final = Row(
    "Activation",
    "PRelu",
    BINARY,
    broadcast_to_first(FLOATS),
    estimates.elementwise(8, 17),
    SINCE_BURN_0_22,
)
GELU: Final = Row(
    "Activation",
    "Gelu",
    UNARY,
    same(FLOATS),
    estimates.elementwise(70, 32, call_cost=20_000, converts=True),
    SINCE_BURN_0_22,
)
# ``lhs`` is the argument of the function, ``rhs`` the gradient with respect to the result.
GELU_BACKWARD: Final = Row(
    "Activation",
    "GeluBackward",
    BINARY,
    alike(FLOATS),
    estimates.elementwise(100, 40, call_cost=20_000, converts=True),
    SINCE_BURN_0_22,
)
SIGMOID: Final = Row(
    "Activation", "Sigmoid", UNARY, same(FLOATS), estimates.elementwise(25, 25), SINCE_BURN_0_22
)
# ``lhs`` is the result of the function, ``rhs`` the gradient with respect to it.
SIGMOID_BACKWARD: Final = Row(
    "Activation",
    "SigmoidBackward",
    BINARY,
    alike(FLOATS),
    estimates.elementwise(6, 16),
    SINCE_BURN_0_22,
)
HARD_SIGMOID: Final = Row(
    "Activation",
    "HardSigmoid",
    (tensor_in("tensor"), scalar("alpha"), scalar("beta"), tensor_out("out")),
    same(FLOATS),
    estimates.elementwise(8, 16, converts=True),
    SINCE_BURN_0_22,
)
LOG_SIGMOID: Final = Row(
    "Activation", "LogSigmoid", UNARY, same(FLOATS), estimates.elementwise(35, 32), SINCE_BURN_0_22
)
# ``lhs`` is the argument of the function, ``rhs`` the gradient with respect to the result.
LOG_SIGMOID_BACKWARD: Final = Row(
    "Activation",
    "LogSigmoidBackward",
    BINARY,
    alike(FLOATS),
    estimates.elementwise(30, 33),
    SINCE_BURN_0_22,
)
SOFTMAX: Final = Row(
    "Activation",
    "Softmax",
    DIM,
    along_nonempty_axis(FLOATS),
    estimates.scanned_rows(20, 150, 8, 48),
    SINCE_BURN_0_22,
)
LOG_SOFTMAX: Final = Row(
    "Activation",
    "LogSoftmax",
    DIM,
    along_nonempty_axis(FLOATS),
    estimates.scanned_rows(20, 200, 8, 48),
    SINCE_BURN_0_22,
)
SOFTMIN: Final = Row(
    "Activation",
    "Softmin",
    DIM,
    along_nonempty_axis(FLOATS),
    estimates.scanned_rows(20, 150, 8, 48),
    SINCE_BURN_0_22,
)

ROWS: Final = (
    RELU, RELU_BACKWARD, LEAKY_RELU, P_RELU, GELU, GELU_BACKWARD, SIGMOID, SIGMOID_BACKWARD,
    HARD_SIGMOID, LOG_SIGMOID, LOG_SIGMOID_BACKWARD, SOFTMAX, LOG_SOFTMAX, SOFTMIN,
)  # fmt: skip
