"""The backend over an array module such as NumPy: storage, uploads and reads of tensors."""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dtypes import BOOL_U32, FLEX32, DType, DTypeUsage
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.array_session import ArraySession, kernel_table
from burn_remote_server.backends.array.collective_arithmetic import combiner, reducer
from burn_remote_server.backends.array.core.array_dtypes import wire_dtype
from burn_remote_server.backends.array.kernels.kernel_families import (
    random_families,
    shared_families,
)
from burn_remote_server.backends.array.kernels.quantized_kernels import stored
from burn_remote_server.backends.array.kernels.random_numbers import RandomStream
from burn_remote_server.backends.interface import Backend, Combine, Reduce, array_shape
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations

__all__ = ["ArrayBackend"]

_BYTE: Final = np.dtype("u1")
_TRUTH: Final = np.dtype("?")
_GENERAL: Final = DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC


class ArrayBackend(Backend):
    """A backend over an array module ``xp`` whose arrays are in the host's memory."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self._shared = kernel_table(shared_families(xp))

    @property
    def array_module(self) -> Any:
        """The unwrapped array module, which custom operations receive."""
        return self.xp

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        stream = RandomStream(self.xp)
        table = {**self._shared, **kernel_table(random_families(self.xp, stream))}
        return ArraySession(self, table, stream.seed, custom)

    # -- tensors in and out -------------------------------------------------------------------

    def to_device(self, data: TensorData) -> Any:
        elements = np.frombuffer(data.bytes, dtype=wire_dtype(data.dtype))
        if data.dtype.scheme is not None:
            elements = stored(elements, data.spec)
        elif elements.size != data.spec.size:
            raise ShapeMismatch(f"{data.spec} does not have {elements.nbytes:,} bytes")
        # A bytes object is immutable and belongs to this message alone: no copy is needed.
        if type(data.bytes) is bytes:
            upload = elements.reshape(array_shape(data.spec))
        else:
            upload = None
            if type(data.bytes) is memoryview and data.dtype.scheme is None:
                upload = self.arrived(data.bytes, data.spec)
            if upload is None:
                upload = self.empty(data.spec)
                self.write(upload, 0, elements.view(_BYTE).data)
        return self.finished(upload, data.dtype)

    def arrived(self, elements: memoryview, spec: TensorSpec) -> Any:
        """Return an array in the memory of a message, or ``None`` to copy the elements."""
        return None

    def empty(self, spec: TensorSpec) -> Any:
        return self.xp.empty(array_shape(spec), wire_dtype(spec.dtype))

    def write(self, upload: Any, offset: int, data: memoryview | bytes) -> None:
        # A copy between ``memoryview``s would hold the interpreter lock, which stopped the event
        # loop for 380 ms while the system provided 128 MiB of new memory.
        copied = np.frombuffer(data, np.uint8)
        np.copyto(upload.reshape(-1).view(_BYTE)[offset : offset + len(copied)], copied)

    def finished(self, upload: Any, dtype: DType) -> Any:
        array = upload
        if not dtype.is_bool:
            return array
        # Kernels read bools whose byte is neither 0 nor 1 in different ways.
        if array.dtype == _BYTE and (not array.size or int(array.max()) <= 1):
            return array.view(_TRUTH)
        return array != 0

    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        # Bools are stored as bytes already. The client may ask for another dtype than the array's,
        # for example for bools of 32 bits.
        wanted = wire_dtype(dtype)
        if array.dtype != wanted and not (array.dtype.kind == "b" and wanted.itemsize == 1):
            array = array.astype(wanted)
        return memoryview(array.ravel().view(_BYTE))

    def combiner(self, dtype: DType, reduction: Reduction, members: int) -> Combine:
        return combiner(dtype, reduction, members)

    def reducer(self, dtype: DType, reduction: Reduction) -> Reduce:
        return reducer(dtype, reduction)

    # Called for each dropped tensor: a Python function would take twice as long.
    nbytes = staticmethod(operator.attrgetter("nbytes"))  # type: ignore[assignment]

    def root(self, array: Any) -> Any:
        base = array.base
        if base is None:
            return array
        kind = type(array)
        if type(base) is kind and base.base is None:
            return base
        root = array
        while base is not None:
            # The chain of bases may contain objects of other types (NumPy's ``as_strided`` inserts
            # one), and may end in bytes or pooled memory. The root is the last array in the chain.
            if type(base) is kind:
                root = base
            base = getattr(base, "base", None)
        return root

    # -- what it can do -----------------------------------------------------------------------

    def dtype_usage(self, dtype: DType) -> DTypeUsage:
        # The same values as Burn's CPU server. Burn's client uses them to choose how bools are
        # stored, and asks for Bool(U32) before Bool(U8).
        if dtype.scheme is not None:
            return DTypeUsage.STORAGE  # arithmetic goes through float32; see ``DTypeUsage``
        return DTypeUsage(0) if dtype is BOOL_U32 or dtype is FLEX32 else _GENERAL
