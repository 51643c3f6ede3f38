"""What is a method or an argument called here that NumPy, PyTorch or JAX calls otherwise?

There is one name for each thing, the array API's where it has one. Who types another learns it
from the error.
"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dtypes import DType

__all__ = ["DEVICES", "KEYWORDS", "KEYWORDS_THERE", "NUMPY_OR_TORCH", "PLACES", "advice"]

_IMMUTABLE: Final = "a tensor never changes; use it as it is"
_UNSIZED: Final = (
    "numpy's function of x.numpy(), because the shape of the result depends on the elements"
)
_HERE: Final = "numpy's function of x.numpy()"
_LAYOUT: Final = "elements are on a device, in an order that does not matter"
_REAL: Final = "numbers are never complex; use it as it is"
_REDUCTION: Final = "reduction='mean', 'sum' or 'none', where the function has it"
_GRADIENTS: Final = "gradients are computed by burn_remote.gradients"

# The name that was typed -> what to write instead.
NUMPY_OR_TORCH: Final = {
    "abs_": "x = x.abs()",
    "add": "x + y",
    "add_": "x = x + y",
    "allclose": _HERE,
    "amax": "x.max(axis=…)",
    "amin": "x.min(axis=…)",
    "argwhere": _UNSIZED,
    "at": "x.set(index, value)",
    "backward": _GRADIENTS,
    "bfloat16": "x.astype(burn_remote.bfloat16)",
    "bincount": _HERE,
    "block_until_ready": "x.device.sync()",
    "bmm": "x @ y",
    "bool": "x.astype(burn_remote.bool)",
    "byte": "x.astype(burn_remote.uint8)",
    "chunk": "x.split(count)",
    "clamp": "x.clip(low, high)",
    "clamp_": "x = x.clip(low, high)",
    "clamp_max": "x.clip(max=…)",
    "clamp_min": "x.clip(min=…)",
    "clone": _IMMUTABLE,
    "concat": "burn_remote.concat([x, y])",
    "concatenate": "burn_remote.concat([x, y])",
    "conj": _REAL,
    "contiguous": _IMMUTABLE,
    "copy": _IMMUTABLE,
    "copy_": _IMMUTABLE,
    "cpu": "x.numpy() to read it, x.to(device) to move it",
    "cuda": "x.to(device)",
    "cumprod": "x.cumulative_prod(axis=…)",
    "cumsum": "x.cumulative_sum(axis=…)",
    "data": "x.numpy() to read it",
    "data_ptr": _LAYOUT,
    "det": _HERE,
    "detach": _IMMUTABLE,
    "diag": _HERE,
    "diff": "burn_remote.diff(x)",
    "dim": "x.ndim",
    "div": "x / y",
    "div_": "x = x / y",
    "divide": "x / y",
    "dot": "x @ y",
    "double": "x.astype(burn_remote.float64)",
    "element_size": "x.dtype.itemsize",
    "eq": "x == y",
    "equal": "(x == y).all()",
    "exp_": "x = x.exp()",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)",
    "fill": "burn_remote.full_like(x, value)",
    "fill_": "burn_remote.full_like(x, value)",
    "flags": _LAYOUT,
    "flat": "x.flatten()",
    "float": "x.astype(burn_remote.float32)",
    "ge": "x >= y",
    "get": "x.numpy()",
    "get_device": "x.device",
    "grad": _GRADIENTS,
    "grad_fn": _GRADIENTS,
    "gt": "x > y",
    "half": "x.astype(burn_remote.float16)",
    "histc": _HERE,
    "imag": _REAL,
    "index_select": "x.take(indices, axis=…)",
    "indices": "x.max_with_indices(axis) and its neighbours give both",
    "int": "x.astype(burn_remote.int32)",
    "inverse": _HERE,
    "is_contiguous": _LAYOUT,
    "is_cuda": "x.device",
    "isclose": _HERE,
    "itemsize": "x.dtype.itemsize",
    "le": "x <= y",
    "lerp": "x + (y - x) * share",
    "logical_not": "burn_remote.logical_not(x)",
    "logsumexp": "x.exp().sum(axis=…).log()",
    "long": "x.astype(burn_remote.int64)",
    "lt": "x < y",
    "masked_fill": "x.mask_fill(mask, value)",
    "masked_fill_": "x.mask_fill(mask, value)",
    "masked_select": _UNSIZED,
    "matmul": "x @ y",
    "maximum": "burn_remote.maximum(x, y)",
    "median": _HERE,
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
    "new_ones": "burn_remote.ones(shape, dtype=x.dtype, device=x.device)",
    "new_tensor": "burn_remote.tensor(data, dtype=x.dtype, device=x.device)",
    "new_zeros": "burn_remote.zeros(shape, dtype=x.dtype, device=x.device)",
    "nonzero": _UNSIZED,
    "norm": "burn_remote.vector_norm(x)",
    "numel": "x.size",
    "outer": "burn_remote.outer(x, y)",
    "permute": "x.permute_dims(axes)",
    "pow": "x ** y",
    "ptp": "x.max() - x.min()",
    "quantile": _HERE,
    "ravel": "x.flatten()",
    "real": _REAL,
    "relu_": "x = x.relu()",
    "requires_grad": _GRADIENTS,
    "requires_grad_": _GRADIENTS,
    "reshape_as": "x.reshape(y.shape)",
    "retain_grad": _GRADIENTS,
    "scatter_": "x.scatter(axis, indices, value)",
    "scatter_add_": "x.scatter(axis, indices, value, update='add')",
    "searchsorted": _HERE,
    "select": "x[:, place]",
    "short": "x.astype(burn_remote.int16)",
    "sigmoid_": "x = x.sigmoid()",
    "sqrt_": "x = x.sqrt()",
    "stack": "burn_remote.stack([x, y])",
    "storage": _LAYOUT,
    "stride": _LAYOUT,
    "strides": _LAYOUT,
    "sub": "x - y",
    "sub_": "x = x - y",
    "subtract": "x - y",
    "swapdims": "x.swapaxes(0, 1)",
    "t": "x.T",
    "to_numpy": "x.numpy()",
    "tobytes": "x.numpy().tobytes()",
    "tofile": "x.numpy().tofile(file)",
    "trace": _HERE,
    "tril": "burn_remote.tril(x)",
    "triu": "burn_remote.triu(x)",
    "true_divide": "x / y",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "unbind": "list(x)",
    "unique": _UNSIZED,
    "unsqueeze": "x.expand_dims(axis)",
    "values": "x.max_with_indices(axis) and its neighbours give both",
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)",
    "where": "burn_remote.where(condition, x, y)",
    "zero_": "burn_remote.zeros_like(x)",
}

# Keyword that was typed -> parameter here, where the function has it -> what else to know.
KEYWORDS_THERE: Final = (
    ("a", "x", ""),
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
    ("end", "stop", ""),
    ("fill_value", "value", ""),
    ("index", "indices", ""),
    ("input", "x", ""),
    ("keepdim", "keepdims", ""),
    ("keepdims", "keepdim", ""),
    ("kind", "stable", "True or stable=False"),
    ("loc", "mean", ""),
    ("m", "columns", ""),
    ("multiples", "repetitions", ""),
    ("newshape", "shape", ""),
    ("other", "x2", ""),
    ("pad_width", "pad", " with the last axis first, as one tuple"),
    ("reps", "repetitions", ""),
    ("scale", "std", ""),
    ("shifts", "shift", ""),
    ("size", "shape", ""),
    ("split_size_or_sections", "sections", " (a count of parts, or places)"),
    ("src", "value", ""),
    ("steps", "num", ""),
    ("timeout", "connect_timeout_seconds", ""),
    ("unbiased", "correction", "0 for False, correction=1 for True"),
)

# Keyword that was typed, and that nothing here corresponds to -> what to do.
KEYWORDS: Final = {
    "copy": _IMMUTABLE,
    "decimals": "(x * 10**n).round() / 10**n",
    "dtype": "x.astype(dtype)",
    "end_dim": "x.reshape(shape)",
    "initial": "burn_remote.maximum(result, number)",
    "inplace": _IMMUTABLE,
    "memory_format": _LAYOUT,
    "non_blocking": "nothing blocks",
    "order": "elements are always in C order",
    "out": _IMMUTABLE,
    "pin_memory": "nothing, the server pins memory itself",
    "reduce": _REDUCTION,
    "requires_grad": _GRADIENTS,
    "size_average": _REDUCTION,
    "start_dim": "x.reshape(shape)",
    "where": "burn_remote.where(mask, x, 0) before",
}

# Function that was given several numbers, or tensors, in place of a tuple of them -> how to write.
PLACES: Final = {
    "broadcast_to": "x.broadcast_to((2, 3))",
    "concat": "concat([x, y])",
    "empty": "empty((2, 3), dtype=…)",
    "expand_dims": "x.expand_dims((0, 1))",
    "flatten": "x.reshape(shape) to join some axes",
    "flip": "x.flip((0, 1))",
    "read": "read([x, y])",
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

# Kind of device that PyTorch or JAX has -> what to write instead.
DEVICES: Final = {
    "cpu": "LocalDevice()",
    "cuda": "RemoteDevice('ws://host:3000'), of a server that has one",
    "gpu": "RemoteDevice('ws://host:3000'), of a server that has one",
    "local": "LocalDevice()",
    "mps": "LocalDevice()",
}


def advice(name: str) -> str:
    """Return how a missing method's error goes on: ``"; …"``, or nothing for an unknown name."""
    instead = NUMPY_OR_TORCH.get(name)
    return f"; here: {instead}" if instead else ""


def device_advice(device: object) -> str:
    """Return how the error goes on of what was given for a device: ``"; write …"``, or nothing."""
    if isinstance(device, DType):
        return "; x.astype(dtype) converts"
    if not isinstance(device, str):
        return ""
    instead = DEVICES.get(device.partition(":")[0]) or f"RemoteDevice({device!r})"
    return f"; write {instead}"
