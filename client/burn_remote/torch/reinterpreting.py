"""Views with converted elements: complex numbers as pairs of reals, conjugates, negatives.

A write to such a view changes the tensor that it is a view of, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import burn_remote as br
from burn_remote.torch.aten.shapes import view_as_complex, view_as_real
from burn_remote.torch.burn_tensor import alias, geometry_of, value_of, view_of_storage
from burn_remote.torch.dtypes import dtype_to_torch
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.geometry import Geometry
from burn_remote.torch.storages import ReinterpretedStorage
from burn_remote.torch.value_conversion import Handler

__all__ = ["REINTERPRETATIONS"]

Tensor = br.Tensor


def _as_pairs(g: Geometry) -> Geometry:
    return Geometry((*g.size, 2), (*[2 * step for step in g.stride], 1), 2 * g.offset)


def _as_numbers(g: Geometry) -> Geometry:
    steps = g.stride[:-1]
    if not g.size or g.size[-1] != 2 or g.stride[-1] != 1:
        raise RuntimeError("Tensor must have a last dimension of size 2 and stride 1")
    if g.offset % 2 or any(step % 2 for step in steps):
        raise RuntimeError("Tensor must have strides and an offset divisible by 2")
    return Geometry(g.size[:-1], tuple([step // 2 for step in steps]), g.offset // 2)


def _pairs(flat: Tensor) -> Tensor:
    return br.reshape(flat, (flat.size // 2, 2))


def _view(
    function: Callable[[Tensor], Tensor],
    geometry: Callable[[Geometry], Geometry],
    there: Callable[[Tensor], Tensor],
    back: Callable[[Tensor], Tensor],
) -> Handler:
    """Return the handler of a view; ``there`` and ``back`` convert all elements of a storage."""

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        (x,) = args
        shown = geometry(geometry_of(x))
        value = function(value_of(x))
        storage = ReinterpretedStorage(x._storage, there, back)
        return view_of_storage(storage, shown, value, dtype_to_torch(value.dtype), x._place)

    return handle


def _same_if_real(handler: Handler) -> Handler:
    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        (x,) = args
        return handler(args, kwargs) if x.dtype.is_complex else alias(x, geometry_of(x), None)

    return handle


def _as_dtype(args: Any, kwargs: dict[str, Any]) -> Any:
    x, dtype = args[0], args[1] if len(args) > 1 else kwargs["dtype"]
    if dtype == x.dtype:
        return alias(x, geometry_of(x), None)
    raise UnsupportedOperation(
        f"aten::view.dtype from {x.dtype} to {dtype} is not available on burn devices, which do "
        "not reinterpret the bits of elements; to() converts their values"
    )


# Name of an overload -> its handler.
REINTERPRETATIONS: Final[dict[str, Handler]] = {
    "_conj": _same_if_real(_view(br.conj, lambda g: g, br.conj, br.conj)),
    "_neg_view": _view(br.negative, lambda g: g, br.negative, br.negative),
    "view.dtype": _as_dtype,
    "view_as_complex": _view(
        view_as_complex, _as_numbers, lambda x: view_as_complex(_pairs(x)), view_as_real
    ),
    "view_as_real": _view(
        view_as_real, _as_pairs, view_as_real, lambda x: view_as_complex(_pairs(x))
    ),
}
