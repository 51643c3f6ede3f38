"""Operators: one row of the operation table each, applied to tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, final

import numpy as np

from burn_remote.arguments.arrays import Array, data_from, numpy_dtype
from burn_remote.arguments.numbers import Number, is_imaginary, number_for, number_key
from burn_remote.arguments.promotion import promoted, promoted_with_number
from burn_remote.arguments.traced_numbers import scalar_of
from burn_remote.diagnostics.invalid_calls import no_tensor
from burn_remote.diagnostics.tracebacks import shorten
from burn_remote.dispatch.signatures import SIGNATURES_PER_ROW, Signatures, infer
from burn_remote.runner.interface import DerivedData, OwningHandle, distinction
from burn_remote.runner.stack import RunnerStack, outermost
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import ArgumentMismatch, BurnRemoteError, DeviceMismatch
from burn_remote_protocol.operations.families import base, numeric
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import Shape, TensorSpec

if TYPE_CHECKING:
    from burn_remote.runner.interface import RunnerClient, TensorHandle
    from burn_remote_protocol.dtypes import DType
    from burn_remote_protocol.operations.row import Row, Signature

_frame: Final = sys._getframe

__all__ = [
    "MAX_UPLOADED_RANGE",
    "ONES",
    "RESHAPE",
    "ZEROS",
    "Operator",
    "constant",
    "counted",
    "filled",
    "operator_method",
    "reshaped",
    "unary_function",
    "upload",
    "with_rank",
]


class HasHandle(Protocol):
    """A tensor as this package sees it: an object constructed from a handle."""

    handle: TensorHandle

    def __init__(self, handle: TensorHandle) -> None: ...


# The program's tensor class; every result has the class of the first input.
Tensor = TypeVar("Tensor", bound=HasHandle)


@final
class Operator:
    """One row of the operation table, applied to tensors of one device.

    Every method issues exactly one operation of the row. ``binary`` and ``scalar`` may issue
    conversions of dtypes before it. ``binary`` issues a reshape before it if the ranks differ,
    because Burn's operations broadcast axes but not ranks. No method waits. All raise
    ``ShapeMismatch``, ``DTypeMismatch`` or ``DeviceMismatch`` before anything is sent.
    """

    __slots__ = ("_alignments", "_convert", "_promoted", "_promoted_with", "_signatures", "row")

    def __init__(
        self,
        row: Row,
        *,
        convert: Callable[[Any, DType], Any] | None = None,
        promoted: Callable[[DType, DType], DType] = promoted,
        promoted_with: Callable[[DType, Any], DType] = promoted_with_number,
    ) -> None:
        self.row = row
        # Converts a tensor to a dtype. Operands of a row without it must have one dtype.
        self._convert = convert
        # Returns the dtype to which tensors of two dtypes are converted.
        self._promoted = promoted
        # Returns the dtype to which a tensor is converted for a number.
        self._promoted_with = promoted_with
        self._signatures = Signatures(row)
        # Specs of operands of different ranks -> the shapes of equal rank they are reshaped to.
        self._alignments: dict[tuple[TensorSpec, TensorSpec], tuple[Shape, Shape]] = {}

    def unary(self, x: Tensor) -> Tensor:
        """Apply the row to one tensor. Raises ``ArgumentMismatch`` for any other object."""
        try:
            handle = x.handle
        except AttributeError as error:
            pass_on_of_signal_handler(error)
            raise ArgumentMismatch(no_tensor("x", x)) from None
        spec = handle.spec
        found = self._signatures.recent.get(id(spec))
        signature = self._unary_anew(spec) if found is None else found[0]
        (out,) = handle.client.register_op(signature, (handle,))
        return x.__class__(out)

    def _unary_anew(self, spec: TensorSpec) -> Signature:
        signatures = self._signatures
        signature = signatures.known.get(spec) or signatures.add(spec, (spec,))
        return signatures.remember(id(spec), signature, (spec,))

    def binary(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Apply the row to two tensors; their shapes broadcast."""
        first, second = x1.handle, x2.handle
        client = first.client
        other = second.client
        if other is not client:
            # A runner around single tensors, such as the one for gradients, is around the stack.
            if type(client) is RunnerStack:
                client, other = other, client
            if not client.is_around(other):
                client = self._common_client((x1, x2))
        found = self._signatures.recent.get((id(first.spec), id(second.spec)))
        if found is not None:
            (out,) = client.register_op(found[0], (first, second))
            return x1.__class__(out)
        return self._binary_anew(x1, x2)

    def scalar(self, x: Tensor, number: Number) -> Tensor:
        """Apply the row to a tensor and a number that is converted to the tensor's dtype."""
        kind = type(number)  # a traced number has the ``__class__`` of its value
        if kind is not float and kind is not int:
            x, number = self.promoted_number(x, number)
            return self.exact_scalar(x, number_for(x.handle.spec.dtype, number))
        handle = x.handle
        found = self._signatures.recent.get((id(handle.spec), kind, number))
        if found is None:
            return self._scalar_anew(x, number)
        (out,) = handle.client.register_op(found[0], (handle,))
        return x.__class__(out)

    def _scalar_anew(self, x: Tensor, number: Number) -> Tensor:
        wide, number = self.promoted_number(x, number)
        if wide is not x:
            return self.scalar(wide, number)
        spec = x.handle.spec
        signature = self._scalar_signature(spec, number_for(spec.dtype, number))
        kind = type(number)
        # As keys, 0.0 and -0.0 are equal, and NaN is not equal to itself.
        if kind is int or (number and number == number):
            self._signatures.remember((id(spec), kind, number), signature, (spec,))
        (out,) = x.handle.client.register_op(signature, (x.handle,))
        return x.__class__(out)

    def promoted_number(self, x: Tensor, number: Number) -> tuple[Tensor, Number]:
        """Convert a tensor to the dtype in which it is combined with a number.

        Rows without ``convert`` return both unchanged. A bool counts as an integer, except with a
        tensor of bools.
        """
        if self._convert is None:
            return x, number
        spec = x.handle.spec
        if number.__class__ is bool and not spec.dtype.is_bool:
            return x, int(number)
        dtype = self._promoted_with(spec.dtype, number)
        if dtype is spec.dtype:
            return x, number
        number_for(dtype, number)  # raises before a conversion is sent
        return self._convert(x, dtype), number

    def exact_scalar(self, x: Tensor, number: float) -> Tensor:
        """Apply the row to a tensor and a number that is sent unconverted."""
        handle = x.handle
        signature = self._scalar_signature(handle.spec, number)
        (out,) = handle.client.register_op(signature, (handle,))
        return x.__class__(out)

    def _scalar_signature(self, spec: TensorSpec, number: float) -> Signature:
        key = (spec, number_key(number))
        signatures = self._signatures
        return signatures.known.get(key) or signatures.add(key, (spec,), (scalar_of(number),))

    def numbers(self, inputs: tuple[Tensor, ...], numbers: tuple[Number, ...]) -> Tensor:
        """Apply the row to tensors and to numbers converted to the first tensor's dtype."""
        specs = tuple([x.handle.spec for x in inputs])
        exact = [number_for(specs[0].dtype, number) for number in numbers]
        key = (specs, *map(number_key, exact))
        signature = self._signatures.known.get(key)
        if signature is None:
            signature = self._signatures.add(key, specs, tuple(map(scalar_of, exact)))
        (out,) = self._issue(signature, inputs)
        return out

    def into(self, x: Tensor, wanted: Shape | DType) -> Tensor:
        """Apply the row to one tensor; ``wanted`` is the shape or the dtype of the result."""
        handle = x.handle
        signature = self.signature_into(handle.spec, wanted)
        (out,) = handle.client.register_op(signature, (handle,))
        return x.__class__(out)

    def signature_into(self, spec: TensorSpec, wanted: Shape | DType) -> Signature:
        """Return the signature that ``into`` applies to a tensor."""
        key = (spec, wanted)
        signature = self._signatures.known.get(key)
        if signature is None:
            signature = self._signatures.add(key, (spec,), (), (_changed(spec, wanted),))
        return signature

    def apply(self, inputs: tuple[Tensor | None, ...], parameters: tuple[Any, ...] = ()) -> Tensor:
        """Apply the row to one tensor per input field, ``None`` for an absent optional input.

        ``parameters`` holds one argument per parameter field.
        """
        (out,) = self.apply_all(inputs, parameters)
        return out

    def apply_all(
        self, inputs: tuple[Tensor | None, ...], parameters: tuple[Any, ...] = ()
    ) -> tuple[Tensor, ...]:
        """Apply the row as ``apply`` does and return all its outputs."""
        specs = tuple([None if x is None else x.handle.spec for x in inputs])
        signature = self._signatures.known.get((specs, parameters))
        if signature is None:
            signature = self._signatures.add((specs, parameters), specs, parameters)
        return self._issue(signature, [x for x in inputs if x is not None])

    def apply_to_list(self, tensors: Sequence[Tensor], parameters: tuple[Any, ...]) -> Tensor:
        """Apply a row whose only input field is a list of tensors."""
        specs = (tuple([x.handle.spec for x in tensors]),)
        signature = self._signatures.known.get((specs, parameters))
        if signature is None:
            signature = self._signatures.add((specs, parameters), specs, parameters)
        (out,) = self._issue(signature, tensors)
        return out

    def apply_lists(
        self,
        tensors: Sequence[Tensor],
        parameters: tuple[Any, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> tuple[Tensor, ...]:
        """Apply a row from a list of tensors to a list of outputs with the given specs."""
        specs = (tuple([x.handle.spec for x in tensors]),)
        key = (specs, parameters, outputs)
        signature = self._signatures.known.get(key)
        if signature is None:
            signature = self._signatures.add(key, specs, parameters, outputs)
        return self._issue(signature, tensors)

    def create(
        self,
        client: RunnerClient,
        spec: TensorSpec,
        parameters: tuple[Any, ...] = (),
    ) -> TensorHandle:
        """Apply a row without inputs; ``spec`` is the shape and dtype of its output."""
        key = (spec, parameters)
        signature = self._signatures.known.get(key)
        if signature is None:
            signature = self._signatures.add(key, (), parameters, (spec,))
        (out,) = client.register_op(signature, ())
        return out

    def fill(self, client: RunnerClient, spec: TensorSpec, number: float) -> TensorHandle:
        """Apply a row that fills a tensor with a number, which is sent unconverted."""
        key = (spec, number_key(number))
        signature = self._signatures.known.get(key)
        if signature is None:
            signature = self._signatures.add(key, (), (scalar_of(number),), (spec,))
        (out,) = client.register_op(signature, ())
        return out

    def _issue(self, signature: Signature, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        first = tensors[0]
        client = first.handle.client
        handles = [x.handle for x in tensors]
        for handle in handles:
            if handle.client is not client:
                client = self._common_client(tensors)
                break
        kind = first.__class__
        return tuple([kind(out) for out in client.register_op(signature, handles)])

    def _binary_anew(self, x1: Tensor, x2: Tensor) -> Tensor:
        specs = (x1.handle.spec, x2.handle.spec)
        if self._convert is not None and specs[0].dtype is not specs[1].dtype:
            dtype = self._promoted(specs[0].dtype, specs[1].dtype)
            # Raises an error with the common dtype and the shapes, before a conversion is sent.
            infer(self.row, tuple([TensorSpec(spec.shape, dtype) for spec in specs]))
            converted: list[Tensor] = [self._convert(x, dtype) for x in (x1, x2)]
            return self.binary(*converted)
        rank1, rank2 = len(specs[0].shape), len(specs[1].shape)
        if rank1 == rank2:
            signatures = self._signatures
            signature = signatures.known.get(specs) or signatures.add(specs, specs)
            signatures.remember((id(specs[0]), id(specs[1])), signature, specs)
            return self.binary(x1, x2)
        aligned = self._alignments.get(specs)
        if aligned is None:
            # Raises an error with the caller's own shapes, before the reshape is sent.
            infer(self.row, specs)
            rank = max(rank1, rank2)
            aligned = (_ranked(specs[0].shape, rank), _ranked(specs[1].shape, rank))
            if len(self._alignments) >= SIGNATURES_PER_ROW:
                self._alignments.clear()
            self._alignments[specs] = aligned
        return self.binary(reshaped(x1, aligned[0]), reshaped(x2, aligned[1]))

    def _common_client(self, tensors: Sequence[Tensor]) -> RunnerClient:
        """Return the runner that sees an operation on tensors of several runners."""
        client = outermost([x.handle for x in tensors])
        if client is not None:
            return client
        devices = {id(x.handle.client): x.handle.client.device for x in tensors}
        listed = ", ".join(f"{x.handle.spec} on {x.handle.client.device}" for x in tensors)
        raise DeviceMismatch(
            f"{self.row}: the tensors are on different devices: {listed}"
            f"{distinction(*devices.values())}; move them to one device with x.to(device)"
        )


# Two operands in the order of the operator, of which one is a tensor.
Binary = TypeVar("Binary", bound=Callable[[Any, Any], Any])


def operator_method(  # noqa: C901
    function: Binary, tensors: Operator, numbers: Operator | None = None
) -> Binary:
    """Return the method for an operator of ``Tensor`` that computes ``function(x1, x2)``.

    If the operator ``tensors`` has cached a signature for two tensors, the method issues it
    without a call of ``function``; likewise the operator ``numbers`` for a tensor and an ``int`` or
    ``float``. This saves a third of the client's time for an operation. For such operands,
    ``function`` must do nothing but apply the operator.
    """
    recent = tensors._signatures.recent
    with_number = {} if numbers is None else numbers._signatures.recent
    new = object.__new__
    # The specs of the last two tensors and their signature, and the same for a tensor and a number.
    # Most operations repeat the last one, and a lookup in ``recent`` would take a twentieth of the
    # operation's time. Each tuple is replaced whole, so threads need no lock.
    last: tuple[Any, Any, Any] = (None, None, None)
    last_number: tuple[Any, Any, Any] = (None, None, None)

    def operate(x1: Any, x2: Any, /) -> Any:  # noqa: C901 - one function, because calls take time
        nonlocal last, last_number
        try:
            handle = x1.handle
            client = handle.client
            spec = handle.spec
            # Not ``x1.__class__``: an attribute of a class with ``__getattr__`` takes 0.03 µs more.
            kind = type(x1)
            kind2 = type(x2)
            other: TensorHandle | None
            signature: Signature | None
            try:
                if kind2 is kind:
                    other = x2.handle
                    theirs = other.client
                    if theirs is not client:
                        # One of them is tracked: its client is the runner around the other's.
                        if type(client) is RunnerStack:
                            client, theirs = theirs, client
                        if client.stack is not theirs:
                            return function(x1, x2)
                    first, second, signature = last
                    if spec is not first or other.spec is not second:
                        second = other.spec
                        signature = recent[id(spec), id(second)][0]
                        last = (spec, second, signature)
                elif kind2 is float or kind2 is int:
                    other = None
                    first, second, signature = last_number
                    if spec is not first or x2 is not second:
                        signature = with_number[id(spec), kind2, x2][0]
                        last_number = (spec, x2, signature)
                else:
                    return function(x1, x2)
                # Of other runners, only the one that tracks tensors has a stack.
                stack = client if type(client) is RunnerStack else client.stack
            except (KeyError, AttributeError) as error:
                pass_on_of_signal_handler(error)
                signature = None
            if signature is None:
                return function(x1, x2)
            x = new(kind)  # ``kind(out)`` would take twice the time of these two statements
            execute = stack.execute
            if execute is None:
                (out,) = client.register_op(
                    signature, (handle,) if other is None else (handle, other)
                )
            else:
                # The same as ``SessionRunner.register_op``, whose call would take a tenth of the
                # operation's time.
                out = OwningHandle()
                out.spec = signature.outputs[0]
                out.client = stack
                follower = stack.follower
                if follower is not None:
                    step = follower.step
                    if step is not None and step.signature is signature:
                        try:
                            frame = _frame(1)
                        except ValueError as error:  # C code calls this as a thread's only frame
                            pass_on_of_signal_handler(error)
                        else:
                            # Nothing is called from here on; see ``following.py``.
                            known = follower.ids
                            if (
                                frame.f_lasti == step.instruction
                                and frame.f_code is step.code
                                and follower.step is step
                                and known[step.left] is handle.id
                                and (other is None or known[step.right] is other.id)
                            ):
                                follower.step, out.id = step.next, known[step.output]
                                if stack is not client:
                                    out = client.record_result(signature, handle, other, out)
                                x.handle = out
                                return x
                ids = [handle.id] if other is None else [handle.id, other.id]
                execute(signature, ids, (out,))
                if stack is not client:
                    out = client.record_result(signature, handle, other, out)
            x.handle = out
            return x
        except BurnRemoteError as error:
            shorten(error)
            raise

    return cast("Binary", functools.update_wrapper(operate, function))


# A function of one tensor.
Unary = TypeVar("Unary", bound=Callable[[Any], Any])


def unary_function(operator: Operator) -> Callable[[Unary], Unary]:
    """Decorate a function that must do nothing but return ``operator.unary(x)``.

    If the operator has cached a signature for a tensor, the decorated function issues it without
    calling the function, as the methods of ``operator_method`` do.
    """
    recent = operator._signatures.recent
    new = object.__new__
    # The spec of the last tensor and its signature, as in ``operator_method``.
    last: tuple[Any, Any] = (None, None)

    def decorate(function: Unary) -> Unary:
        def apply(x: Any, /) -> Any:
            nonlocal last
            try:
                signature: Signature | None
                try:
                    handle = x.handle
                    client = handle.client
                    spec = handle.spec
                    known, signature = last
                    if spec is not known:
                        signature = recent[id(spec)][0]
                        last = (spec, signature)
                    stack = client if type(client) is RunnerStack else client.stack
                except (KeyError, AttributeError) as error:
                    pass_on_of_signal_handler(error)
                    signature = None
                if signature is None:
                    return function(x)
                result = new(type(x))
                execute = stack.execute
                if execute is None:
                    (out,) = client.register_op(signature, (handle,))
                else:
                    # The same as ``SessionRunner.register_op``.
                    out = OwningHandle()
                    out.spec = signature.outputs[0]
                    out.client = stack
                    execute(signature, [handle.id], (out,))
                    if stack is not client:
                        out = client.record_result(signature, handle, None, out)
                result.handle = out
                return result
            except BurnRemoteError as error:
                shorten(error)
                raise

        return cast("Unary", functools.update_wrapper(apply, function))

    return decorate


RESHAPE: Final = Operator(base.RESHAPE)
EXPAND: Final = Operator(base.EXPAND)
FULL: Final = Operator(numeric.FULL)
ONES: Final = Operator(base.ONES)
ZEROS: Final = Operator(base.ZEROS)
CUM_SUM: Final = Operator(numeric.CUM_SUM)
SUB_SCALAR: Final = Operator(numeric.SUB_SCALAR)

# A range of up to this length is uploaded, in one task of at most 8 KiB. A longer one is computed
# on the server with three operations: the cumulative sum of ones, minus 1.
MAX_UPLOADED_RANGE: Final = 1024


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """Return ``x`` in another shape of as many elements; ``x`` itself if it has that shape."""
    spec = x.handle.spec
    if shape == spec.shape:
        return x
    return RESHAPE.into(x, shape)


def with_rank(x: Tensor, rank: int) -> Tensor:
    """Prepend axes of size 1 to ``x`` until it has at least ``rank`` axes."""
    shape = x.handle.spec.shape
    return x if len(shape) >= rank else RESHAPE.into(x, _ranked(shape, rank))


def filled(client: RunnerClient, spec: TensorSpec, number: Number) -> TensorHandle:
    """Create a tensor filled with a number that is converted to the dtype of ``spec``."""
    if is_imaginary(number) and spec.dtype.is_complex:
        one = np.full((1,) * len(spec.shape), number, numpy_dtype(spec.dtype))
        handle = client.register_tensor_data(DerivedData(*data_from(one)))
        if handle.spec == spec:
            return handle
        (expanded,) = client.register_op(EXPAND.signature_into(handle.spec, spec.shape), (handle,))
        return expanded
    exact = number_for(spec.dtype, number)
    if spec.dtype.is_bool:
        return (ONES if exact else ZEROS).create(client, spec)
    return FULL.fill(client, spec, exact)


def constant(x: Tensor, number: Number) -> Tensor:
    """Return a number as a tensor of size 1 along each axis, with the dtype and device of ``x``."""
    spec = x.handle.spec
    one = TensorSpec((1,) * len(spec.shape), spec.dtype)
    return x.__class__(filled(x.handle.client, one, number))


def upload(x: Tensor, array: Array) -> Tensor:
    """Send a NumPy array to the device of ``x``."""
    return x.__class__(x.handle.client.register_tensor_data(DerivedData(*data_from(array))))


def counted(kind: type[Tensor], client: RunnerClient, count: int) -> Tensor:
    """Return the integers from 0 to ``count - 1`` as int64 ``[count]``."""
    if count <= MAX_UPLOADED_RANGE:
        data = DerivedData(*data_from(np.arange(count, dtype=np.int64)))
        return kind(client.register_tensor_data(data))
    ones = kind(ONES.create(client, TensorSpec((count,), I64)))
    return SUB_SCALAR.scalar(CUM_SUM.apply((ones,), (0,)), 1)


def _ranked(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _changed(spec: TensorSpec, wanted: Shape | DType) -> TensorSpec:
    if isinstance(wanted, tuple):
        return TensorSpec(tuple(map(int, wanted)), spec.dtype)
    return TensorSpec(spec.shape, wanted)
