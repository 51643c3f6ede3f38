"""Binding of custom operations, and checks of what their functions return."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from burn_remote_protocol.errors import (
    BurnRemoteError,
    DTypeMismatch,
    OperationFailed,
    ShapeMismatch,
    Unsupported,
    shown,
)
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import TensorSpec, checked_shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.interface import Run
from burn_remote_server.custom import CustomOperation, CustomOperations

__all__ = ["bind_custom"]

# Keeps the error short; enough to find a misspelled name in a typical set of operations.
NAMES_LISTED: Final = 20


def bind_custom(operations: CustomOperations, xp: Any, signature: Signature) -> Run:
    """Return ``run(arrays)`` for a custom operation over the array module ``xp``.

    Raises ``Unsupported`` for an unknown name; ``ShapeMismatch`` or ``DTypeMismatch`` if the inputs
    or the declared outputs do not match the operation.
    """
    name = signature.arguments[0]
    operation = operations.find(name)
    if operation is None:
        raise Unsupported(_unknown(name, operations))
    (inputs,) = signature.call.inputs
    numbers = signature.call.parameters["scalars"]
    _check_inputs(operation, inputs)
    _check_outputs(operation, inputs, signature.outputs)
    expected = [(spec.shape, array_dtype(spec.dtype)) for spec in signature.outputs]

    def run(arrays: Sequence[Any]) -> tuple[Any, ...]:
        try:
            made = operation(xp, *[_protected(array) for array in arrays], *numbers)
        except Exception:
            raise
        except BaseException as error:  # for example SystemExit: it must not end the server
            pass_on_of_signal_handler(error)
            if _is_from_the_keyboard(error):
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return _checked(operation, made, expected, xp)

    return run


def _is_from_the_keyboard(error: BaseException) -> bool:
    """Whether Ctrl-C interrupted the main thread of a program with a ``LocalDevice``.

    A server installs a handler of its own for SIGINT.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _unknown(name: str, operations: CustomOperations) -> str:
    names = operations.names
    if not names:
        return (
            f"this server has no custom operation {shown(name)}, and no others; its operator adds "
            "them with --custom-operations package.module"
        )
    listed = ", ".join(names[:NAMES_LISTED])
    more = f" and {len(names) - NAMES_LISTED:,} more" if len(names) > NAMES_LISTED else ""
    return f"this server has no custom operation {shown(name)}; it has {listed}{more}"


def _check_inputs(operation: CustomOperation, inputs: tuple[TensorSpec, ...]) -> None:
    if len(inputs) != len(operation.inputs):
        raise ShapeMismatch(
            f"{operation.name} takes ({', '.join(operation.inputs)}), not {len(inputs)} tensors"
        )
    stated = zip(operation.inputs.items(), operation.accepted, inputs, strict=True)
    for (argument, words), accepted, spec in stated:
        if spec.dtype not in accepted:
            expected = " or ".join(words.split())
            raise DTypeMismatch(f"{argument} is {spec}, but its dtype must be {expected}")


def _check_outputs(
    operation: CustomOperation, inputs: tuple[TensorSpec, ...], declared: tuple[TensorSpec, ...]
) -> None:
    made = _ruled(operation, inputs)
    if len(made) != len(operation.outputs):
        raise OperationFailed(
            f"the shape rule of {operation.name} returns {len(made)} outputs, but it declares "
            f"{', '.join(operation.outputs)}"
        )
    if len(declared) != len(made):
        raise ShapeMismatch(
            f"{operation.name} returns {len(made)} tensors ({', '.join(operation.outputs)}), "
            f"but the call declares {len(declared)}"
        )
    for output, spec, asked in zip(operation.outputs, made, declared, strict=True):
        if asked.shape != spec.shape:
            raise ShapeMismatch(f"{output} is {spec}, but the call declares {asked}")
        if asked.dtype is not spec.dtype and not (asked.dtype.is_bool and spec.dtype.is_bool):
            raise DTypeMismatch(f"{output} is {spec}, but the call declares {asked}")


def _ruled(operation: CustomOperation, inputs: tuple[TensorSpec, ...]) -> list[TensorSpec]:
    try:
        made = operation.shapes(*inputs)
        outputs = [made] if isinstance(made, TensorSpec) else [*made]
        return [TensorSpec(checked_shape(tuple(shape)), dtype) for shape, dtype in outputs]
    except BurnRemoteError:
        raise
    except BaseException as error:  # the operator's code may raise anything
        if _is_from_the_keyboard(error):
            raise
        raise OperationFailed(
            f"the shape rule of {operation.name} raised {type(error).__name__}: {error}"
        ) from error


def _protected(array: Any) -> Any:
    """Return a read-only view: other tensors may share the array's memory."""
    if type(array) is not np.ndarray:
        return array  # CuPy has no read-only arrays
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(
    operation: CustomOperation, made: Any, expected: list[tuple[Any, Any]], xp: Any
) -> tuple[Any, ...]:
    results = made if type(made) in (tuple, list) else (made,)
    if len(results) != len(expected):
        raise OperationFailed(f"it returned {len(results)} arrays but declares {len(expected)}")
    arrays = []
    for output, result, (shape, dtype) in zip(operation.outputs, results, expected, strict=True):
        # Array modules return NumPy scalars in place of zero-dimensional arrays.
        array = xp.asarray(result) if isinstance(result, np.generic) else result
        if type(array) is not xp.ndarray:
            raise OperationFailed(f"it returned {type(result).__name__} for {output}, not an array")
        if array.shape != shape or array.dtype != dtype:
            raise OperationFailed(
                f"it returned {array.dtype}{list(array.shape)} for {output}, "
                f"but declares {dtype}{list(shape)}"
            )
        arrays.append(array)
    return tuple(arrays)
