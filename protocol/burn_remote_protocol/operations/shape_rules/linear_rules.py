"""Rules of matrix products, linear layers, embeddings and attention."""

from __future__ import annotations

from burn_remote_protocol.operations.row import Call, Rule
from burn_remote_protocol.operations.shape_rules.checks import (
    BOOLS,
    FLOATS,
    INTEGERS,
    Categories,
    broadcast_shapes,
    check_axis,
    check_category,
    check_rank,
    check_same_dtype,
    check_shape,
    refuse_shape,
    result,
)
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "attention",
    "batch_norm",
    "cross",
    "embedding",
    "embedding_backward",
    "layer_norm",
    "linear",
    "linear_bias_backward",
    "linear_weight_backward",
    "linear_x_backward",
    "matmul",
]

Outputs = tuple[TensorSpec, ...]


def matmul(categories: Categories) -> Rule:
    """Multiply the matrices in the last two axes; the axes before them broadcast."""

    def rule(call: Call) -> Outputs:
        lhs, rhs = call.inputs
        check_category("lhs", lhs, categories)
        check_same_dtype(lhs, rhs=rhs)
        for argument, spec in (("lhs", lhs), ("rhs", rhs)):
            if len(spec.shape) < 2:
                refuse_shape(f"{argument} is {spec}, but a matrix has 2 dimensions or more")
        if lhs.shape[-1] != rhs.shape[-2]:
            refuse_shape(f"{lhs} has {lhs.shape[-1]} columns, but {rhs} has {rhs.shape[-2]} rows")
        batch = broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
        return (result((*batch, lhs.shape[-2], rhs.shape[-1]), lhs.dtype),)

    return rule


def cross(call: Call) -> Outputs:
    """Broadcast two tensors that have 3 elements along one axis."""
    lhs, rhs = call.inputs
    check_category("lhs", lhs, FLOATS)
    check_same_dtype(lhs, rhs=rhs)
    dim = call.parameters["dim"]
    shape = broadcast_shapes(lhs.shape, rhs.shape)
    check_axis("dim", dim, shape)
    from_end = dim - len(shape)
    for argument, spec in (("lhs", lhs), ("rhs", rhs)):
        if -from_end > len(spec.shape) or spec.shape[from_end] != 3:
            refuse_shape(f"{argument} is {spec}, but must have 3 elements along {dim=}")
    return (result(shape, lhs.dtype),)


def _check_layer(**arguments: TensorSpec | None) -> None:
    (name, first), *others = arguments.items()
    if first is not None:
        check_category(name, first, FLOATS)
        check_same_dtype(first, **dict(others))


def _last(argument: str, spec: TensorSpec) -> int:
    if not spec.shape:
        refuse_shape(f"{argument} is {spec}, but must have a last axis of features")
    return spec.shape[-1]


def linear(call: Call) -> Outputs:
    """Replace the features in the last axis: ``[…, in] @ [in, out] + [out]``."""
    x, weight, bias = call.inputs
    _check_layer(x=x, weight=weight, bias=bias)
    check_rank("weight", weight, 2)
    if _last("x", x) != weight.shape[0]:
        refuse_shape(f"x is {x}, but weight {weight} takes {weight.shape[0]} features")
    if bias is not None:
        check_shape("bias", bias, weight.shape[1:])
    return (result((*x.shape[:-1], weight.shape[1]), x.dtype),)


def linear_x_backward(call: Call) -> Outputs:
    """Infer the gradient with respect to the input: ``[…, out] → […, in]``."""
    weight, grad = call.inputs
    _check_layer(output_grad=grad, weight=weight)
    check_rank("weight", weight, 2)
    if _last("output_grad", grad) != weight.shape[1]:
        refuse_shape(f"output_grad is {grad}, but weight {weight} makes {weight.shape[1]} features")
    return (result((*grad.shape[:-1], weight.shape[0]), grad.dtype),)


def linear_weight_backward(call: Call) -> Outputs:
    """Infer the gradient with respect to the weight ``[in, out]``."""
    x, grad = call.inputs
    _check_layer(output_grad=grad, x=x)
    sizes = _last("x", x), _last("output_grad", grad)
    if x.shape[:-1] != grad.shape[:-1]:
        refuse_shape(f"x is {x}, output_grad {grad}: they must differ in the last axis only")
    return (result(sizes, grad.dtype),)


def linear_bias_backward(call: Call) -> Outputs:
    """Infer the gradient with respect to the bias ``[out]``."""
    (grad,) = call.inputs
    check_category("output_grad", grad, FLOATS)
    return (TensorSpec((_last("output_grad", grad),), grad.dtype),)


def embedding(call: Call) -> Outputs:
    """Look up a row of weights for each index; the row is a new last axis."""
    weights, indices = call.inputs
    check_category("weights", weights, FLOATS)
    check_category("indices", indices, INTEGERS)
    check_rank("weights", weights, 2)
    return (result((*indices.shape, weights.shape[1]), weights.dtype),)


def embedding_backward(call: Call) -> Outputs:
    """Infer the gradient of the looked-up rows with respect to the weights."""
    weights, grad, indices = call.inputs
    _check_layer(weights=weights, out_grad=grad)
    check_category("indices", indices, INTEGERS)
    check_rank("weights", weights, 2)
    check_shape("out_grad", grad, (*indices.shape, weights.shape[1]))
    return (weights,)


def attention(call: Call) -> Outputs:
    """Attend with queries ``[batch, heads, length, size]`` to keys and values of another length."""
    query, key, value, mask, bias = call.inputs
    _check_layer(query=query, key=key, value=value, attn_bias=bias)
    check_rank("query", query, 4)
    check_rank("key", key, 4)
    check_rank("value", value, 4)
    batch, heads, length, size = query.shape
    check_shape("key", key, (batch, heads, key.shape[2], size))
    check_shape("value", value, (batch, heads, key.shape[2], value.shape[3]))
    scores = (batch, heads, length, key.shape[2])
    if mask is not None:
        check_category("mask", mask, BOOLS)
    for argument, spec in (("mask", mask), ("attn_bias", bias)):
        if spec is not None and broadcast_shapes(spec.shape, scores) != scores:
            refuse_shape(f"{argument} is {spec}, but must broadcast to the scores {list(scores)}")
    return (result((batch, heads, length, value.shape[3]), query.dtype),)


def layer_norm(call: Call) -> Outputs:
    """Normalize the last axis; scale and bias have one element for each of its elements."""
    x, gamma, beta = call.inputs
    check_category("input", x, FLOATS)
    check_same_dtype(x, gamma=gamma, beta=beta)
    if not x.shape:
        refuse_shape(f"input is {x}, but must have at least one dimension")
    check_shape("gamma", gamma, x.shape[-1:])
    if beta is not None:
        check_shape("beta", beta, x.shape[-1:])
    return (x,)


def batch_norm(call: Call) -> Outputs:
    """Normalize ``[batch, channels, …]``; the other tensors have one element per channel."""
    x, *others = call.inputs
    check_category("x", x, FLOATS)
    if len(x.shape) < 2:
        refuse_shape(f"x is {x}, but must have at least two dimensions")
    for name, spec in zip(("gamma", "beta", "mean", "variance"), others, strict=True):
        check_same_dtype(x, **{name: spec})
        check_shape(name, spec, x.shape[1:2])
    return (x,)
