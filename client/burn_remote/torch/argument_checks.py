"""PyTorch's own checks of shapes and dtypes, for operations that would compute without them.

A row of the table computes whatever its arguments permit, such as the product of matrices of two
dtypes, or a layer norm over another number of features. PyTorch refuses these calls. So the first
call of each shape and dtype is repeated with tensors of the device ``meta``, which have no
elements.
Operations that only broadcast their arguments need no such check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

__all__ = ["checked"]

# Products whose operands must have one dtype, which tensors without elements do not check.
_PRODUCTS: Final = frozenset({
    "addbmm", "addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "matmul", "mm", "mv",
})  # fmt: skip

# Operations with indices that may be masks.
_INDEXED: Final = frozenset({
    "_unsafe_index", "_unsafe_index_put", "index", "index_put",
})  # fmt: skip

_OTHERS: Final = frozenset({
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "arange", "argmax", "argmin", "avg_pool2d", "avg_pool3d", "clamp", "constant_pad_nd",
    "embedding", "gather", "grid_sampler_2d", "grid_sampler_3d", "index_add", "index_copy",
    "index_select",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "mean", "native_group_norm",
    "native_layer_norm", "nll_loss2d_forward", "nll_loss_forward", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d", "repeat", "replication_pad1d", "replication_pad2d",
    "replication_pad3d", "scatter", "scatter_add", "upsample_bicubic2d", "upsample_bilinear2d",
    "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_trilinear3d", "where",
})  # fmt: skip

# Calls that passed. Most programs have few different ones. A full table is cleared.
_LIMIT: Final = 4096
_passed: Final[set[Any]] = set()


def checked(func: Any) -> Callable[[Any, dict[str, Any]], None] | None:
    """Return a function of arguments that raises if an overload refuses them; ``None`` for most.

    It raises ``IndexError``, or ``RuntimeError`` with PyTorch's reason.
    """
    name = func._schema.name.removeprefix("aten::")
    if name not in _PRODUCTS | _INDEXED | _OTHERS:
        return None

    def check(args: Any, kwargs: dict[str, Any]) -> None:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        key = (func, structure, tuple([_described(x) for x in leaves]))
        if key in _passed:
            return
        if name in _PRODUCTS:
            _check_dtypes(name, leaves)
        elif name in _INDEXED:
            _check_masks(args[0], args[1])
        elif name in ("index_add", "index_copy", "index_select"):
            _check_places(name, args[0], args[2])
        _check_without_elements(func, leaves, structure)
        if len(_passed) >= _LIMIT:
            _passed.clear()
        _passed.add(key)

    return check


def _described(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, torch.Tensor) else (type(x), x)


def _check_dtypes(name: str, leaves: Sequence[Any]) -> None:
    dtypes = [x.dtype for x in leaves if isinstance(x, torch.Tensor)]
    if len(set(dtypes)) > 1:
        found = ", ".join(map(str, dtypes))
        raise RuntimeError(f"{name} expects tensors of the same dtype, but got: {found}")


def _check_places(name: str, x: Any, index: Any) -> None:
    if index.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index but got {index.dtype}")
    if index.dim() > 1:
        raise IndexError(f"{name}(): Index is supposed to be a vector")
    if name == "index_select" and not x.dim() and index.numel() != 1:
        raise RuntimeError(
            f"index_select(): Index to scalar can have only 1 value, got {index.numel()} values"
        )


def _check_masks(x: Any, indices: Sequence[Any]) -> None:
    axis = 0
    for place, index in enumerate(indices):
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            axis += 1
            continue
        shown = tuple(x.shape[axis : axis + index.dim()])
        if tuple(index.shape) != shown:
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {place} does not match the "
                f"shape of the indexed tensor {list(x.shape)} at index {axis}"
            )
        axis += index.dim()


def _check_without_elements(func: Any, leaves: Sequence[Any], structure: Any) -> None:
    args, kwargs = pytree.tree_unflatten([_without_elements(x) for x in leaves], structure)
    try:
        func(*args, **kwargs)
    except NotImplementedError:  # the result's shape depends on elements
        return
    except (IndexError, RuntimeError):
        raise
    except (AssertionError, TypeError, ValueError) as error:
        raise RuntimeError(str(error)) from error


def _without_elements(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x
