"""Kernel families, and the classes of prepared kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.scalars import is_exact, rounded, scalar_array
from burn_remote_server.backends.interface import ElementwiseCall, Kernel, Run

__all__ = [
    "Array",
    "ArraySpec",
    "Elementwise",
    "FloatOrInteger",
    "Kernel",
    "KernelFamily",
    "Parameters",
    "Prepared",
    "PreparedKernel",
    "Run",
    "WithScalar",
    "direct_calls",
]

# An array of any module: NumPy's types do not describe CuPy's arrays.
Array = Any

# Parameters of an operation by their IR names.
Parameters = Mapping[str, Any]


class ArraySpec(NamedTuple):
    """The shape and the array dtype of a kernel's input."""

    shape: Shape
    dtype: Any


def _accepts_out_argument(function: Run) -> bool:
    # Ufuncs have an ``out`` argument; functions of this package that are composed of ufuncs do not.
    return isinstance(function, np.ufunc)


def direct_calls(
    function: Run, *constants: Any, is_slower: bool = False
) -> tuple[ElementwiseCall, ...]:
    """Return a ufunc as the only call of an elementwise kernel; nothing for another function."""
    if not _accepts_out_argument(function):
        return ()
    # NumPy deprecates ``out`` by position for these two.
    by_position = function not in (np.maximum, np.minimum)
    into = function if by_position else partial(function)
    return (ElementwiseCall(function, constants, into, is_slower),)


class KernelFamily(ABC):
    """Kernels of one family of the IR, written against an array module ``xp``.

    ``family`` is its IR name. ``is_elementwise``: each element of each result depends on one
    element of each input, so a kernel may be applied to parts of the inputs; an error in a part is
    an error of the whole. ``row_reductions`` names the variants with a parameter ``axis`` that are
    a ``RowReduction`` if it is the last axis. ``low_precision`` names the variants that take
    ``float16`` and ``bfloat16`` arrays directly, because they only move elements or round once
    themselves. All other kernels receive ``float32`` copies, and their results are rounded once.
    """

    family: ClassVar[str]
    is_elementwise: ClassVar[bool] = False
    row_reductions: ClassVar[frozenset[str]] = frozenset()
    low_precision: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    @abstractmethod
    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the IR names of their variants."""


class PreparedKernel(ABC):
    """A kernel that is prepared once per signature."""

    @abstractmethod
    def prepare(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run:
        """Return ``run(*tensors)`` for a first tensor of the shape and dtype ``first``."""

    def prepare_into(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run | None:
        """Return ``run(*tensors, out=array)``, which writes the result to ``out`` and returns it.

        ``out`` may be one of the tensors, if it has the result's shape and dtype. The kernel must
        therefore read every input element before it overwrites it. Returns ``None`` if the kernel
        has no such form.
        """
        return None

    def elementwise_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        """Return the kernel as calls of elementwise functions, or nothing if there are none."""
        return ()

    def numbered_call(self, first: ArraySpec, parameters: Parameters) -> ElementwiseCall | None:
        """Return the kernel as a call with one constant, if any number gives such a call.

        Returns ``None`` otherwise.
        """
        return None

    def prepare_widened(
        self, first: ArraySpec, wide: ArraySpec, out: Any, parameters: Parameters
    ) -> Run:
        """Return ``run(*tensors)`` for widened tensors.

        ``first`` is the session's first tensor, which has low precision. ``wide`` is its
        ``float32`` copy, which ``run`` receives.
        """
        return self.prepare(wide, out, parameters)

    def keeps_precision(self, first: ArraySpec, parameters: Parameters) -> bool:
        """Whether the kernel takes low-precision tensors directly and rounds only once."""
        return False

    def __call__(self, *tensors: Any, out: Any, **parameters: Any) -> Any:
        return self.prepare(ArraySpec(tensors[0].shape, tensors[0].dtype), out, parameters)(
            *tensors
        )


class Prepared(PreparedKernel):
    """A kernel made by a function that takes the first input, the outputs and the parameters.

    ``into`` makes the variant with an ``out`` argument, ``calls`` the kernel as calls of
    elementwise functions, and ``numbered`` as a call that takes any number. Low-precision inputs
    arrive as ``float32`` unless the family lists the kernel in ``low_precision``.
    """

    def __init__(
        self,
        prepare: Callable[[ArraySpec, Any, Parameters], Run],
        into: Callable[[ArraySpec, Any, Parameters], Run | None] | None = None,
        calls: Callable[[ArraySpec, Parameters], tuple[ElementwiseCall, ...]] | None = None,
        numbered: Callable[[ArraySpec, Parameters], ElementwiseCall | None] | None = None,
    ) -> None:
        self._prepare = prepare
        self._into = into
        self._calls = calls
        self._numbered = numbered

    def elementwise_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        return () if self._calls is None else self._calls(first, parameters)

    def numbered_call(self, first: ArraySpec, parameters: Parameters) -> ElementwiseCall | None:
        return None if self._numbered is None else self._numbered(first, parameters)

    def prepare_into(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run | None:
        return None if self._into is None else self._into(first, out, parameters)

    def prepare(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run:
        return self._prepare(first, out, parameters)


class Elementwise(PreparedKernel):
    """A function of the array module whose results equal Burn's in every dtype.

    Array modules compute ``float16`` and ``bfloat16`` in ``float32`` inside such a function, which
    takes less memory traffic than converting before and after.
    """

    def __init__(self, function: Run) -> None:
        self._function = function

    def prepare(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run:
        return self._function

    def prepare_into(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run | None:
        return self._function if _accepts_out_argument(self._function) else None

    def elementwise_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        return direct_calls(self._function)

    def keeps_precision(self, first: ArraySpec, parameters: Parameters) -> bool:
        return True


class FloatOrInteger(PreparedKernel):
    """Two kernels under one name: one for floating-point tensors, one for integers."""

    def __init__(self, floats: PreparedKernel, integers: PreparedKernel) -> None:
        self._floats = floats
        self._integers = integers

    def _chosen(self, first: ArraySpec) -> PreparedKernel:
        return self._integers if first.dtype.kind in "iu" else self._floats

    def prepare(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run:
        return self._chosen(first).prepare(first, out, parameters)

    def elementwise_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        return self._chosen(first).elementwise_calls(first, parameters)

    def numbered_call(self, first: ArraySpec, parameters: Parameters) -> ElementwiseCall | None:
        return self._chosen(first).numbered_call(first, parameters)

    def prepare_into(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run | None:
        return self._chosen(first).prepare_into(first, out, parameters)

    def keeps_precision(self, first: ArraySpec, parameters: Parameters) -> bool:
        return self._chosen(first).keeps_precision(first, parameters)


class WithScalar(PreparedKernel):
    """A function of a tensor and a number ``rhs``, which is converted to the tensor's dtype.

    ``rounds_scalar`` rounds the number to a low-precision dtype before it is widened: a comparison
    with 0.1 must match a tensor element that was stored as 0.1.
    """

    def __init__(self, xp: Any, function: Run, *, rounds_scalar: bool) -> None:
        self._xp = xp
        self._function = function
        self._rounds_scalar = rounds_scalar

    def prepare(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run:
        function = self._function
        number = scalar_array(self._xp, parameters["rhs"], first.dtype)

        def run(lhs: Array) -> Array:
            return function(lhs, number)

        return run

    def prepare_into(self, first: ArraySpec, out: Any, parameters: Parameters) -> Run | None:
        function = self._function
        if not _accepts_out_argument(function):
            return None
        number = scalar_array(self._xp, parameters["rhs"], first.dtype)

        def run(lhs: Array, *, out: Array) -> Array:
            return function(lhs, number, out=out)

        return run

    def elementwise_calls(
        self, first: ArraySpec, parameters: Parameters
    ) -> tuple[ElementwiseCall, ...]:
        if not _accepts_out_argument(self._function):
            return ()
        number = scalar_array(self._xp, parameters["rhs"], first.dtype)
        return direct_calls(self._function, number)

    def numbered_call(self, first: ArraySpec, parameters: Parameters) -> ElementwiseCall | None:
        number = scalar_array(self._xp, parameters["rhs"], first.dtype)
        return ElementwiseCall(self._function, (number,))

    def prepare_widened(
        self, first: ArraySpec, wide: ArraySpec, out: Any, parameters: Parameters
    ) -> Run:
        if self._rounds_scalar:
            parameters = {**parameters, "rhs": rounded(parameters["rhs"], first.dtype)}
        return self.prepare(wide, out, parameters)

    def keeps_precision(self, first: ArraySpec, parameters: Parameters) -> bool:
        return self._rounds_scalar or is_exact(parameters["rhs"], first.dtype)
