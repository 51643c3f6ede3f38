"""Gradients of linear layers, embeddings, attention and the CTC loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from burn_remote.autodiff.rule_table import joint, never, rule
from burn_remote.autodiff.transposed_gradients import Transposed
from burn_remote.dispatch.operators import Operator, reshaped, upload
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import astype
from burn_remote.functions.elementwise import exp, rsqrt, square, tanh
from burn_remote.functions.linear_algebra import matmul
from burn_remote.functions.logic import equal
from burn_remote.functions.manipulation import broadcast_to, matrix_transpose
from burn_remote.functions.selection import mask_fill
from burn_remote.functions.statistics import max, mean, sum
from burn_remote.gradient_rules.wide_rules import jointly_rounded_once
from burn_remote_protocol.operations.families import convolution_rows, layers
from burn_remote_protocol.operations.shape_rules.convolution_rules import window_count

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor

EMBEDDING: Final = Operator(layers.EMBEDDING)
EMBEDDING_BACKWARD: Final = Operator(layers.EMBEDDING_BACKWARD)
LINEAR: Final = Operator(layers.LINEAR)
LINEAR_X_BACKWARD: Final = Operator(layers.LINEAR_X_BACKWARD)
LINEAR_WEIGHT_BACKWARD: Final = Operator(layers.LINEAR_WEIGHT_BACKWARD)
LINEAR_BIAS_BACKWARD: Final = Operator(layers.LINEAR_BIAS_BACKWARD)
CONV2D_X_BACKWARD: Final = Operator(convolution_rows.CONV2D_X_BACKWARD)
CTC_LOSS_BACKWARD: Final = Operator(layers.CTC_LOSS_BACKWARD)

rule(
    layers.EMBEDDING,
    weights=lambda grad, weights, indices: EMBEDDING_BACKWARD.apply((weights, grad, indices)),
)
# The result depends only on the shape of the weights.
rule(
    layers.EMBEDDING_BACKWARD,
    out_grad=lambda grad, indices: EMBEDDING.apply((grad, indices)),
)
rule(
    layers.LINEAR,
    x=lambda grad, weight: LINEAR_X_BACKWARD.apply((weight, grad)),
    # The weight is nearly always the transpose of a parameter, whose gradient then needs no
    # transpose and has the parameter's order in memory: an update of [128, 784] took 130 µs with
    # the other order, and 25 with this one.
    weight=lambda grad, x: Transposed(LINEAR_WEIGHT_BACKWARD.apply((grad, x))),
    bias=lambda grad: LINEAR_BIAS_BACKWARD.apply((grad,)),
)
rule(
    layers.LINEAR_X_BACKWARD,
    weight=lambda grad, output_grad: LINEAR_WEIGHT_BACKWARD.apply((grad, output_grad)),
    output_grad=lambda grad, weight: LINEAR.apply((grad, weight, None)),
)
rule(
    layers.LINEAR_WEIGHT_BACKWARD,
    x=lambda grad, output_grad: LINEAR_X_BACKWARD.apply((grad, output_grad)),
    output_grad=lambda grad, x: LINEAR.apply((x, grad, None)),
)
rule(
    layers.LINEAR_BIAS_BACKWARD,
    output_grad=lambda grad, output_grad_spec: broadcast_to(grad, output_grad_spec.shape),
)


@joint(layers.ATTENTION, uses=("query", "key", "value", "mask", "attn_bias"))
@jointly_rounded_once
def _of_attention(call: PastCall) -> dict[str, Tensor | None]:
    """Compute the attention weights again, because the operation does not keep them."""
    (grad,) = call.grads
    query, key, value = call["query"], call["key"], call["value"]
    given = call.parameters["scale"]
    scale = 1 / math.sqrt(query.shape[-1]) if given is None else given
    softcap = call.parameters["softcap"]
    scores = multiply(matmul(query, matrix_transpose(key)), scale)
    bent = None if softcap is None else tanh(divide(scores, softcap))
    if bent is not None:
        scores = multiply(bent, softcap)
    scores = _hidden(call, scores)
    if call["attn_bias"] is not None:
        scores = scores + call["attn_bias"]
    weights = _weights(scores)
    to_weights = matmul(grad, matrix_transpose(value))
    mean = sum(multiply(to_weights, weights), axis=-1, keepdims=True)
    to_scores = multiply(weights, subtract(to_weights, mean))
    to_products = multiply(to_scores, scale)
    if bent is not None:
        to_products = multiply(to_products, subtract(1, multiply(bent, bent)))
    return {
        "query": matmul(to_products, key) if call.needs("query") else None,
        "key": matmul(matrix_transpose(to_products), query) if call.needs("key") else None,
        "value": matmul(matrix_transpose(weights), grad) if call.needs("value") else None,
        "attn_bias": to_scores if call["attn_bias"] is not None else None,
    }


def _hidden(call: PastCall, scores: Tensor) -> Tensor:
    """Replace the scores of keys that a query must not attend to by minus infinity."""
    if call["mask"] is not None:
        scores = mask_fill(scores, call["mask"], -math.inf)
    if call.parameters["is_causal"]:
        queries, keys = scores.shape[-2:]
        # The last query sees the last key, as in Burn.
        later = np.triu(np.ones((1, 1, queries, keys), bool), 1 + keys - queries)
        scores = mask_fill(scores, upload(scores, later), -math.inf)
    return scores


def _weights(scores: Tensor) -> Tensor:
    """Return the softmax of the last axis, and zeros where all scores are minus infinity."""
    if 0 in scores.shape:
        return exp(scores)
    top = max(scores.detach(), axis=-1, keepdims=True)
    top = mask_fill(top, equal(top, -math.inf), 0)
    powers = exp(subtract(scores, top))
    total = sum(powers, axis=-1, keepdims=True)
    return divide(powers, mask_fill(total, equal(total, 0), 1))


# As in PyTorch, the gradient includes that of the log-softmax that computed the log-probabilities.
rule(
    layers.CTC_LOSS,
    log_probs=lambda grad, log_probs, targets, input_lengths, target_lengths, blank: (
        CTC_LOSS_BACKWARD.apply((log_probs, targets, input_lengths, target_lengths, grad), (blank,))
    ),
)
never(
    "the second derivative of the CTC loss is not implemented, as in PyTorch",
    layers.CTC_LOSS_BACKWARD,
)


@joint(layers.LAYER_NORM, uses=("input", "gamma", "beta"))
def _of_layer_norm(call: PastCall) -> dict[str, Tensor | None]:
    (grad,), x = call.grads, call["input"]
    distance = subtract(x, mean(x, axis=-1, keepdims=True))
    variance = mean(square(distance), axis=-1, keepdims=True)
    scale = rsqrt(add(variance, call.parameters["epsilon"]))
    normal = multiply(distance, scale)
    leading = tuple(range(len(x.shape) - 1))
    found: dict[str, Tensor | None] = {}
    if call.needs("input"):
        share = multiply(grad, call["gamma"])
        along = mean(multiply(share, normal), axis=-1, keepdims=True)
        rest = subtract(subtract(share, mean(share, axis=-1, keepdims=True)), normal * along)
        found["input"] = multiply(rest, scale)
    if call.needs("gamma"):
        found["gamma"] = sum(multiply(grad, normal), axis=leading)
    if call["beta"] is not None and call.needs("beta"):
        found["beta"] = sum(grad, axis=leading)
    return found


@joint(layers.BATCH_NORM, uses=("x", "gamma", "mean", "variance"))
def _of_batch_norm(call: PastCall) -> dict[str, Tensor]:
    (grad,), x = call.grads, call["x"]
    shape = (-1, *(1,) * (len(x.shape) - 2))
    gamma, center, variance = (call[name].reshape(shape) for name in ("gamma", "mean", "variance"))
    scale = rsqrt(add(variance, call.parameters["epsilon"]))
    distance = subtract(x, center)
    others = (0, *range(2, len(x.shape)))
    share = multiply(multiply(grad, gamma), scale)
    found: dict[str, Tensor] = {"x": share}
    if call.needs("gamma"):
        found["gamma"] = sum(multiply(grad, multiply(distance, scale)), axis=others)
    if call.needs("beta"):
        found["beta"] = sum(grad, axis=others)
    if call.needs("mean"):
        found["mean"] = negative(sum(share, axis=others))
    if call.needs("variance"):
        slope = multiply(multiply(scale, scale), -0.5)
        found["variance"] = sum(multiply(multiply(share, distance), slope), axis=others)
    return found


@joint(layers.UNFOLD4D, uses=("x",))
def _of_unfolding(call: PastCall) -> dict[str, Tensor]:
    """Return the gradient of unfolding.

    Unfolding is a convolution of each channel with one filter for each element of the kernel.
    """
    (grad,), x = call.grads, call["x"].detach()
    kernel = call.parameters["kernel_size"]
    taps, channels = math.prod(kernel), x.shape[1]
    each = np.eye(taps).reshape(taps, 1, *kernel)
    filters = astype(upload(x, np.tile(each, (channels, 1, 1, 1))), x.dtype)
    geometry = tuple([call.parameters[name] for name in ("stride", "padding", "dilation")])
    rows, columns = [
        window_count(*axis) for axis in zip(x.shape[2:], kernel, *geometry, strict=True)
    ]
    windows = reshaped(grad, (*grad.shape[:2], rows, columns))
    return {"x": CONV2D_X_BACKWARD.apply((x, filters, windows), ((*geometry, channels),))}
