"""Gradients of convolutions.

The gradients of a convolution are rows of their own. They are linear in the weight, the input and
the gradient of the output, so their own gradients are such rows again.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from burn_remote.autodiff.rule_table import joint, never, rule
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.manipulation import part
from burn_remote.functions.padding import pad
from burn_remote.gradient_rules.spreading import spread
from burn_remote_protocol.operations.families import convolution_rows as rows

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.operations.row import Row
    from burn_remote_protocol.tensors import TensorSpec

Sizes = tuple[int, ...]
Gradients = dict[str, "Tensor"]

DEFORMABLE_CONV2D_BACKWARD: Final = Operator(rows.DEFORMABLE_CONV2D_BACKWARD)
OPTIONS: Final = ("stride", "padding", "dilation", "groups")
TRANSPOSED_OPTIONS: Final = ("stride", "padding", "padding_out", "dilation", "groups")
DEFORMABLE_INPUTS: Final = ("x", "offset", "weight", "mask", "bias")
DEFORMABLE_OPTIONS: Final = ("stride", "padding", "dilation", "weight_groups", "offset_groups")


class _Convolution:
    """The rules of a convolution, its gradients, and its transpose."""

    def __init__(
        self, forward: Row, to_x: Row, to_weight: Row, to_bias: Row, transposed: Row
    ) -> None:
        self._forward = Operator(forward)
        self._to_x = Operator(to_x)
        self._to_weight = Operator(to_weight)
        self._to_bias = Operator(to_bias)
        joint(forward, ("x", "weight", "bias"))(self._of_convolution)
        joint(to_x, ("weight", "output_grad"))(self._of_x_backward)
        joint(to_weight, ("x", "output_grad"))(self._of_weight_backward)
        rule(to_bias, output_grad=_of_bias_backward)
        joint(transposed, ("x", "weight", "bias"))(self._of_transposed)

    def _of_convolution(self, call: PastCall) -> Gradients:
        (grad,), x, weight = call.grads, call["x"], call["weight"]
        options = _options(call)
        found = self._of_bias(call)
        if call.needs("x"):
            found["x"] = self._to_x.apply((x, weight, grad), options)
        if call.needs("weight"):
            found["weight"] = self._to_weight.apply((x, weight, grad), options)
        return found

    def _of_bias(self, call: PastCall) -> Gradients:
        if not call.needs("bias"):
            return {}
        (grad,) = call.grads
        # The row reads only the dtype of its first input.
        return {"bias": self._to_bias.apply((grad, call["bias"], grad))}

    def _of_x_backward(self, call: PastCall) -> Gradients:
        (grad,), weight = call.grads, call["weight"]
        options = _options(call)
        found: Gradients = {}
        if call.needs("weight"):
            inputs = (grad, weight, call["output_grad"])
            found["weight"] = self._to_weight.apply(inputs, options)
        if call.needs("output_grad"):
            found["output_grad"] = self._forward.apply((grad, weight, None), options)
        return found

    def _of_weight_backward(self, call: PastCall) -> Gradients:
        (grad,), x = call.grads, call["x"]
        options = _options(call)
        found: Gradients = {}
        if call.needs("x"):
            found["x"] = self._to_x.apply((x, grad, call["output_grad"]), options)
        if call.needs("output_grad"):
            found["output_grad"] = self._forward.apply((x, grad, None), options)
        return found

    def _of_transposed(self, call: PastCall) -> Gradients:
        (grad,), x, weight = call.grads, call["x"], call["weight"]
        options = _options(call)
        found = self._of_bias(call)
        if call.needs("x"):
            found["x"] = _cut(self._forward.apply((grad, weight, None), options), x.shape)
        if call.needs("weight"):
            reached, padding = _reached(call, grad)
            ((stride, _, dilation, groups),) = options
            padded = ((stride, padding, dilation, groups),)
            found["weight"] = self._to_weight.apply((reached, weight, x), padded)
        return found


def _of_bias_backward(grad: Tensor, output_grad_spec: TensorSpec) -> Tensor:
    spatial = len(output_grad_spec.shape) - 2
    return spread(reshaped(grad, (1, grad.size, *(1,) * spatial)), output_grad_spec)


def _options(call: PastCall) -> tuple[tuple[Sizes | int, ...]]:
    return (tuple([call.parameters[name] for name in OPTIONS]),)


def _reached(call: PastCall, grad: Tensor) -> tuple[Tensor, Sizes]:
    """Return the elements of a gradient that the kernels reach, and their padding.

    A convolution of these elements has as many windows as the input of the transposed convolution
    has elements. That is so for the gradient itself, unless the output padding is at least the
    stride. Then the gradient is cut, or extended, to the elements that the kernels reach. If the
    padding is larger than the output padding, these include the last elements of the gradient.
    """
    padding: Sizes = call.parameters["padding"]
    axes = [
        (present, (size - 1) * s + d * (k - 1) + 1, s, p)
        for size, present, k, s, p, d in zip(
            *(call["x"].shape[2:], grad.shape[2:], call["weight"].shape[2:]),
            *(call.parameters[name] for name in ("stride", "padding", "dilation")),
            strict=True,
        )
    ]
    if all((present + 2 * p - reach) // s == 0 for present, reach, s, p in axes):
        return grad, padding
    borders = [(p, reach - p - present) for present, reach, _, p in reversed(axes)]
    return pad(grad, [*chain.from_iterable(borders)]), (0,) * len(axes)


def _cut(x: Tensor, shape: Sizes) -> Tensor:
    for axis, (present, wanted) in enumerate(zip(x.shape, shape, strict=True)):
        if present != wanted:
            x = part(x, axis, 0, wanted)
    return x


_Convolution(
    rows.CONV1D,
    rows.CONV1D_X_BACKWARD,
    rows.CONV1D_WEIGHT_BACKWARD,
    rows.CONV1D_BIAS_BACKWARD,
    rows.CONV_TRANSPOSE1D,
)
_Convolution(
    rows.CONV2D,
    rows.CONV2D_X_BACKWARD,
    rows.CONV2D_WEIGHT_BACKWARD,
    rows.CONV2D_BIAS_BACKWARD,
    rows.CONV_TRANSPOSE2D,
)
_Convolution(
    rows.CONV3D,
    rows.CONV3D_X_BACKWARD,
    rows.CONV3D_WEIGHT_BACKWARD,
    rows.CONV3D_BIAS_BACKWARD,
    rows.CONV_TRANSPOSE3D,
)


def _transposed_rules(forward_row: Row, convolution_row: Row, to_weight: Row, to_bias: Row) -> None:
    """Add the rules of the rows for gradients of a transposed convolution, which is linear."""
    forward, convolution = Operator(forward_row), Operator(convolution_row)
    rule(to_bias, output_grad=_of_bias_backward)

    @joint(to_weight, ("x", "output_grad"))
    def of_weight_backward(call: PastCall) -> Gradients:
        (grad,), x, output_grad = call.grads, call["x"], call["output_grad"]
        found: Gradients = {}
        if call.needs("x"):
            to_x = convolution.apply((output_grad, grad, None), _options(call))
            found["x"] = _cut(to_x, x.shape)
        if call.needs("output_grad"):
            options = tuple([call.parameters[name] for name in TRANSPOSED_OPTIONS])
            found["output_grad"] = forward.apply((x, grad, None), (options,))
        return found


_transposed_rules(
    rows.CONV_TRANSPOSE1D,
    rows.CONV1D,
    rows.CONV_TRANSPOSE1D_WEIGHT_BACKWARD,
    rows.CONV_TRANSPOSE1D_BIAS_BACKWARD,
)
_transposed_rules(
    rows.CONV_TRANSPOSE2D,
    rows.CONV2D,
    rows.CONV_TRANSPOSE2D_WEIGHT_BACKWARD,
    rows.CONV_TRANSPOSE2D_BIAS_BACKWARD,
)
_transposed_rules(
    rows.CONV_TRANSPOSE3D,
    rows.CONV3D,
    rows.CONV_TRANSPOSE3D_WEIGHT_BACKWARD,
    rows.CONV_TRANSPOSE3D_BIAS_BACKWARD,
)


@joint(rows.DEFORMABLE_CONV2D, uses=DEFORMABLE_INPUTS)
def _of_deformable(call: PastCall) -> dict[str, Tensor]:
    names = [name for name in DEFORMABLE_INPUTS if call[name] is not None]
    inputs = tuple([call[name] for name in DEFORMABLE_INPUTS])
    options = tuple([call.parameters[name] for name in DEFORMABLE_OPTIONS])
    found = DEFORMABLE_CONV2D_BACKWARD.apply_all((*inputs, call.grads[0]), (options,))
    return dict(zip(names, found, strict=True))


never(
    "the second derivative of a deformable convolution is not implemented, as in PyTorch",
    rows.DEFORMABLE_CONV2D_BACKWARD,
)
