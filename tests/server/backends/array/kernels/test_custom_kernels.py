"""Custom operations are checked against their declaration and cannot harm the session."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BF16, BOOL, BOOL_U8, F16, F32, F64, I64, DType
from burn_remote_protocol.errors import (
    BurnRemoteError,
    DTypeMismatch,
    OperationFailed,
    ShapeMismatch,
    Unsupported,
)
from burn_remote_protocol.operations.families.session import CUSTOM
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.backends.array.kernels.custom_kernels import NAMES_LISTED, bind_custom
from burn_remote_server.custom import CustomOperation, CustomOperations, custom_operation

Function = Callable[..., Any]
SPEC = TensorSpec((2, 3), F32)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def operation(function: Function, name: str = "mine", **declared: Any) -> CustomOperation:
    """Return an operation of one input, by default with an output of the same spec."""
    settings: dict[str, Any] = {"inputs": {"x": "any"}, "shapes": lambda x: x}
    return custom_operation(name, **settings | declared)(function)


def bound(
    made: CustomOperation | None,
    *inputs: TensorSpec,
    outputs: tuple[TensorSpec, ...] = (SPEC,),
    name: str = "mine",
) -> Function:
    signature = sign(
        CUSTOM,
        name,
        tuple([TensorUse(spec, TensorStatus.READ_ONLY) for spec in inputs]),
        tuple([TensorUse(spec, TensorStatus.NOT_INIT) for spec in outputs]),
    )
    return bind_custom(CustomOperations([made] if made else []), np, signature)


def test_a_function_gets_the_array_module_and_its_arrays() -> None:
    run = bound(operation(lambda xp, x: xp.square(x)), SPEC)
    np.testing.assert_array_equal(run([X])[0], X * X)


def test_several_outputs_keep_their_order() -> None:
    made = operation(
        lambda xp, x: (xp.sum(x), x > 2),
        outputs=("total", "large"),
        shapes=lambda x: [TensorSpec((), F32), TensorSpec(x.shape, BOOL)],
    )
    # Rust clients store bools as bytes.
    outputs = (TensorSpec((), F32), TensorSpec((2, 3), BOOL_U8))
    total, large = bound(made, SPEC, outputs=outputs)([X])
    assert (type(total), total.shape, float(total)) == (np.ndarray, (), 15)
    np.testing.assert_array_equal(large, X > 2)


@pytest.mark.parametrize("dtype", [F16, BF16, F64, I64], ids=str)
def test_functions_receive_arrays_in_their_stored_dtype(dtype: DType) -> None:
    seen: list[str] = []

    def note(xp: Any, x: Any) -> Any:
        seen.append(str(x.dtype))
        return x

    spec = TensorSpec((2,), dtype)
    bound(operation(note), spec, outputs=(spec,))([np.ones(2, str(dtype))])
    assert seen == [str(dtype)]


def test_a_function_cannot_change_its_inputs() -> None:
    def overwrite(xp: Any, x: Any) -> Any:
        x += 1
        return x

    array = X.copy()
    with pytest.raises(ValueError, match="read-only"):
        bound(operation(overwrite), SPEC)([array])
    np.testing.assert_array_equal(array, X)
    assert array.flags.writeable


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(3), GeneratorExit(3)])
def test_a_function_that_raises_system_exit_only_fails(error: BaseException) -> None:
    def leave(xp: Any, x: Any) -> Any:
        raise error

    with ThreadPoolExecutor() as threads, pytest.raises(RuntimeError, match=r"(Exit|Interrupt): 3"):
        threads.submit(bound(operation(leave), SPEC), [X]).result()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Enable SIGINT, which shells disable for programs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_interrupts_a_function_in_the_main_thread() -> None:
    def wait(xp: Any, x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return x

    with pytest.raises(KeyboardInterrupt):
        bound(operation(wait), SPEC)([X])


def test_an_unknown_name_is_refused_with_a_list_of_names() -> None:
    with pytest.raises(Unsupported, match=r"no custom operation 'mime'; it has mine$"):
        bound(operation(lambda xp, x: x), SPEC, name="mime")


def test_errors_truncate_long_names_and_lists_of_names() -> None:
    many = [operation(lambda xp, x: x, name=f"operation{n:04}") for n in range(NAMES_LISTED + 7)]
    signature = sign(CUSTOM, "x" * 256, (), (TensorUse(SPEC, TensorStatus.NOT_INIT),))
    with pytest.raises(Unsupported, match=r"operation0019 and 7 more$") as caught:
        bind_custom(CustomOperations(many), np, signature)
    assert len(str(caught.value)) < 500


def test_a_server_without_custom_operations_explains_how_to_add_them() -> None:
    with pytest.raises(Unsupported, match="--custom-operations package"):
        bound(None, SPEC)


def refused_by_the_rule(x: TensorSpec) -> TensorSpec:
    raise ShapeMismatch(f"x is {x}, but must be square")


@pytest.mark.parametrize(
    ("declared", "inputs", "outputs", "kind", "sentence"),
    [
        ({}, [SPEC, SPEC], [SPEC], ShapeMismatch, r"mine takes \(x\), not 2 tensors"),
        ({}, [], [SPEC], ShapeMismatch, "not 0 tensors"),
        ({"inputs": {"x": "int uint"}}, [SPEC], [SPEC], DTypeMismatch, "x is .* int or uint"),
        (
            {},
            [SPEC],
            [TensorSpec((3,), F32)],
            ShapeMismatch,
            r"2, 3\], but the call declares .*\[3\]",
        ),
        ({}, [SPEC], [TensorSpec((2, 3), F64)], DTypeMismatch, "declares float64"),
        (
            {},
            [SPEC],
            [SPEC, SPEC],
            ShapeMismatch,
            r"returns 1 tensors \(out\), but the call declares 2",
        ),
        ({}, [SPEC], [], ShapeMismatch, "the call declares 0"),
        ({"shapes": refused_by_the_rule}, [SPEC], [SPEC], ShapeMismatch, "must be square"),
        ({"shapes": lambda x: x.shape[9]}, [SPEC], [SPEC], OperationFailed, "raised IndexError"),
        ({"shapes": lambda x: None}, [SPEC], [SPEC], OperationFailed, "rule of mine raised TypeE"),
        ({"shapes": lambda x: [x, x]}, [SPEC], [SPEC], OperationFailed, "returns 2 outputs, but"),
        (
            {"shapes": lambda x: TensorSpec((-1,), F32)},
            [SPEC],
            [SPEC],
            BurnRemoteError,
            "non-negative",
        ),
    ],
)
def test_a_mismatched_call_is_refused_before_the_function_runs(
    declared: dict[str, Any],
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    kind: type[Exception],
    sentence: str,
) -> None:
    def never(xp: Any, *arrays: Any) -> Any:
        raise AssertionError("it ran")

    with pytest.raises(kind, match=sentence):
        bound(operation(never, **declared), *inputs, outputs=tuple(outputs))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda xp, x: x.astype(xp.float64), r"float64\[2, 3\] for out, but declares float32\[2"),
        (lambda xp, x: x.T, r"float32\[3, 2\] for out, but declares"),
        (lambda xp, x: x.tolist(), "returned 2 arrays but declares 1"),
        (lambda xp, x: "text", "it returned str for out, not an array"),
        (lambda xp, x: None, "it returned NoneType for out"),
        (lambda xp, x: (x, x), "returned 2 arrays but declares 1"),
    ],
)
def test_a_result_that_is_not_as_declared_fails(function: Function, sentence: str) -> None:
    with pytest.raises(OperationFailed, match=sentence):
        bound(operation(function), SPEC)([X])
