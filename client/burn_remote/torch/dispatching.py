"""The search for the *handler* of an aten operation, the function that carries it out.

PyTorch calls each operation by its overload. The first call of an overload finds its handler, which
later calls take from a dictionary:

- an overload with a handler of its own, such as a copy between devices (``_OWN``);
- a view (``geometry.VIEWS``): a tensor that shares the storage;
- an overload of the table: a function of values, whose results become new tensors;
- an operation on lists of tensors (``foreach.py``): one task for all of them;
- an overload that writes (``add_``, ``add.out``): the functional overload, whose results are
  written to the storage, so that all views of it change;
- anything else: PyTorch's own decomposition into other operations;
- with ``fallback("cpu")``: the CPU, through a copy.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from burn_remote.torch import decompositions
from burn_remote.torch.aten import (  # noqa: F401 - these fill the table
    adaptive_pooling,
    bessel_functions,
    creation,
    elementwise,
    embeddings,
    factorizations,
    fake_quantization,
    gamma_samples,
    incomplete_gamma,
    indexing,
    layers,
    losses,
    matrices,
    polynomials,
    recurrent,
    reductions,
    separable,
    shapes,
    signals,
    special_functions,
    volume_sampling,
    zeta_and_airy,
)
from burn_remote.torch.aten.table import TABLE
from burn_remote.torch.burn_tensor import BurnTensor, alias_as, same_view
from burn_remote.torch.compositions import COMPOSITIONS
from burn_remote.torch.copies import COPIES
from burn_remote.torch.decompositions import decomposed, refusal
from burn_remote.torch.device_registry import BACKEND
from burn_remote.torch.foreach import foreach
from burn_remote.torch.generators import drawing, takes_generator
from burn_remote.torch.geometry import VIEWS, metadata_of
from burn_remote.torch.gradient_seeds import ones_like
from burn_remote.torch.in_place import functional_overload, writing
from burn_remote.torch.linear_solves import FACTORIZATIONS
from burn_remote.torch.reinterpreting import REINTERPRETATIONS
from burn_remote.torch.value_conversion import Handler, functional, laid_out, name_of

__all__ = ["HANDLERS", "allow_fallback", "resolve"]

# Overload -> handler; filled as overloads are first called.
HANDLERS: Final[dict[Any, Handler]] = {}

# The most views that are remembered for an overload. If there are more, all are forgotten.
_LIMIT: Final = 4096


def _same_view(args: Any, _: dict[str, Any]) -> Any:
    x = args[0]
    if type(x) is not BurnTensor:
        raise RuntimeError("detach: the tensor must be on a burn device")
    return same_view(x)


# Overloads with handlers of their own, by name.
_OWN: Final[dict[str, Handler]] = {
    "alias": _same_view,
    "detach": _same_view,
    "ones_like": ones_like,
    **COPIES,
    **REINTERPRETATIONS,
    **COMPOSITIONS,
    **FACTORIZATIONS,
}


def allow_fallback(allowed: bool) -> None:
    """Permit operations that the device lacks to run on the CPU, or forbid it."""
    decompositions.allow_fallback(allowed)
    HANDLERS.clear()


def resolve(func: Any) -> Handler:
    """Return the handler of an overload. Only the first call searches for it."""
    handler = HANDLERS.get(func)
    if handler is None:
        handler = _found(func)
        if takes_generator(func):
            handler = drawing(func, handler)
        if _may_name_a_device(func):
            handler = _on_any_device(func, handler)
        HANDLERS[func] = handler
    return handler


def _may_name_a_device(func: Any) -> bool:
    """Return whether an overload makes a tensor like another one, such as ``ones_like``."""
    packet = name_of(func).partition(".")[0]
    return (packet.startswith("new_") or packet.endswith("_like")) and any(
        one.name == "device" for one in func._schema.arguments
    )


def _on_any_device(func: Any, handler: Handler) -> Handler:
    """Return a handler that also makes tensors on devices other than burn devices."""

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        wanted = kwargs.get("device")
        if wanted is None or torch.device(wanted).type == BACKEND:
            return handler(args, kwargs)
        # The elements of the example are not used.
        x = args[0]
        example = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=wanted)
        return func(example, *args[1:], **kwargs)

    return handle


def _found(func: Any) -> Handler:
    name = name_of(func)
    if func.namespace == "aten" and name in _OWN:
        return _OWN[name]
    if func.namespace == "aten" and name in VIEWS:
        return _view(func)
    if func in TABLE:
        return functional(func, TABLE[func])
    if name.startswith("_foreach_"):
        handler = foreach(func)
        if handler is not None:
            return handler
    if torch.Tag.inplace_view in func.tags:
        return _reshaping(func)
    if func._schema.is_mutable:
        return writing(func, resolve)
    return laid_out(func, decomposed(func))


def _view(func: Any) -> Handler:
    geometry = VIEWS[name_of(func)]
    function = TABLE.get(func)
    single = len(func._schema.returns) == 1 and str(func._schema.returns[0].type) == "Tensor"

    # The only view that can show elements outside of its storage.
    is_free = name_of(func) == "as_strided"
    known: dict[Any, Any] = {}

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if type(x) is not BurnTensor:
            raise RuntimeError(f"{name_of(func)}: the tensor must be on a burn device")
        key = x._metadata, *[tuple(one) if type(one) is list else one for one in args[1:]]
        shown: Any = None if kwargs else known.get(key)
        if shown is None:
            found = geometry(x._metadata.geometry, *args[1:], **kwargs)
            dtype = x._metadata.dtype
            if is_free and found.end > x._storage.count:
                raise RuntimeError(
                    f"as_strided: size {list(found.size)}, stride {list(found.stride)} and storage "
                    f"offset {found.offset} are out of bounds for storage of {x._storage.count} "
                    "elements"
                )
            shown = (
                metadata_of(found, dtype) if single else [metadata_of(one, dtype) for one in found]
            )
            if len(known) >= _LIMIT:
                known.clear()
            if not kwargs and not is_free:
                known[key] = shown
        if not single:
            return [alias_as(x, one, None) for one in shown]
        value = None
        # If the storage's elements are not in the order of the tensor's axes, the view is made of
        # the tensor's own value.
        storage = x._storage
        if storage.value is None and function is not None and x._version_seen == storage.version:
            value = None if x._value is None else function(x._value, *args[1:], **kwargs)
        return alias_as(x, shown, value)

    return handle


def _reshaping(func: Any) -> Handler:
    """Return the handler of ``t_`` and the like: the tensor becomes another view of its storage."""
    view = functional_overload(func, is_out=False)
    if view is None or name_of(view) not in VIEWS:
        return refusal(func)
    make = _view(view)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        args[0].data = make(args, kwargs)
        return args[0]

    return handle
