"""What is a method called here that NumPy or PyTorch calls otherwise?

There is one name for each thing, the array API's where it has one. Who types another learns it
from the error.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NUMPY_OR_TORCH", "advice"]

_IMMUTABLE: Final = "a tensor never changes; use it as it is"
_GRADIENTS: Final = "gradients are computed by burn_remote.gradients"

# The name that was typed -> what to write instead.
NUMPY_OR_TORCH: Final = {
    "add": "x + y",
    "add_": "x = x + y",
    "backward": _GRADIENTS,
    "bool": "x.astype(burn_remote.bool)",
    "clamp": "x.clip(low, high)",
    "clone": _IMMUTABLE,
    "contiguous": _IMMUTABLE,
    "copy": _IMMUTABLE,
    "cpu": "x.numpy() to read it, x.to(device) to move it",
    "cuda": "x.to(device)",
    "cumprod": "x.cumulative_prod(axis=…)",
    "cumsum": "x.cumulative_sum(axis=…)",
    "detach": _IMMUTABLE,
    "dim": "x.ndim",
    "div": "x / y",
    "dot": "x @ y",
    "double": "x.astype(burn_remote.float64)",
    "expand": "x.broadcast_to(shape)",
    "fill": "burn_remote.full_like(x, value)",
    "float": "x.astype(burn_remote.float32)",
    "get": "x.numpy()",
    "grad": _GRADIENTS,
    "half": "x.astype(burn_remote.float16)",
    "int": "x.astype(burn_remote.int32)",
    "long": "x.astype(burn_remote.int64)",
    "masked_fill": "x.mask_fill(mask, value)",
    "matmul": "x @ y",
    "mul": "x * y",
    "norm": "burn_remote.vector_norm(x)",
    "numel": "x.size",
    "permute": "x.permute_dims(axes)",
    "pow": "x ** y",
    "ravel": "x.flatten()",
    "requires_grad": _GRADIENTS,
    "sub": "x - y",
    "t": "x.T",
    "type": "x.astype(dtype)",
    "unsqueeze": "x.expand_dims(axis)",
    "view": "x.reshape(shape)",
    "where": "burn_remote.where(condition, x, y)",
}


def advice(name: str) -> str:
    """Return how a missing method's error goes on: ``"; …"``, or nothing for an unknown name."""
    instead = NUMPY_OR_TORCH.get(name)
    return f"; here: {instead}" if instead else ""
