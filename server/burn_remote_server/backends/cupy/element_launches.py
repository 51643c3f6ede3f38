"""Element-wise operations whose kernels are launched without CuPy's functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import cupy
import numpy as np

from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.cupy.cuda_expressions import expression_of
from burn_remote_server.backends.cupy.element_kernels import (
    ELEMENT_FUNCTION,
    element_source,
    placement,
)
from burn_remote_server.backends.cupy.launches import (
    PreparedLaunch,
    is_c_ordered,
    kept_function,
    number_structure,
)
from burn_remote_server.backends.cupy.new_arrays import new_array
from burn_remote_server.backends.cupy.row_kernels import OPTIONS
from burn_remote_server.backends.interface import Run

__all__ = ["launched"]

# Threads of a block, and the most blocks: enough to occupy the largest GPUs several times over.
THREADS: Final = 256
MAX_BLOCKS: Final = 4096


# A cache without a limit: sources depend on neither sizes nor numbers, so there are at most about
# 2,000 kernels of 10 KB each.
@cache
def _function(source: str, device: int) -> Any:
    """Return a kernel for the current device, whose number is given."""
    return kept_function(source, ELEMENT_FUNCTION, OPTIONS)


def launched(signature: Signature, run: Run) -> Run:
    """Return a function that launches a prepared kernel for an operation if there is one.

    Otherwise, and for inputs that are not in C order, it calls ``run``, which gives the same bits.
    Only the session's thread may call the function, with arrays of the declared shapes and dtypes.
    """
    expression = expression_of(signature)
    if expression is None or _is_the_input(signature):
        return run
    (out,) = signature.outputs
    specs = [use.spec for use in signature.input_uses]
    placed = placement([spec.shape for spec in specs], out.shape)
    if placed is None:
        return run
    source = element_source(expression, [array_dtype(spec.dtype) for spec in specs], placed.places)
    size = math.prod(out.shape)
    integers = [np.array([each], np.uint32) for each in (size, placed.inner)]

    def prepare() -> PreparedLaunch:
        return PreparedLaunch(
            _function(source, cupy.cuda.runtime.getDevice()),
            (min(-(-size // THREADS), MAX_BLOCKS),),
            (THREADS,),
            len(specs) + 1,
            (*number_structure(expression.numbers), *integers),
        )

    form: Callable[..., Run] = _FORMS.get(len(specs), _of_several)
    return form(run, prepare, out.shape, array_dtype(out.dtype))


def _is_the_input(signature: Signature) -> bool:
    """Whether an operation may return its input."""
    (out,) = signature.outputs
    name = signature.row.name
    return (name == "Cast" and signature.input_uses[0].spec.dtype == out.dtype) or (
        name in ("PowfScalar", "PowiScalar") and signature.call.parameters["rhs"] == 1
    )


# Nearly all operations have one or two operands. The forms for these have no loop over operands. A
# kernel is compiled at the first call.


def _unary(run: Run, prepare: Callable[[], PreparedLaunch], shape: Shape, dtype: Any) -> Run:
    launch: PreparedLaunch | None = None

    def run_unary(x: Any) -> Any:
        nonlocal launch
        if not is_c_ordered(x):
            return run(x)
        if launch is None:
            launch = prepare()
        result = new_array(shape, dtype)
        pointers = launch.pointers
        pointers[0], pointers[1] = x.data.ptr, result.data.ptr
        launch.run(cupy.cuda.get_current_stream().ptr)
        return result

    return run_unary


def _binary(run: Run, prepare: Callable[[], PreparedLaunch], shape: Shape, dtype: Any) -> Run:
    launch: PreparedLaunch | None = None

    def run_binary(x: Any, y: Any) -> Any:
        nonlocal launch
        if not (is_c_ordered(x) and is_c_ordered(y)):
            return run(x, y)
        if launch is None:
            launch = prepare()
        result = new_array(shape, dtype)
        pointers = launch.pointers
        pointers[0], pointers[1], pointers[2] = x.data.ptr, y.data.ptr, result.data.ptr
        launch.run(cupy.cuda.get_current_stream().ptr)
        return result

    return run_binary


def _of_several(run: Run, prepare: Callable[[], PreparedLaunch], shape: Shape, dtype: Any) -> Run:
    launch: PreparedLaunch | None = None

    def run_several(*arrays: Any) -> Any:
        nonlocal launch
        if not all(map(is_c_ordered, arrays)):
            return run(*arrays)
        if launch is None:
            launch = prepare()
        result = new_array(shape, dtype)
        for place, array in enumerate((*arrays, result)):
            launch.pointers[place] = array.data.ptr
        launch.run(cupy.cuda.get_current_stream().ptr)
        return result

    return run_several


_FORMS: Final[dict[int, Callable[..., Run]]] = {1: _unary, 2: _binary}
