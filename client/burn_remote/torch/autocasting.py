"""``torch.autocast("burn")``: which operations run in lower precision, and which in float32.

The lists are those that PyTorch has for CUDA, as far as models use them; other operations run in
the dtypes that their arguments have.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

__all__ = ["register_autocast"]

# In the dtype of the autocast: products, which take most of the time.
LOWER: Final = (
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "linear",
    "matmul",
    "mm",
    "mv",
    "prelu",
    "scaled_dot_product_attention",
)
# In float32: functions whose results would lose too much precision.
FULL: Final = (
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy_loss",
    "cumsum",
    "exp",
    "group_norm",
    "kl_div",
    "layer_norm",
    "log",
    "log_softmax.int",
    "mse_loss",
    "nll_loss",
    "pow.Tensor_Scalar",
    "prod",
    "rsqrt",
    "smooth_l1_loss",
    "softmax.int",
    "softplus",
    "sum",
    "sum.dim_IntList",
)
KEY: Final = "AutocastPrivateUse1"

_libraries: list[Any] = []


def register_autocast(library: Any) -> None:
    """Register the casts of both lists in a library of aten implementations."""
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, KEY)
    _libraries.append(fallback)
    for names, is_full in ((LOWER, False), (FULL, True)):
        for name in names:
            packet, _, kind = name.partition(".")
            func = getattr(getattr(torch.ops.aten, packet), kind or "default")
            library.impl(name, _casting(func, is_full), KEY)


def _casting(func: Any, is_full: bool) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def call(*args: Any, **kwargs: Any) -> Any:
        wanted = torch.float32 if is_full else torch.get_autocast_dtype("burn")

        def cast(x: Any) -> Any:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64:
                return x.to(wanted)
            return x

        with torch._C._ExcludeDispatchKeyGuard(keys):
            args, kwargs = pytree.tree_map(cast, (args, kwargs))
            return func(*args, **kwargs)

    return call
