"""Strides of results: those that the same operation of PyTorch gives on the CPU.

PyTorch computes them from tensors without elements (``FakeTensor``). A program notices them:
whether ``view`` refuses, and whether ``reshape`` copies, depends on the strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

__all__ = ["is_row_major", "strides_of_results"]

# Operators whose results are not contiguous even if all their arguments are.
_NOT_ROW_MAJOR: Final = frozenset({
    "_cholesky_solve_helper", "_fft_c2c", "_fft_c2r", "_fft_r2c", "linalg_cholesky_ex",
    "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex", "linalg_qr", "lu_unpack",
})  # fmt: skip


def _in_format_of(x: Any) -> Any:
    """Return the strides of a new tensor: row-major, or with channels last as ``x`` has them."""
    shown = torch.empty_strided(x.shape, x.stride(), device="meta")
    return torch.empty_like(shown, memory_format=suggest_memory_format(shown)).stride()


def _of_batch_norm(strides: Any, args: Any) -> Any:
    return (_in_format_of(args[0]), *strides[1:])


def _of_batch_norm_backward(strides: Any, args: Any) -> Any:
    return (strides[0] and _in_format_of(args[1]), *strides[1:])


def _of_roll(strides: Any, args: Any) -> Any:
    # Without axes, the elements are rolled in row-major order.
    return _in_format_of(args[0]) if len(args) > 2 and args[2] and args[0].numel() else strides


# Operators for which tensors without elements get other strides than the CPU's results -> a
# function of these strides and of the arguments.
_ON_CPU: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "_batch_norm_no_update": _of_batch_norm,
    "_batch_norm_with_update": _of_batch_norm,
    "_batch_norm_with_update_functional": _of_batch_norm,
    "_native_batch_norm_legit": _of_batch_norm,
    "_native_batch_norm_legit_functional": _of_batch_norm,
    "_native_batch_norm_legit_no_training": _of_batch_norm,
    "batch_norm_backward": _of_batch_norm_backward,
    "native_batch_norm": _of_batch_norm,
    "native_batch_norm_backward": _of_batch_norm_backward,
    "roll": _of_roll,
}


# Results of earlier calls. Most programs have few different ones. A full table is cleared.
_LIMIT: Final = 4096
_known: Final[dict[Any, Any]] = {}


def is_row_major(func: Any) -> bool:
    """Return whether results are contiguous if all tensors given are."""
    return func._schema.name.removeprefix("aten::") not in _NOT_ROW_MAJOR


def strides_of_results(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the strides of each result of an operation, nested as the results are.

    ``None`` if PyTorch cannot tell without the elements; such results are contiguous.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = (func, structure, tuple([_described(x) for x in leaves]))
    if key not in _known:
        if len(_known) >= _LIMIT:
            _known.clear()
        _known[key] = _strides(func, leaves, structure)
    return _known[key]


def _described(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return (x.shape, x.stride(), x.dtype)
    return (type(x), x)


def _strides(func: Any, leaves: list[Any], structure: Any) -> Any:
    with FakeTensorMode():
        args, kwargs = pytree.tree_unflatten([_on_cpu(x) for x in leaves], structure)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):  # it depends on elements
            return None
    strides = pytree.tree_map(lambda x: x.stride() if isinstance(x, torch.Tensor) else None, result)
    own = _ON_CPU.get(func._schema.name.removeprefix("aten::"))
    return strides if own is None else own(strides, args)


def _on_cpu(x: Any) -> Any:
    """Return a CPU tensor of the same layout in place of a tensor; ``FakeTensorMode`` fakes it."""
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return torch.device("cpu") if isinstance(x, torch.device) else x
