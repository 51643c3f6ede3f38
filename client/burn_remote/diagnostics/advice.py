"""Advice for names that an object, a module or a call does not have.

For a name of another library, it is what a program writes here (``foreign_names``), and for a
misspelled one the most similar name.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final, NoReturn

import numpy as np

from burn_remote.diagnostics.foreign_names import (
    DEVICE_ATTRIBUTES,
    DEVICES,
    FUNCTIONS,
    GROUP_ATTRIBUTES,
    METHODS,
    NAMESPACES,
)
from burn_remote_protocol.dtypes import DType

__all__ = [
    "attribute_advice",
    "device_advice",
    "device_attribute_advice",
    "group_attribute_advice",
    "missing_from",
    "numpy_equivalent",
    "similar_name",
]

# Names of dtypes, which are no devices either.
_DTYPES: Final = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    }
)

# How similar a name must be to be suggested, as a ratio of difflib: 0.6, its default, suggests
# "mean" for "name".
SIMILARITY: Final = 0.75


def attribute_advice(name: str, owner: type) -> str:
    """Return the advice for a missing attribute of a tensor of class ``owner``, or ``""``."""
    found = METHODS.get(name) or _other_form(name, owner)
    return f"; in burn_remote: {found}" if found else _advice(name, dir(owner), METHODS)


def device_attribute_advice(name: str, owner: type) -> str:
    """Return the advice for a missing attribute of a device of class ``owner``, or ``""``."""
    return _advice(name, dir(owner), DEVICE_ATTRIBUTES)


def group_attribute_advice(name: str, owner: type) -> str:
    """Return the advice for a missing attribute of a group of class ``owner``, or ``""``."""
    return _advice(name, dir(owner), GROUP_ATTRIBUTES)


def numpy_equivalent(name: str) -> str | None:
    """Return the function of burn_remote that replaces a NumPy function, or ``None``."""
    package = sys.modules[__name__.partition(".")[0]]
    if name in package.__all__:
        return f"burn_remote.{name}(…)"
    instead = FUNCTIONS.get(name) or METHODS.get(name, "")
    return instead if instead.startswith(("burn_remote.", "x.")) else None


def similar_name(name: str, known: Collection[str]) -> str | None:
    """Return the most similar of the known names, or ``None`` if none is similar."""
    if name.startswith("_"):  # libraries look for protocols such as __array_interface__
        return None
    public = [one for one in known if not one.startswith("_")]
    found = difflib.get_close_matches(name, public, n=1, cutoff=SIMILARITY)
    return found[0] if found else None


def device_advice(device: object) -> str:
    """Return the advice for a value passed as a device: ``"; write …"``, or ``""``."""
    if _names_dtype(device):
        return "; x.astype(dtype) converts"
    if hasattr(device, "handle"):
        return "; x.to(y.device) moves x to the device of y"
    name = device if isinstance(device, str) else getattr(device, "type", None)  # of torch.device
    if not isinstance(name, str):
        return ""
    instead = DEVICES.get(name.partition(":")[0])
    return "" if instead is None else f"; write {instead}"


def _names_dtype(value: object) -> bool:
    """Return whether a value passed as a device is a dtype, or the name or class of one."""
    if isinstance(value, type):
        return issubclass(value, np.generic | int | float | complex)
    return isinstance(value, DType | np.dtype) or (isinstance(value, str) and value in _DTYPES)


def missing_from(
    module: str, own_names: Mapping[str, str] | None = None
) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which raises ``AttributeError`` with advice.

    ``own_names`` has foreign names of this module, which take precedence over the common tables.
    """

    def missing(name: str) -> NoReturn:
        functions = {**FUNCTIONS, **NAMESPACES, **(own_names or {})}
        found = functions.get(name) or _elsewhere(name, module) or METHODS.get(name)
        if found is None and not name.startswith("_"):
            tensor = vars(sys.modules[__name__.partition(".")[0]]).get("Tensor", object)
            found = _expression(name, tensor) or _other_form(name, tensor)
        if found is None:
            text = _advice(name, _public_names(module), functions)
        else:
            text = f"; in burn_remote: {found}"
        raise AttributeError(f"module {module!r} has no attribute {name!r}{text}", name=name)

    return missing


def _other_form(name: str, owner: type) -> str | None:
    """Return what to write for a name that is another form of one that exists.

    PyTorch has most operations as a function, as a method and in place, with ``_`` at the end.
    """
    if name.startswith("_"):
        return None
    if not name.endswith("_"):
        return METHODS.get(f"{name}_") or _expression(name, owner)
    stem = name.removesuffix("_")
    result = METHODS.get(stem) or _expression(stem, owner)
    return f"x = {result}" if result else None


def _expression(name: str, owner: type) -> str | None:
    """Return an expression of a tensor x that has a function's or a method's name."""
    if name in dir(owner):
        return f"x.{name}{_arguments(getattr(owner, name))}"
    for module in _SEARCHED:
        function = vars(sys.modules[module]).get(name) if name in _public_names(module) else None
        if inspect.isfunction(function) and _first_annotation(function).startswith("Tensor"):
            return f"{module}.{name}(x{_arguments(function).strip('()') and ', …'})"
    instead = FUNCTIONS.get(name, "")
    return instead if re.search(r"\bx\b", instead) else None


def _first_annotation(function: Callable[..., object]) -> str:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return "" if first is None else str(first.annotation)


def _arguments(attribute: object) -> str:
    """Return the arguments after the tensor: ``""`` for a property, ``"(…)"`` if there are any."""
    if not callable(attribute):
        return ""
    return "(…)" if len(inspect.signature(attribute).parameters) > 1 else "()"


# Modules of the package that are searched, in this order, for a name that another one lacks.
_SEARCHED: Final = tuple(
    "burn_remote" + suffix
    for suffix in (
        *("", ".functional", ".linalg", ".fft", ".random", ".optim", ".init"),
        *(".distributed", ".tree", ".autograd"),
    )
)


def _elsewhere(name: str, module: str) -> str | None:
    """Return the full name of what another module of the package has under a name."""
    places = (place for place in _SEARCHED if place != module)
    return next((f"{place}.{name}" for place in places if name in _public_names(place)), None)


def _public_names(module: str) -> Collection[str]:
    """Return the public names of a module; those of one that was not imported yet are unknown."""
    return vars(sys.modules[module]).get("__all__", ()) if module in sys.modules else ()


def _advice(name: str, ours: Collection[str], foreign: Mapping[str, str]) -> str:
    """Return our equivalent of a foreign name, or a similar name: ``"; …"``, else ``""``."""
    if name in foreign:
        return f"; in burn_remote: {foreign[name]}"
    similar = similar_name(name, ours) or similar_name(name, foreign)
    if similar is None:
        return ""
    instead = f" In burn_remote: {foreign[similar]}" if similar not in ours else ""
    return f"; did you mean {similar!r}?{instead}"
