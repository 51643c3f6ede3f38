"""Execution of single kernels of the family ``Module``, as in a session."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from burn_remote_protocol.dtypes import ALL_DTYPES, DType
from burn_remote_protocol.operations.inference import infer
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION, array_dtype
from burn_remote_server.backends.array.core.precision import in_float32
from burn_remote_server.backends.array.kernels.kernel_families import module_families
from burn_remote_server.backends.array.kernels.networks.module_kernels import ModuleKernels
from support.kernels import BACKEND_NAME, backend, received, sent

__all__ = ["BFLOAT16", "Array", "call_kernel", "normal", "run", "spec_of"]

Array = np.ndarray[Any, Any]
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)

# The first dtype of each array dtype: tests need no Flex32 and no Bool(U8).
_DTYPES: Final[dict[Any, DType]] = {
    array_dtype(dtype): dtype for dtype in reversed(ALL_DTYPES) if dtype.name != "Flex32"
}


def spec_of(array: Array) -> TensorSpec:
    """Return the tensor spec of an array."""
    return TensorSpec(array.shape, _DTYPES[array.dtype])


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> Array:
    """Return normally distributed numbers that depend only on the arguments."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _families() -> list[Any]:
    if BACKEND_NAME == "numpy":
        return [*module_families(np)]
    backend()  # skips where there is no GPU
    from burn_remote_server.backends.cupy.array_module import CUPY
    from burn_remote_server.backends.cupy.kernel_families import cuda_families

    return [*cuda_families(), *module_families(CUPY)]


def _family(name: str, **settings: Any) -> ModuleKernels:
    # The first of several: a device's own kernels take precedence over the shared ones.
    family: ModuleKernels = next(
        family for family in _families() if family.family == "Module" and name in family.table()
    )
    for attribute, value in settings.items():
        setattr(family, attribute, value)
    return family


def call_kernel(name: str, *tensors: Array | None, out: Any = None, **parameters: Any) -> Any:
    """Call a kernel directly, without the checks of the table's rules."""
    with np.errstate(all="ignore"):
        return received(_family(name).table()[name](*sent(tensors), **parameters, out=out))


def run(
    name: str,
    *tensors: Array | None,
    requested: tuple[TensorSpec, ...] = (),
    settings: dict[str, int] | None = None,
    **parameters: Any,
) -> Any:
    """Run a kernel, check its outputs against the table, and return its array or tuple.

    ``settings`` replaces attributes of the family, such as ``workspace_bytes``.
    """
    row = TABLE["Module", name]
    inputs = tuple(None if tensor is None else spec_of(tensor) for tensor in tensors)
    outputs = infer(row, Call(inputs, parameters, requested))
    out: Any = outputs if name in _SEVERAL else outputs[0]
    family = _family(name, **(settings or {}))

    def kernel(*arrays: Array | None) -> Any:
        # As in a backend's thread, infinities and NaN cause no warnings.
        with np.errstate(all="ignore"):
            return family.table()[name](*arrays, **parameters, out=out)

    before = [None if tensor is None else tensor.tobytes() for tensor in tensors]
    low = any(tensor is not None and tensor.dtype in LOW_PRECISION for tensor in tensors)
    if low and name not in family.low_precision:
        dtypes = [array_dtype(spec.dtype) for spec in outputs]
        kernel = in_float32(kernel, tuple(dtypes) if name in _SEVERAL else dtypes[0])
    with np.errstate(all="ignore"):
        result = received(kernel(*sent(tensors)))
    assert before == [None if tensor is None else tensor.tobytes() for tensor in tensors]
    results = [
        item for item in (result if type(result) is tuple else (result,)) if item is not None
    ]
    assert [spec_of(item) for item in results] == list(outputs)
    return result


_SEVERAL: Final = frozenset(
    {"MaxPool1dWithIndices", "MaxPool2dWithIndices", "Rfft", "DeformableConv2dBackward"}
)
