"""Collectives between GPUs by NCCL, which a communicator starts on a separate stream.

NCCL has no 16-bit integers. So they are reduced as 32-bit integers, whose low 16 bits are the
result that wraps around. NCCL's minimum and maximum may drop a NaN, so flags that mark the NaNs are
reduced in addition to the elements.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import cupy
import numpy as np

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, Reduction
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16, wire_dtype
from burn_remote_server.backends.cupy.device import Gpu, Shared
from burn_remote_server.backends.interface import array_shape

__all__ = ["NcclCommunicator", "has_nccl", "new_identifier"]

# The values of NCCL's ncclDataType_t and ncclRedOp_t, from nccl.h.
UINT8: Final = 1
INT32: Final = 2
_DTYPES: Final = {
    "int8": 0,
    "uint8": UINT8,
    "int32": INT32,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
SUM: Final = 0
MAX: Final = 2
_OPERATIONS: Final = {
    Reduction.SUM: SUM,
    Reduction.MEAN: SUM,
    Reduction.PRODUCT: 1,
    Reduction.MAX: MAX,
    Reduction.MIN: 3,
}
# Most calls of a communicator whose plans are kept.
MAX_PLANS: Final = 256

_ORDERED: Final = (Reduction.MIN, Reduction.MAX)


def _library() -> Any:
    """Return CuPy's module for NCCL. Raises ``Unsupported``."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unsupported(f"CuPy cannot load NCCL: {error}") from None
    if not getattr(nccl, "available", True):
        raise Unsupported("CuPy was built or installed without NCCL")
    return nccl


class _Plan(NamedTuple):
    """What a call means to NCCL. Programs repeat their calls, and this takes time to find out.

    ``inputs`` are the dtypes in which elements are transferred, ``outputs`` shapes and dtypes.
    ``reduction`` is the size, the dtype and the operation of an all-reduce of one tensor that NCCL
    carries out alone.
    """

    call: CollectiveCall
    inputs: tuple[Any, ...]
    outputs: tuple[tuple[Shape, Any], ...]
    reduction: tuple[int, int, int] | None


def has_nccl() -> bool:
    """Whether NCCL can be used."""
    try:
        _library()
    except Unsupported:
        return False
    return True


def new_identifier() -> bytes:
    """Return the identifier that the members of a new communicator share."""
    # CuPy 14 returns bytes, earlier versions a tuple of signed numbers.
    return bytes(one & 0xFF for one in _library().get_unique_id())


class NcclCommunicator:
    """A member of an NCCL communicator (``Communicator``). One thread starts collectives."""

    def __init__(self, gpu: Gpu, identifier: bytes, members: int, rank: int) -> None:
        """Join the other members; return once all have joined. Raises NCCL's errors."""
        self._nccl: Final = _library()
        self._gpu: Final = gpu
        self._members: Final = members
        self._rank: Final = rank
        self._plans: Final[dict[int, _Plan]] = {}  # by the identities of their calls
        self._thread = 0  # the thread that uses the device and the stream
        self._awaited: Any = None  # the event for which the stream was made to wait last
        # Of the collectives started since the last ``watch``: the outputs, and what must stay alive
        # until they have finished.
        self._started: list[tuple[list[Any], Any]] = []
        given: Any = identifier
        if not isinstance(self._nccl.get_unique_id(), bytes):
            given = tuple(one - 256 if one > 127 else one for one in identifier)
        # One of the GPU's streams for reuse, because memory that is freed on a stream can only be
        # reused on that stream.
        self._stream: Final = gpu.take_stream()
        try:
            with gpu.device:
                self._comm: Final = self._nccl.NcclCommunicator(members, given, rank)
        except BaseException:
            gpu.give_back_stream(self._stream)
            raise

    def start(
        self,
        call: CollectiveCall,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
    ) -> None:
        """Start a collective on shared arrays; see ``Communicator.start``."""
        # Most calls of CUDA and NCCL release the interpreter lock, for which the threads of the
        # other members wait. So this makes as few as possible, such as no group of calls for a
        # single one.
        gpu, stream = self._gpu, self._stream
        plan = self._plans.get(id(call))
        if plan is None or plan.call is not call:
            plan = self._planned(call, specs)
        if self._thread != threading.get_ident():
            gpu.device.use()
            stream.use()
            self._thread = threading.get_ident()
        with gpu.faults:
            for shared in inputs:
                if shared.ready is self._awaited:  # one event may make many arrays ready
                    continue
                # Not only if a query says that it is pending: that leaves an error for this thread
                # (cudaErrorNotReady), which NCCL could take for the failure of its own launch.
                stream.wait_event(shared.ready)
                self._awaited = shared.ready
            given = [
                _as_elements(shared.array, dtype)
                for shared, dtype in zip(inputs, plan.inputs, strict=True)
            ]
            outputs = [cupy.empty(*output) for output in plan.outputs]
            if plan.reduction is not None:
                pointers = given[0].data.ptr, outputs[0].data.ptr
                self._comm.allReduce(*pointers, *plan.reduction, stream.ptr)
                made = outputs
            else:
                made = _RUN[call.kind](self, call, given, outputs)
                made = [
                    one != 0 if spec.dtype.is_bool else one
                    for one, spec in zip(made, specs, strict=True)
                ]
        self._started.append((made, (inputs, given, outputs)))

    def watch(self, done: Callable[[Sequence[Sequence[Any]] | None], None]) -> Callable[[], None]:
        """Have ``done`` called when the GPU has finished; see ``Communicator.watch``."""
        gpu, stream = self._gpu, self._stream
        with gpu.faults:
            event = gpu.recorded(stream)  # one event for all, because each takes two calls of CUDA
        started, self._started = self._started, []
        passed = partial(_deliver, done, event, started)
        gpu.event_poller.call(event, passed, stream.ptr, is_patient=True)
        return partial(gpu.event_poller.hurry, event)

    def _planned(self, call: CollectiveCall, specs: Sequence[TensorSpec]) -> _Plan:
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        inputs = tuple([wire_dtype(spec.dtype) for spec in call.input_specs(self._rank)])
        outputs = tuple([(array_shape(spec), wire_dtype(spec.dtype)) for spec in specs])
        reduction = None
        if call.kind is CollectiveKind.ALL_REDUCE and len(specs) == 1 and specs[0].size:
            dtype = inputs[0]
            is_float = dtype.kind in "fV"
            is_exact = not (call.reduction in _ORDERED if is_float else dtype.itemsize == 2)
            if is_exact and call.reduction is not Reduction.MEAN and not specs[0].dtype.is_bool:
                reduction = specs[0].size, _number(dtype), _OPERATIONS[call.reduction]
        plan = self._plans[id(call)] = _Plan(call, inputs, outputs, reduction)
        return plan

    def examine(self) -> None:
        """Raise the error of NCCL that has happened since the start, if any."""
        self._comm.check_async_error()

    def abort(self) -> None:
        """End the collectives in progress, without results."""
        with self._gpu.device:
            self._comm.abort()
        self._gpu.give_back_stream(self._stream)

    def close(self) -> None:
        """Free the communicator; no collective may be in progress."""
        with self._gpu.device:
            self._comm.destroy()
        self._gpu.give_back_stream(self._stream)

    def _together(self, calls: int) -> contextlib.AbstractContextManager[None]:
        """Start the given number of NCCL calls inside the context as one operation."""
        return self._grouped() if calls > 1 else contextlib.nullcontext()

    @contextlib.contextmanager
    def _grouped(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    # -- kinds of collectives: each method returns the arrays of the outputs -----------------

    def _all_reduce(self, call: CollectiveCall, given: list[Any], outputs: list[Any]) -> list[Any]:
        def reduce(source: Any, target: Any, dtype: int, operation: int) -> None:
            pointers = source.data.ptr, target.data.ptr
            self._comm.allReduce(*pointers, source.size, dtype, operation, self._stream.ptr)

        return self._reduced(call, given, outputs, reduce)

    def _reduce(self, call: CollectiveCall, given: list[Any], outputs: list[Any]) -> list[Any]:
        is_root = self._rank == call.root

        def reduce(source: Any, target: Any, dtype: int, operation: int) -> None:
            pointers = source.data.ptr, target.data.ptr
            self._comm.reduce(*pointers, source.size, dtype, operation, call.root, self._stream.ptr)

        if is_root:
            return self._reduced(call, given, outputs, reduce)
        self._reduced(call, given, [cupy.empty_like(one) for one in given], reduce)
        return outputs

    def _reduce_scatter(
        self, call: CollectiveCall, given: list[Any], outputs: list[Any]
    ) -> list[Any]:
        def reduce(source: Any, target: Any, dtype: int, operation: int) -> None:
            pointers = source.data.ptr, target.data.ptr
            self._comm.reduceScatter(*pointers, target.size, dtype, operation, self._stream.ptr)

        return self._reduced(call, given, outputs, reduce)

    def _reduced(
        self,
        call: CollectiveCall,
        given: list[Any],
        outputs: list[Any],
        reduce: Callable[[Any, Any, int, int], None],
    ) -> list[Any]:
        """Reduce each tensor by ``reduce(source, target, dtype, operation)``."""
        if not given:
            return outputs
        dtype, reduction = given[0].dtype, call.reduction
        sources, targets = given, outputs
        if dtype.itemsize == 2 and dtype.kind in "iu":  # NCCL has no 16-bit integers
            sources = [one.astype(cupy.int32) for one in given]
            targets = [cupy.empty(one.shape, cupy.int32) for one in outputs]
        flags: list[Any] = []
        found: list[Any] = []
        if reduction in _ORDERED and dtype.kind in "fV":
            flags = [_is_nan(one) for one in given]
            found = [cupy.empty(one.shape, cupy.uint8) for one in outputs]
        number = _number(sources[0].dtype)
        pairs, flagged = _with_elements(sources, targets), _with_elements(flags, found)
        with self._together(len(pairs) + len(flagged)):
            for source, target in pairs:
                reduce(source, target, number, _OPERATIONS[reduction])
            for source, target in flagged:
                reduce(source, target, UINT8, MAX)
        if sources is not given:
            targets = [one.astype(dtype) for one in targets]
        for target, flag in zip(targets, found, strict=False):
            _set_nan(flag, target)
        if reduction is Reduction.MEAN:
            for target in targets:
                _divide(target, self._members)
        return targets

    def _all_gather(self, call: CollectiveCall, given: list[Any], outputs: list[Any]) -> list[Any]:
        pairs = _with_elements(given, outputs)
        with self._together(len(pairs)):
            for source, target in pairs:
                pointers = source.data.ptr, target.data.ptr
                self._comm.allGather(*pointers, source.nbytes, UINT8, self._stream.ptr)
        return outputs

    def _broadcast(self, call: CollectiveCall, given: list[Any], outputs: list[Any]) -> list[Any]:
        pairs = _with_elements(given or outputs, outputs)
        with self._together(len(pairs)):
            for source, target in pairs:
                pointers = source.data.ptr, target.data.ptr
                self._comm.broadcast(*pointers, target.nbytes, UINT8, call.root, self._stream.ptr)
        return outputs

    def _all_to_all(self, call: CollectiveCall, given: list[Any], outputs: list[Any]) -> list[Any]:
        stream = self._stream.ptr
        with self._grouped():
            for source, target in _with_elements(given, outputs):
                share = source.nbytes // self._members
                for peer in range(self._members):
                    self._comm.send(source.data.ptr + peer * share, share, UINT8, peer, stream)
                    self._comm.recv(target.data.ptr + peer * share, share, UINT8, peer, stream)
        return outputs

    def _barrier(self, call: CollectiveCall, given: list[Any], outputs: list[Any]) -> list[Any]:
        token = cupy.zeros(1, cupy.int32)
        self._comm.allReduce(token.data.ptr, token.data.ptr, 1, INT32, SUM, self._stream.ptr)
        return outputs


_RUN: Final[dict[CollectiveKind, Callable[..., list[Any]]]] = {
    CollectiveKind.ALL_REDUCE: NcclCommunicator._all_reduce,
    CollectiveKind.REDUCE_SCATTER: NcclCommunicator._reduce_scatter,
    CollectiveKind.ALL_GATHER: NcclCommunicator._all_gather,
    CollectiveKind.BROADCAST: NcclCommunicator._broadcast,
    CollectiveKind.REDUCE: NcclCommunicator._reduce,
    CollectiveKind.ALL_TO_ALL: NcclCommunicator._all_to_all,
    CollectiveKind.BARRIER: NcclCommunicator._barrier,
}


@functools.cache  # of the few dtypes of NCCL: their names take 4 µs
def _number(dtype: Any) -> int:
    return _DTYPES[str(dtype)]


def _as_elements(array: Any, wanted: Any) -> Any:
    """Return an array in C order, in the dtype in which its elements are transferred."""
    if array.dtype != wanted and not (array.dtype.kind == "b" and wanted.itemsize == 1):
        array = array.astype(wanted)
    return cupy.ascontiguousarray(array)


def _deliver(
    done: Callable[[Sequence[Sequence[Any]] | None], None],
    event: Any,
    started: Sequence[tuple[Sequence[Any], Any]],
    status: int,
) -> None:
    """Call ``done`` with the outputs, or with ``None`` if the event's CUDA status is an error.

    ``started`` also has what must stay alive until this call.
    """
    done(None if status else [[Shared(one, event) for one in made] for made, _ in started])


def _with_elements(sources: list[Any], targets: list[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of a source and a target that are not empty."""
    return [pair for pair in zip(sources, targets, strict=True) if pair[0].size]


def _is_nan(array: Any) -> Any:
    wide = array.astype(cupy.float32) if array.dtype == BFLOAT16 else array
    return cupy.isnan(wide).astype(cupy.uint8)


def _set_nan(flag: Any, target: Any) -> None:
    """Store a NaN where flags are set."""
    # Written as integers, because few of CuPy's functions accept bfloat16.
    unsigned = f"u{target.itemsize}"
    nan = np.array([np.nan]).astype(target.dtype).view(unsigned)[0]
    bits = target.view(unsigned)
    bits[...] = cupy.where(flag, nan, bits)


def _divide(target: Any, count: int) -> None:
    """Divide in place; arrays of low precision are divided in float32."""
    if target.itemsize == 2:
        target[...] = (target.astype(cupy.float32) / cupy.float32(count)).astype(target.dtype)
    else:
        cupy.divide(target, target.dtype.type(count), out=target)
