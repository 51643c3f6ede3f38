"""Strides of results: those that the same operation of PyTorch gives on the CPU.

PyTorch computes them from tensors without elements (``FakeTensor``). A program notices them:
whether ``view`` refuses, and whether ``reshape`` copies, depends on the strides.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

__all__ = ["is_row_major", "strides_of_results"]

# Operators whose results are not contiguous even if all their arguments are.
_NOT_ROW_MAJOR: Final = frozenset({
    "_cholesky_solve_helper", "_fft_c2c", "_fft_c2r", "_fft_r2c", "linalg_cholesky_ex",
    "linalg_inv_ex", "linalg_qr",
})  # fmt: skip

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
    return pytree.tree_map(lambda x: x.stride() if isinstance(x, torch.Tensor) else None, result)


def _on_cpu(x: Any) -> Any:
    """Return a CPU tensor of the same layout in place of a tensor; ``FakeTensorMode`` fakes it."""
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return torch.device("cpu") if isinstance(x, torch.device) else x
