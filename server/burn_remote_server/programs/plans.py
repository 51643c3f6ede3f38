"""Plans: signatures that are checked, bound to their kernels and ready to run many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, Final

from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
    ShapeMismatch,
    shown,
)
from burn_remote_protocol.operations.encoding import check_declared
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.families.session import CUSTOM
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import TensorStatus
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import (
    BackendSession,
    ElementwiseCall,
    RowReduction,
    array_shape,
)
from burn_remote_server.fusion.fuser import OperationFuser, StreamOperation
from burn_remote_server.fusion.optimization_search import begins_run
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.allocations import memory_bytes

__all__ = [
    "PLAN_BYTES",
    "Plan",
    "as_failure",
    "signature_bytes",
    "timed",
    "too_costly",
    "within",
]

logger = get_logger(__name__)

# Smallest result that may reuse the memory of a *dying* input, one that is used for the last time.
# For smaller results, the check for other references takes longer than allocating memory. For
# larger results, the operating system would have to map and clear new pages.
REUSED_BYTES: Final = 256 * 1024

# Memory of a plan with its signature: 1 to 4 KiB, measured. ``signature_bytes`` returns the
# additional memory of a plan with many tensors or dimensions.
PLAN_BYTES: Final = 4096
SIGNATURE_TENSOR_BYTES: Final = 280
SIGNATURE_DIMENSION_BYTES: Final = 48
# A scalar or a slice in a list, in the signature and in the parameters of its call.
SIGNATURE_VALUE_BYTES: Final = 256


def signature_bytes(signature: Signature) -> int:
    """Return the memory of the tensors and lists of values in a signature's plan (measured)."""
    specs = [use.spec for use in signature.input_uses]
    specs += signature.outputs
    dimensions = sum(len(spec.shape) for spec in specs)
    values = sum(_values(one) for one in signature.arguments if type(one) is tuple)
    return (
        SIGNATURE_TENSOR_BYTES * len(specs)
        + SIGNATURE_DIMENSION_BYTES * dimensions
        + SIGNATURE_VALUE_BYTES * values
    )


def _values(argument: Any) -> int:
    """Count the values in an argument, except tensors."""
    if type(argument) is tuple:
        return sum(map(_values, argument))
    return type(argument) is not TensorUse


class Plan:
    """A checked signature bound to its kernel.

    ``run(*inputs)`` takes the arrays of the present inputs in wire order and returns the output, or
    a tuple of outputs. ``run_into(*inputs, out=array)`` writes the output into the array of an
    input at one of the ``reusable`` positions (possibly none). ``expected`` has the shape and array
    dtype of each input. ``cost`` and ``workspace_bytes`` are the operation table's estimates. If
    the signature is invalid, ``error`` is set, and each use fails with it. ``wrap`` adds a check to
    ``run`` and ``run_into``, and clears ``is_bare``.

    If ``joins_windows`` is true, fusers may take the operation, as ``calls`` or as ``reduction``.
    If ``is_fusible`` is also true, a fuser takes it as the first operation of a run, so it begins a
    window (``stream_fusion``). Plans with the same ``fusion_key`` differ only in the constant of
    their call; ``None`` equals no other key.
    ``is_large`` is true if the operation is fusible or has reusable inputs.
    ``seen`` has the expected shapes and dtypes in one tuple, for ``Interpreter.invoke_simple``. It
    is ``None`` if only ``invoke`` runs the plan.
    """

    __slots__ = (
        "__weakref__",
        "calls",
        "cost",
        "error",
        "expected",
        "fusion_key",
        "gives_one",
        "input_count",
        "is_bare",
        "is_fusible",
        "is_large",
        "joins_windows",
        "last_uses",
        "output_bytes",
        "output_count",
        "reduction",
        "reusable",
        "run",
        "run_into",
        "seen",
        "signature",
        "task_length",
        "workspace_bytes",
    )  # fmt: skip

    def __init__(self, signature: Signature, session: BackendSession) -> None:
        self.signature = signature
        self.input_count = len(signature.input_uses)
        self.output_count = signature.output_count
        self.gives_one = _gives_one(signature)
        self.task_length = 1 + self.input_count + self.output_count
        self.output_bytes = sum(memory_bytes(spec) for spec in signature.outputs)
        self.workspace_bytes = 0
        self.last_uses = tuple(
            position
            for position, use in enumerate(signature.input_uses)
            if use.status is TensorStatus.READ_WRITE
        )
        self.expected: tuple[tuple[Any, Any], ...] = ()
        self.error: BurnRemoteError | None = None
        self.cost = 0
        self.is_bare = True  # ``run`` is the kernel itself
        self.is_fusible = self.is_large = self.joins_windows = False
        self.calls: tuple[ElementwiseCall, ...] = ()
        self.reduction: RowReduction | None = None
        self.fusion_key: Hashable | None = None
        self.run: Callable[..., Any] = _no_run
        self.run_into: Callable[..., Any] = _no_run
        self.reusable: tuple[int, ...] = ()
        self.seen: tuple[Any, ...] | None = None
        try:
            check_declared(signature)
            self.expected = tuple(
                (array_shape(use.spec), session.array_dtype(use.spec.dtype))
                for use in signature.input_uses
            )
            self.cost, self.workspace_bytes = estimated(signature.row.estimates, signature.call)
            self.run = _bind(signature, session)
            if self.gives_one and self.output_bytes >= REUSED_BYTES:
                self._bind_into(signature, session)
            if self.gives_one and 1 <= self.input_count <= 2:
                self.seen = tuple(chain.from_iterable(self.expected))
        except BurnRemoteError as error:
            self.error = error
        except Exception as error:  # a bug in the server: fail the operation, not the session
            pass_on_of_signal_handler(error)  # on a local device; the plan is made again
            logger.exception("operation not bound", operation=str(signature.row))
            self.error = OperationFailed(f"the server failed: {type(error).__name__}: {error}")

    def _bind_into(self, signature: Signature, session: BackendSession) -> None:
        (out,) = signature.outputs
        if out.dtype.is_complex:
            # NumPy multiplies complex numbers with fused multiply-add, but not always if the result
            # is an input. So the last bits of a result would depend on whether an input dies.
            return
        wanted = (array_shape(out), session.array_dtype(out.dtype))
        fitting = tuple(
            position for position, expected in enumerate(self.expected) if expected == wanted
        )
        if not fitting or any(
            item is None or type(item) is tuple for item in signature.call.inputs
        ):
            return
        run_into = session.bind_into(signature)
        if run_into is not None:
            self.run_into, self.reusable = run_into, fitting
            self.is_large = bool(fitting)

    def wrap(self, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the kernels by those that ``wrapper`` returns for them."""
        run = wrapper(self.run)
        self.is_bare = run is self.run
        self.run, self.run_into = run, wrapper(self.run_into)

    def let_fuse(
        self,
        session: BackendSession,
        fusers: Sequence[OperationFuser],
        *,
        opens_windows: bool = True,
    ) -> None:
        """Allow the fusion of the operation, in graphs and in windows of a stream.

        The fusers decide whether they take it, and which operations begin a window. Element-wise
        operations on the results of reductions are small, so they may only join a window.
        """
        if self.error is not None or not self.gives_one:
            return
        (out,) = self.signature.outputs
        is_column = len(out.shape) > 1 and out.shape[-1] == 1
        # Binding a smaller operation for fusers would only take time.
        least = min((fuser.least_bytes for fuser in fusers), default=0)
        calls: tuple[ElementwiseCall, ...] = ()
        reduction: RowReduction | None = None
        if is_column or self.output_bytes >= least:
            calls = session.bind_elementwise(self.signature)
        if not calls and self._largest_input_bytes() >= least:
            reduction = session.bind_row_reduction(self.signature)
        begins = begins_run(self._alone(calls, reduction), fusers)
        self.is_fusible = begins and opens_windows
        self.joins_windows = begins or (is_column and bool(calls))
        if not self.joins_windows:
            return
        self.calls, self.reduction = calls, reduction
        self.is_large = self.is_large or self.is_fusible
        if len(self.calls) == 1 and len(self.calls[0].constants) == 1:
            # The number of the call may change from one execution to the next.
            row, outputs = self.signature.row, self.signature.outputs
            self.fusion_key = (row, self.expected, outputs, self.last_uses, self.calls[0].into)

    def _alone(
        self, calls: tuple[ElementwiseCall, ...], reduction: RowReduction | None
    ) -> StreamOperation:
        """Return the operation as the only one of a stream."""
        inputs, outputs = range(self.input_count), (self.input_count,)
        return StreamOperation(
            self.signature, self.run, calls, tuple(inputs), (), outputs, frozenset(), reduction
        )

    def _largest_input_bytes(self) -> int:
        return max((memory_bytes(use.spec) for use in self.signature.input_uses), default=0)

    def wrong_tensors(self, seen: tuple[Any, ...]) -> ProtocolViolation:
        """Return the error for a wrong number of tensors."""
        return ProtocolViolation(
            f"{self.signature.row} takes {self.task_length - 1} tensor ids, not {shown(seen)}"
        )

    def mismatch(self, inputs: list[Any]) -> ShapeMismatch:
        """Return the error for inputs whose shapes or dtypes differ from the declared ones."""
        seen = ", ".join(f"{array.dtype}{list(array.shape)}" for array in inputs)
        return ShapeMismatch(
            f"the session's tensors are {seen}; the operation declares {self.signature.describe()}"
        )


def _gives_one(signature: Signature) -> bool:
    """Whether the kernel returns one array and not a tuple: its row has one output, not a list."""
    outputs = [
        argument
        for field, argument in zip(signature.row.fields, signature.arguments, strict=True)
        if field.role is Role.OUTPUT
    ]
    return len(outputs) == 1 and type(outputs[0]) is not tuple


def _no_run(*inputs: Any) -> Any:
    raise AssertionError("a plan with an error is never run")


def _bind(signature: Signature, session: BackendSession) -> Callable[..., Any]:
    """Return ``run(*inputs)`` for a signature, with minimal work per call."""
    kernel = session.bind(signature)
    groups = tuple(
        None if item is None else len(item) if type(item) is tuple else 1
        for item in signature.call.inputs
    )
    is_list = tuple(type(item) is tuple for item in signature.call.inputs)
    if not any(is_list) and None not in groups:
        return kernel

    def run(*inputs: Any) -> Any:
        arrays = iter(inputs)
        return kernel(
            *(
                None
                if size is None
                else [next(arrays) for _ in range(size)]
                if listed
                else next(arrays)
                for size, listed in zip(groups, is_list, strict=True)
            )
        )

    return run


def too_costly(cost: int, allowed: int | None) -> QuotaExceeded | None:
    """Return the error for an operation whose estimated cost exceeds the limit, or ``None``."""
    if allowed is None or cost <= allowed:
        return None
    return QuotaExceeded(
        f"operation cost: an estimated {cost:,} ns of one core, {allowed:,} are allowed; "
        "split the operation, or raise max_operation_cost on the server"
    )


def within(run: Callable[..., Any], workspace_bytes: int, quota: Quota) -> Callable[..., Any]:
    """Wrap a kernel so that it reserves its scratch memory in the quota while it runs.

    It raises ``QuotaExceeded`` before it starts if the memory does not fit into the quota.
    """

    def run_within(*inputs: Any, **into: Any) -> Any:
        try:
            quota.take(workspace_bytes, 0)
        except QuotaExceeded as error:
            raise QuotaExceeded(
                f"an estimated {workspace_bytes:,} bytes of scratch memory do not fit: "
                f"{error.reason}"
            ) from None
        try:
            return run(*inputs, **into)
        finally:
            quota.give_back(workspace_bytes, 0)

    return run_within


def timed(run: Callable[..., Any], allowed_seconds: float) -> Callable[..., Any]:
    """Wrap a kernel so that it raises ``QuotaExceeded`` if it took too long.

    A running kernel cannot be stopped; until it ends, only its own session waits.
    """

    def run_timed(*inputs: Any, **into: Any) -> Any:
        started = time.monotonic()
        results = run(*inputs, **into)
        seconds = time.monotonic() - started
        if seconds > allowed_seconds:
            raise QuotaExceeded(
                f"operation time: it took {seconds:.3g} seconds, {allowed_seconds:g} are allowed; "
                "split the operation, or raise max_operation_seconds on the server"
            )
        return results

    return run_timed


def as_failure(
    error: Exception, plan: Plan, tensor: int | None, step: int | None = None
) -> OperationFailed:
    """Convert an exception raised by an operation into the failure of its outputs.

    ``step`` is the operation's position if it belongs to a graph.
    """
    signature = plan.signature
    kind, reason = _blame(error, plan)
    return kind(
        reason,
        operation=_named(signature),
        shapes=signature.describe(),
        tensor=tensor,
        step=step,
    )


def _named(signature: Signature) -> str:
    if signature.row is not CUSTOM:
        return str(signature.row)
    return f"Custom {shown(signature.arguments[0])}"


def _blame(error: Exception, plan: Plan) -> tuple[type[OperationFailed], str]:
    if isinstance(error, OperationFailed):
        return type(error), error.reason
    if isinstance(error, MemoryError):
        reason = f"the device does not have enough memory for {plan.output_bytes:,} bytes"
        return OutOfMemory, reason
    if isinstance(error, BurnRemoteError):
        return OperationFailed, str(error)
    logger.warning("kernel failed", operation=_named(plan.signature), exc_info=error)
    return OperationFailed, f"{type(error).__name__}: {error}"
