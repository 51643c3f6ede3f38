"""A session of the array backend: binds each signature to its kernel once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.families.session import CUSTOM, IMPOSSIBLE
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION, array_dtype
from burn_remote_server.backends.array.core.kernel_forms import (
    ArraySpec,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    PreparedKernel,
    Run,
)
from burn_remote_server.backends.array.core.precision import in_float32, widened
from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.array.kernels.custom_kernels import bind_custom
from burn_remote_server.backends.array.kernels.quantized_kernels import bind_quantized, is_quantized
from burn_remote_server.backends.interface import (
    BackendSession,
    Deliver,
    ElementwiseCall,
    RowReduction,
)
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations

__all__ = ["ArraySession", "KernelTable", "kernel_table"]


# Stands for the first input of a kernel without inputs.
NO_INPUT: Final = ArraySpec((), None)


class KernelEntry(NamedTuple):
    """A kernel and its properties."""

    kernel: Kernel
    low_precision: bool  # the kernel takes low-precision tensors as they are
    is_elementwise: bool
    reduces_rows: bool  # it is a ``RowReduction`` along the last axis


# The operations for which ``returns_new_array`` is true.
PRODUCTS: Final = frozenset(
    {"Matmul", "Linear", "LinearXBackward", "LinearWeightBackward", "LinearBiasBackward"}
)

# The kernel of each (family, variant).
KernelTable = Mapping[tuple[str, str], KernelEntry]


def kernel_table(families: Iterable[KernelFamily]) -> KernelTable:
    """Return the kernels of several families by (family, variant); each pair occurs once."""
    table: dict[tuple[str, str], KernelEntry] = {}
    for family in families:
        for name, kernel in family.table().items():
            key = (family.family, name)
            assert key not in table, f"two kernels for {'.'.join(key)}"
            table[key] = KernelEntry(
                kernel,
                name in family.low_precision,
                family.is_elementwise,
                name in family.row_reductions,
            )
    return table


class ArrayStorage(Protocol):
    """The members of a backend that its sessions use."""

    @property
    def xp(self) -> Any:
        """The array module whose functions the kernels call."""
        ...

    @property
    def array_module(self) -> Any:
        """The unwrapped array module, which custom operations receive."""
        ...

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        """Return the elements of an array in C order; see ``Backend.to_bytes``."""
        ...


class ArraySession(BackendSession):
    """The kernels of one session of a backend.

    ``seed`` reseeds the session's random numbers; ``custom`` holds the custom operations.
    """

    def __init__(
        self,
        backend: ArrayStorage,
        table: KernelTable,
        seed: Callable[[int], None],
        custom: CustomOperations = NO_OPERATIONS,
    ) -> None:
        self._backend = backend
        self._xp = backend.xp
        self._table = table
        self._seed = seed
        self._custom = custom

    def seed(self, seed: int) -> None:
        self._seed(seed)

    def read(self, array: Any, dtype: DType, later: Callable[[], Deliver]) -> memoryview | None:
        return self._backend.to_bytes(array, dtype)

    def synced(self, later: Callable[[], Deliver]) -> bool:
        return True

    def array_dtype(self, dtype: DType) -> Any:
        return array_dtype(dtype)

    def bind(self, signature: Signature) -> Run:
        if signature.row is CUSTOM:
            return bind_custom(self._custom, self._backend.array_module, signature)
        if is_quantized(signature):
            return bind_quantized(self._xp, signature, self.bind)
        kernel, low_precision, *_ = self._found(signature)
        out = _declared_outputs(signature)
        specs = [use.spec for use in signature.input_uses]
        seen = [ArraySpec(spec.shape, self.array_dtype(spec.dtype)) for spec in specs]
        first = seen[0] if seen else NO_INPUT
        results = _array_dtypes(out)
        parameters = signature.call.parameters
        widens = not low_precision and any(item.dtype in LOW_PRECISION for item in seen)
        if isinstance(kernel, PreparedKernel):
            widens = widens and not self._keeps_precision(kernel, first, parameters)
            if widens:
                run = kernel.prepare_widened(first, widened(first), out, parameters)
            else:
                run = kernel.prepare(first, out, parameters)
        else:
            run = partial(kernel, **parameters, out=out)
        if widens:
            run = in_float32(run, results)
        # No operation with several outputs has an output without dimensions.
        return self._as_array(run) if type(out) is TensorSpec and not out.shape else run

    def bind_into(self, signature: Signature) -> Run | None:
        if is_quantized(signature):
            return None
        kernel, low_precision, *_ = self._found(signature)
        specs = [use.spec for use in signature.input_uses]
        if not isinstance(kernel, PreparedKernel) or signature.output_count != 1 or not specs:
            return None
        first = ArraySpec(specs[0].shape, self.array_dtype(specs[0].dtype))
        parameters = signature.call.parameters
        if any(self.array_dtype(spec.dtype) in LOW_PRECISION for spec in specs) and not (
            low_precision or self._keeps_precision(kernel, first, parameters)
        ):
            return None  # the kernel computes on float32 copies
        return kernel.prepare_into(first, _declared_outputs(signature), parameters)

    def bind_elementwise(
        self, signature: Signature, numbers: Mapping[str, float] | None = None
    ) -> tuple[ElementwiseCall, ...]:
        if signature.row is CUSTOM or is_quantized(signature) or _is_complex(signature):
            return ()
        if signature.output_count != 1:
            return ()
        # NumPy returns scalars, not arrays, for results without dimensions.
        if not signature.outputs[0].shape:
            return self._numbered_constant(signature, numbers or {})
        entry = self._found(signature)
        calls = self._direct_calls(signature, entry, numbers)
        if numbers and not calls:
            if not signature.input_uses:
                return ()
            return self._numbered_calls(signature, entry.kernel, numbers)
        if calls or not entry.is_elementwise:
            return calls
        return (ElementwiseCall(self.bind(signature), (), self.bind_into(signature)),)

    def _numbered_constant(
        self, signature: Signature, numbers: Mapping[str, float]
    ) -> tuple[ElementwiseCall, ...]:
        """Return the call for a 0-d ``Full`` whose value changes with each call of a graph.

        The value is bound as a 0-d array; nothing is returned for other operations.
        """
        if "value" not in numbers or signature.row.name != "Full":
            return ()
        (out,) = signature.outputs
        number = scalar_array(self._xp, numbers["value"], self.array_dtype(out.dtype))
        return (ElementwiseCall(_unchanged, (number,)),)

    def _numbered_calls(
        self, signature: Signature, kernel: Kernel, numbers: Mapping[str, float]
    ) -> tuple[ElementwiseCall, ...]:
        """Return the calls of an operation that no ufunc computes, with the numbers of a call.

        A backend for GPUs overrides this method.
        """
        if not isinstance(kernel, Prepared):
            return ()
        spec = signature.input_uses[0].spec
        first = ArraySpec(spec.shape, self.array_dtype(spec.dtype))
        call = kernel.numbered_call(first, {**signature.call.parameters, **numbers})
        return () if call is None else (call,)

    def bind_row_reduction(self, signature: Signature) -> RowReduction | None:
        if signature.row is CUSTOM or is_quantized(signature) or _is_complex(signature):
            return None
        if not self._found(signature).reduces_rows:
            return None
        (use,) = signature.input_uses
        if signature.call.parameters["axis"] != len(use.spec.shape) - 1:
            return None
        return RowReduction(self.bind(signature))

    def returns_new_array(self, signature: Signature) -> bool:
        # Other array modules may return products in another memory order.
        return self._xp is np and signature.row.name in PRODUCTS and not is_quantized(signature)

    def _direct_calls(
        self, signature: Signature, entry: KernelEntry, numbers: Mapping[str, float] | None
    ) -> tuple[ElementwiseCall, ...]:
        """Return an operation as calls of the array library's own functions, if possible."""
        kernel, low_precision, *_ = entry
        specs = [use.spec for use in signature.input_uses]
        if not isinstance(kernel, PreparedKernel) or not specs:
            return ()
        if numbers and isinstance(kernel, Prepared):
            return ()  # other numbers may need other calls
        first = ArraySpec(specs[0].shape, self.array_dtype(specs[0].dtype))
        parameters = signature.call.parameters
        if any(self.array_dtype(spec.dtype) in LOW_PRECISION for spec in specs) and (
            numbers or not (low_precision or self._keeps_precision(kernel, first, parameters))
        ):
            return ()  # the kernel needs float32 copies, at least for some numbers
        return kernel.elementwise_calls(first, {**parameters, **numbers} if numbers else parameters)

    def _keeps_precision(
        self, kernel: PreparedKernel, first: ArraySpec, parameters: Parameters
    ) -> bool:
        return kernel.keeps_precision(first, parameters)

    def _found(self, signature: Signature) -> KernelEntry:
        row = signature.row
        found = self._table.get((row.family, row.name))
        if found is None:
            reason = IMPOSSIBLE.get(row)
            raise Unsupported(
                f"this server has no implementation of {row}" + (f": {reason}" if reason else "")
            )
        return found

    def _as_array(self, run: Run) -> Run:
        # Array modules return NumPy scalars in place of zero-dimensional arrays.
        as_array = self._xp.asarray

        def run_to_array(*tensors: Any) -> Any:
            return as_array(run(*tensors))

        return run_to_array


def _unchanged(array: Any) -> Any:
    return array


def _is_complex(signature: Signature) -> bool:
    """Whether a tensor has complex numbers: no fused block computes with them."""
    specs = [*[use.spec for use in signature.input_uses], *signature.outputs]
    return any(spec.dtype.is_complex for spec in specs)


def _declared_outputs(signature: Signature) -> Any:
    """Return a kernel's ``out`` argument: one spec, or a tuple with None for absent outputs."""
    outputs: list[Any] = []
    several = False
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if field.role is Role.OUTPUT:
            listed = type(argument) is tuple
            several |= listed
            uses = argument if listed else (argument,)
            outputs += [None if use is None else use.spec for use in uses]
    return outputs[0] if len(outputs) == 1 and not several else tuple(outputs)


def _array_dtypes(out: Any) -> Any:
    if type(out) is TensorSpec:
        return array_dtype(out.dtype)
    return tuple(None if spec is None else array_dtype(spec.dtype) for spec in out)
