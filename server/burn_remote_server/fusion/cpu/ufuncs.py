"""Ufuncs of NumPy whose inner loops were compiled at run time.

NumPy makes them by ``PyUFunc_FromFuncAndData``, a function of its stable C interface. A call takes
as long as one of NumPy's own ufuncs, and works with every layout and with ``out``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler, Kernels

__all__ = ["MAX_UFUNC_ARRAYS", "CompiledUfunc", "compiled_ufunc"]

# The most operands and results that a ufunc has together, in all releases of NumPy 2.
MAX_UFUNC_ARRAYS: Final = 32

# Most ufuncs of all graphs of a process together, each with about 140 KB of machine code. At this
# number, no further runs of operations are compiled until graphs are freed.
MAX_UFUNCS: Final = 512

# The place of ``PyUFunc_FromFuncAndData`` in NumPy's table of functions, and its argument for an
# operation without an identity element.
_FROM_FUNCTION_AND_DATA: Final = 1
_NO_IDENTITY: Final = -1
_NAME: Final = b"fused"


class CompiledUfunc:
    """A ufunc with one loop, and the memory to which it refers, which must live as long."""

    def __init__(self, kernels: Kernels, numbers: bytes, operands: int) -> None:
        """``numbers`` are those of the dtypes of the operands and results."""
        function: Any
        (function,) = kernels.functions
        address = ctypes.cast(function, ctypes.c_void_p).value
        self._memory = (
            kernels,
            (ctypes.c_void_p * 1)(address),
            (ctypes.c_void_p * 1)(None),
            ctypes.create_string_buffer(numbers, len(numbers)),
        )
        _, functions, data, types = self._memory
        self.function: Final[Any] = _maker()(
            ctypes.addressof(functions),
            ctypes.addressof(data),
            ctypes.addressof(types),
            1,
            operands,
            len(numbers) - operands,
            _NO_IDENTITY,
            _NAME,
            b"",
            0,
        )


# By their sources and dtypes. Graphs with equal runs of operations share a ufunc. LLVM's types do
# not tell signed from unsigned integers, so runs of different dtypes may have the same source.
_ufuncs: Final[WeakValueDictionary[tuple[str, bytes], CompiledUfunc]] = WeakValueDictionary()


def compiled_ufunc(
    compiler: KernelCompiler,
    source: str,
    name: str,
    dtypes: Sequence[np.dtype[Any]],
    operands: int,
) -> tuple[CompiledUfunc | None, bool]:
    """Return the ufunc of a source and dtypes if it is compiled, and whether this result is final.

    ``name`` is the name of its loop; ``dtypes`` are the dtypes of the operands and results.
    """
    numbers = bytes(dtype.num for dtype in dtypes)
    known = _ufuncs.get((source, numbers))
    if known is not None:
        return known, True
    if len(_ufuncs) >= MAX_UFUNCS:
        return None, True
    kernels = compiler.found(source, (name,))
    if kernels is None:
        return None, compiler.is_final(source)
    made = _ufuncs[source, numbers] = CompiledUfunc(kernels, numbers, operands)
    return made, True


@cache
def _maker() -> Any:
    """Return ``PyUFunc_FromFuncAndData`` of the loaded NumPy."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = np._core._multiarray_umath._UFUNC_API  # type: ignore[attr-defined]
    table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object,
        *[ctypes.c_void_p] * 3,
        *[ctypes.c_int] * 4,
        *[ctypes.c_char_p] * 2,
        ctypes.c_int,
    )
    return kind(table[_FROM_FUNCTION_AND_DATA])
