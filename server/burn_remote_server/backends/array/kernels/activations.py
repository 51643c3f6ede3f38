"""Activation functions and their gradients, which Burn has as operations since 0.22.

Each follows the steps of the composition in ``burn_remote.functional``, in the same order, so its
results have the same bits in ``float32`` and ``float64``. In 16-bit dtypes, it rounds only once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    ArraySpec,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    direct_calls,
)
from burn_remote_server.backends.array.core.number_limits import limited_by_row, takes_row
from burn_remote_server.backends.array.core.row_extremes import row_extremes
from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.array.kernels.error_function import erf
from burn_remote_server.backends.array.kernels.indexing import BaseMasking
from burn_remote_server.backends.interface import ElementwiseCall

__all__ = ["Activations", "Softmaxes"]

# Above this limit, log(1 + exp(x)) rounds to x.
SOFTPLUS_LIMITS: Final = {np.dtype(np.float32): 20.0, np.dtype(np.float64): 40.0}


class Activations(KernelFamily):
    """Elementwise activation functions. NaN stays NaN."""

    family = "Activation"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Relu": Prepared(self.prepare_relu, self.prepare_relu, self.relu_calls),
            "ReluBackward": Prepared(self.prepare_relu_backward, calls=self.relu_backward_calls),
            "LeakyRelu": Prepared(self.prepare_leaky_relu),
            "PRelu": self.p_relu,
            "Gelu": self.gelu,
            "GeluBackward": self.gelu_backward,
            "Sigmoid": self.sigmoid,
            "SigmoidBackward": self.sigmoid_backward,
            "HardSigmoid": self.hard_sigmoid,
            "LogSigmoid": self.log_sigmoid,
            "LogSigmoidBackward": self.log_sigmoid_backward,
        }

    def prepare_relu(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel for ``max(input, 0)``. It also takes ``out``."""
        maximum, zero = self.xp.maximum, scalar_array(self.xp, 0, first.dtype)
        if takes_row(self.xp, *first):
            return limited_by_row(maximum, zero)

        def run(input: Array, **options: Array) -> Array:
            return maximum(input, zero, **options)

        return run

    def relu_calls(self, first: ArraySpec, parameters: Parameters) -> tuple[ElementwiseCall, ...]:
        """Return the call of the maximum, whose other operand is the constant 0."""
        zero = scalar_array(self.xp, 0, first.dtype)
        return direct_calls(self.xp.maximum, zero, is_slower=takes_row(self.xp, *first))

    def prepare_relu_backward(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run:
        """Return ``run(result, grad)``: the gradient, but 0 where the result is not positive."""
        (call,) = self.relu_backward_calls(first, parameters)
        function, (zero,) = call.function, call.constants
        return lambda lhs, rhs: function(lhs, rhs, zero)

    def relu_backward_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        """Return the call ``function(result, grad, 0)``."""
        less_equal = self.xp.less_equal
        fill = BaseMasking(self.xp).filling(first.dtype)

        def function(lhs: Array, rhs: Array, zero: Array) -> Array:
            return fill(rhs, less_equal(lhs, zero), zero)

        return (ElementwiseCall(function, (scalar_array(self.xp, 0, first.dtype),)),)

    def prepare_leaky_relu(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a kernel for ``lhs``, multiplied by the slope ``rhs`` where it is not positive."""
        slope = scalar_array(self.xp, parameters["rhs"], first.dtype)
        return lambda lhs: self._bent(lhs, slope)

    def p_relu(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return ``lhs``, multiplied by the slopes ``rhs`` where it is not positive."""
        return self._bent(lhs, rhs)

    def _bent(self, x: Array, slope: Array) -> Array:
        return self.xp.where(x <= 0, x * slope, x)

    def gelu(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the input times the normal distribution function at the input."""
        return input * self._normal_distribution(input)

    def gelu_backward(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return ``rhs * (Φ(x) + x φ(x))`` for the argument ``x`` of the function, ``lhs``."""
        kind = lhs.dtype.type
        density = lhs * lhs
        density *= kind(-0.5)
        density = self.xp.exp(density)
        density *= kind(1 / math.sqrt(2 * math.pi))
        return rhs * (self._normal_distribution(lhs) + lhs * density)

    def _normal_distribution(self, x: Array) -> Array:
        kind = x.dtype.type
        # Halve the sum rather than a product with it, which may overflow.
        return (self._erf(x / kind(math.sqrt(2))) + kind(1)) / kind(2)

    def _erf(self, x: Array) -> Array:
        return erf(self.xp, x)

    def sigmoid(self, input: Array, *, out: TensorSpec) -> Array:
        """Return ``1 / (1 + exp(-input))``."""
        return self._sigmoid(input)

    def _sigmoid(self, x: Array) -> Array:
        xp, kind = self.xp, x.dtype.type
        # exp of nonpositive numbers cannot overflow, and this form keeps full precision for
        # negative numbers. In NumPy, a second exp takes less time than a selection by signs, whose
        # branches a processor cannot predict: 0.2 to 1.0 of the time, with the same bits.
        power = xp.exp(-xp.absolute(x))
        return xp.exp(xp.minimum(x, kind(0))) / (power + kind(1))

    def sigmoid_backward(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return ``rhs * y (1 - y)`` for the result ``y`` of the function, ``lhs``."""
        return rhs * (lhs - lhs * lhs)

    def hard_sigmoid(self, tensor: Array, *, alpha: float, beta: float, out: TensorSpec) -> Array:
        """Return ``alpha * tensor + beta`` limited to the range from 0 to 1."""
        xp, kind = self.xp, tensor.dtype.type
        line = tensor * kind(alpha) + kind(beta)
        return xp.minimum(xp.maximum(line, kind(0)), kind(1))

    def log_sigmoid(self, input: Array, *, out: TensorSpec) -> Array:
        """Return ``log(sigmoid(input))`` without overflow."""
        xp = self.xp
        limit = input.dtype.type(SOFTPLUS_LIMITS[input.dtype])
        opposite = -input
        bent = xp.log1p(xp.exp(xp.minimum(opposite, limit)))
        return -xp.where(opposite > limit, opposite, bent)

    def log_sigmoid_backward(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return ``rhs * sigmoid(-x)`` for the argument ``x`` of the function, ``lhs``."""
        return rhs * self._sigmoid(-lhs)


class Softmaxes(KernelFamily):
    """Exponentials along an axis, divided by their sum. A NaN makes all results of its row NaN."""

    family = "Activation"

    def table(self) -> Mapping[str, Kernel]:
        return {"Softmax": self.softmax, "LogSoftmax": self.log_softmax, "Softmin": self.softmin}

    def softmax(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return ``exp(input) / sum(exp(input))`` along an axis, without overflow."""
        return self._shares(self._shifted(input, axis), axis)

    def softmin(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return the softmax of ``-input`` along an axis."""
        return self._shares(self._shifted(-input, axis), axis)

    def log_softmax(self, input: Array, *, axis: int, out: TensorSpec) -> Array:
        """Return the logarithm of the softmax along an axis, without underflow."""
        xp, shifted = self.xp, self._shifted(input, axis)
        sums = xp.add.reduce(xp.exp(shifted), axis=axis, keepdims=True)
        shifted -= xp.log(sums)
        return shifted

    def _shares(self, shifted: Array, axis: int) -> Array:
        powers = self.xp.exp(shifted, out=shifted)
        powers /= self.xp.add.reduce(powers, axis=axis, keepdims=True)
        return powers

    def _shifted(self, x: Array, axis: int) -> Array:
        """Return ``x`` less its maxima, which bounds the exponentials by 1."""
        return self.xp.subtract(x, self._largest(x, axis))

    def _largest(self, x: Array, axis: int) -> Any:
        if axis == x.ndim - 1 and x.flags.c_contiguous:
            extremes = row_extremes(self.xp, x.shape, x.dtype)
            if extremes is not None:
                return extremes.largest(x)
        return self.xp.maximum.reduce(x, axis=axis, keepdims=True)
