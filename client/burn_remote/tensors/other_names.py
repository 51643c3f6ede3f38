"""What is a method or an argument called here that NumPy, PyTorch or JAX calls otherwise?

There is one name for each thing, the array API's where it has one. Who types another learns it
from the error.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KEYWORDS", "KEYWORDS_THERE", "NUMPY_OR_TORCH", "PLACES", "advice"]

_IMMUTABLE: Final = "a tensor never changes; use it as it is"
_UNSIZED: Final = (
    "numpy's function of x.numpy(), because the shape of the result depends on the elements"
)
_GRADIENTS: Final = "gradients are computed by burn_remote.gradients"

# The name that was typed -> what to write instead.
NUMPY_OR_TORCH: Final = {
    "add": "x + y",
    "add_": "x = x + y",
    "amax": "x.max(axis=…)",
    "amin": "x.min(axis=…)",
    "argwhere": _UNSIZED,
    "at": "x.set(index, value)",
    "backward": _GRADIENTS,
    "bfloat16": "x.astype(burn_remote.bfloat16)",
    "block_until_ready": "x.device.sync()",
    "bmm": "x @ y",
    "bool": "x.astype(burn_remote.bool)",
    "byte": "x.astype(burn_remote.uint8)",
    "chunk": "x.split(count)",
    "clamp": "x.clip(low, high)",
    "clamp_": "x = x.clip(low, high)",
    "clone": _IMMUTABLE,
    "concat": "burn_remote.concat([x, y])",
    "concatenate": "burn_remote.concat([x, y])",
    "contiguous": _IMMUTABLE,
    "copy": _IMMUTABLE,
    "copy_": _IMMUTABLE,
    "cpu": "x.numpy() to read it, x.to(device) to move it",
    "cuda": "x.to(device)",
    "cumprod": "x.cumulative_prod(axis=…)",
    "cumsum": "x.cumulative_sum(axis=…)",
    "data": "x.numpy() to read it",
    "detach": _IMMUTABLE,
    "diff": "burn_remote.diff(x)",
    "dim": "x.ndim",
    "div": "x / y",
    "div_": "x = x / y",
    "divide": "x / y",
    "dot": "x @ y",
    "double": "x.astype(burn_remote.float64)",
    "element_size": "x.dtype.itemsize",
    "eq": "x == y",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)",
    "fill": "burn_remote.full_like(x, value)",
    "fill_": "burn_remote.full_like(x, value)",
    "float": "x.astype(burn_remote.float32)",
    "ge": "x >= y",
    "get": "x.numpy()",
    "get_device": "x.device",
    "grad": _GRADIENTS,
    "gt": "x > y",
    "half": "x.astype(burn_remote.float16)",
    "index_select": "x.take(indices, axis=…)",
    "int": "x.astype(burn_remote.int32)",
    "is_cuda": "x.device",
    "itemsize": "x.dtype.itemsize",
    "le": "x <= y",
    "logical_not": "burn_remote.logical_not(x)",
    "long": "x.astype(burn_remote.int64)",
    "lt": "x < y",
    "masked_fill": "x.mask_fill(mask, value)",
    "masked_fill_": "x.mask_fill(mask, value)",
    "masked_select": _UNSIZED,
    "matmul": "x @ y",
    "maximum": "burn_remote.maximum(x, y)",
    "minimum": "burn_remote.minimum(x, y)",
    "mm": "x @ y",
    "mul": "x * y",
    "mul_": "x = x * y",
    "multiply": "x * y",
    "mv": "x @ y",
    "narrow": "x[:, start:end]",
    "ndimension": "x.ndim",
    "ne": "x != y",
    "neg": "-x",
    "nelement": "x.size",
    "nonzero": _UNSIZED,
    "norm": "burn_remote.vector_norm(x)",
    "numel": "x.size",
    "outer": "burn_remote.outer(x, y)",
    "permute": "x.permute_dims(axes)",
    "pow": "x ** y",
    "ptp": "x.max() - x.min()",
    "ravel": "x.flatten()",
    "relu_": "x = x.relu()",
    "requires_grad": _GRADIENTS,
    "requires_grad_": _GRADIENTS,
    "reshape_as": "x.reshape(y.shape)",
    "retain_grad": _GRADIENTS,
    "scatter_": "x.scatter(axis, indices, value)",
    "scatter_add_": "x.scatter(axis, indices, value, update='add')",
    "select": "x[:, place]",
    "short": "x.astype(burn_remote.int16)",
    "stack": "burn_remote.stack([x, y])",
    "sub": "x - y",
    "sub_": "x = x - y",
    "subtract": "x - y",
    "swapdims": "x.swapaxes(0, 1)",
    "t": "x.T",
    "to_numpy": "x.numpy()",
    "tobytes": "x.numpy().tobytes()",
    "tril": "burn_remote.tril(x)",
    "triu": "burn_remote.triu(x)",
    "true_divide": "x / y",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "unbind": "list(x)",
    "unique": _UNSIZED,
    "unsqueeze": "x.expand_dims(axis)",
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)",
    "where": "burn_remote.where(condition, x, y)",
    "zero_": "burn_remote.zeros_like(x)",
}

# Keyword that was typed -> parameter here, where the function has it -> what else to know.
KEYWORDS_THERE: Final = (
    ("a_max", "max", ""),
    ("a_min", "min", ""),
    ("axes", "axis", ""),
    ("axis", "axes", ""),
    ("axis", "dim", ""),
    ("ddof", "correction", ""),
    ("descending", "largest", " (the other way round)"),
    ("diagonal", "k", ""),
    ("dim", "axes", ""),
    ("dim", "axis", ""),
    ("dim0", "axis1", ""),
    ("dim1", "axis2", ""),
    ("dims", "axes", ""),
    ("dims", "axis", ""),
    ("fill_value", "value", ""),
    ("index", "indices", ""),
    ("keepdim", "keepdims", ""),
    ("keepdims", "keepdim", ""),
    ("multiples", "repetitions", ""),
    ("newshape", "shape", ""),
    ("shifts", "shift", ""),
    ("size", "shape", ""),
    ("src", "value", ""),
    ("split_size_or_sections", "sections", " (a count of parts, or places)"),
    ("steps", "num", ""),
    ("unbiased", "correction", "0 for False, correction=1 for True"),
)

# Keyword that was typed, and that nothing here corresponds to -> what to do.
KEYWORDS: Final = {
    "copy": _IMMUTABLE,
    "dtype": "x.astype(dtype)",
    "end_dim": "x.reshape(shape)",
    "start_dim": "x.reshape(shape)",
    "decimals": "(x * 10**n).round() / 10**n",
    "inplace": _IMMUTABLE,
    "non_blocking": "nothing blocks",
    "order": "elements are always in C order",
    "out": _IMMUTABLE,
    "pin_memory": "nothing, the server pins memory itself",
    "requires_grad": _GRADIENTS,
}

# Function that was given several numbers, or tensors, in place of a tuple of them -> how to write.
PLACES: Final = {
    "broadcast_to": "x.broadcast_to((2, 3))",
    "concat": "concat([x, y])",
    "empty": "empty((2, 3), dtype=…)",
    "expand_dims": "x.expand_dims((0, 1))",
    "flatten": "x.reshape(shape) to join some axes",
    "flip": "x.flip((0, 1))",
    "ones": "ones((2, 3), dtype=…)",
    "permute_dims": "x.permute_dims((1, 0))",
    "roll": "x.roll((1, 2), axis=(0, 1))",
    "round": "(x * 10**n).round() / 10**n for n digits",
    "squeeze": "x.squeeze((0, 1))",
    "stack": "stack([x, y])",
    "tile": "x.tile((2, 2))",
    "transpose": "x.swapaxes(0, 1) to exchange two axes, x.transpose((1, 0)) to order all",
    "zeros": "zeros((2, 3), dtype=…)",
}


def advice(name: str) -> str:
    """Return how a missing method's error goes on: ``"; …"``, or nothing for an unknown name."""
    instead = NUMPY_OR_TORCH.get(name)
    return f"; here: {instead}" if instead else ""
