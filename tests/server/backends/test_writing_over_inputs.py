"""Kernels that overwrite an input give the same results as those that do not."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.dtypes import ALL_DTYPES, BOOL, F32, DType
from burn_remote_protocol.errors import BurnRemoteError, DTypeMismatch, Unsupported
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.parameter_codecs import ScalarCodec
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.table import TABLE, sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.programs.plans import Plan
from support.elements import assert_same
from support.kernels import Array, signature
from support.memory_reuse import forced_reuse
from support.recorded import golden

BACKEND = NumpyBackend()
SESSION = BACKEND.open_session()

# Two values per scalar: kernels treat numbers that float16 does not represent differently.
SCALARS: dict[str, tuple[dict[str, float], ...]] = {
    "Clamp": ({"min": 1, "max": 3}, {"min": 2, "max": 2}),
    "MaskFill": ({"value": 1}, {"value": 0}),
}
NUMBERS: tuple[dict[str, float], ...] = ({"rhs": 3}, {"rhs": 0.1})
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4), (40_000,))


class Case(NamedTuple):
    """A row, the dtype of its first tensor, the shapes of its tensors, and its numbers."""

    row: Row
    dtype: DType
    shapes: tuple[tuple[int, ...], ...]
    numbers: dict[str, Any]

    def __str__(self) -> str:
        shapes = " ".join(str(list(shape)) for shape in self.shapes)
        return f"{self.row} {self.dtype} {shapes} {self.numbers}"


def tensors_of(row: Row) -> int:
    return sum(field.role is Role.INPUT for field in row.fields)


def is_simple(field: Field) -> bool:
    return field.role is not Role.PARAMETER or isinstance(field.codec, ScalarCodec)


def cases_of(row: Row) -> Iterator[Case]:
    count = tensors_of(row)
    if not count or not all(map(is_simple, row.fields)):
        return
    has_numbers = any(isinstance(field.codec, ScalarCodec) for field in row.fields)
    numbers: tuple[dict[str, float], ...] = ({},)
    if has_numbers:
        numbers = SCALARS.get(row.name, NUMBERS)
    shapes = [(shape,) * count for shape in SHAPES]
    if count == 2:
        # Broadcast, so that only one of the inputs is as large as the result.
        shapes += [((3, 5), (3, 1)), ((1, 5), (3, 5)), ((7,), (1,)), ((1,), (7,))]
    for dtype, shape, chosen in itertools.product(ALL_DTYPES, shapes, numbers):
        yield Case(row, dtype, shape, chosen)


def signed(case: Case) -> Signature | None:
    """Return the operation, or ``None`` where the row does not take the dtype."""
    specs = [TensorSpec(shape, case.dtype) for shape in case.shapes]
    if case.row.name == "MaskFill":
        specs[1] = TensorSpec(case.shapes[1], BOOL)
    try:
        return signature(f"{case.row.family}.{case.row.name}", *specs, **case.numbers)
    except (DTypeMismatch, Unsupported):
        return None
    except (BurnRemoteError, StopIteration, KeyError):
        return None  # a row whose output or shapes a caller chooses; none of them reuses memory


def reusing(row: Row) -> list[tuple[Case, Signature, Plan]]:
    """Return the cases of a row in which a result may take the memory of an input."""
    found = []
    with forced_reuse():
        for case in cases_of(row):
            operation = signed(case)
            if operation is None:
                continue
            plan = Plan(operation, SESSION)
            if plan.error is None and plan.reusable:
                found.append((case, operation, plan))
    return found


REUSING = {row: found for row in TABLE.values() if (found := reusing(row))}


def elements(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Return small non-zero numbers, since integers are divided by them."""
    random = np.random.default_rng(seed)
    if dtype == np.bool_:
        return np.asarray(random.random(shape) < 0.5)
    numbers = random.integers(1, 5, shape)
    if dtype.kind in "iu":
        return np.asarray(numbers, dtype)
    return np.asarray(numbers / 4 * random.choice([-1, 1], shape), np.float32).astype(dtype)


def inputs_of(operation: Signature) -> list[Array]:
    return [
        elements(use.spec.shape, array_dtype(use.spec.dtype), seed)
        for seed, use in enumerate(operation.input_uses)
    ]


def laid_out(array: Array, layout: str) -> Array:
    """Return an array of its own memory in C order, in Fortran's, or with its axes reversed."""
    if layout == "C":
        return array.copy()
    return np.array(array.T, order="C").T if layout == "reversed" else array.copy(order="F")


def as_in_a_session(function: Any, *arguments: Any, **options: Any) -> Any:
    context = contextvars.copy_context()
    context.run(BACKEND.prepare_thread)
    return context.run(function, *arguments, **options)


def test_only_elementwise_rows_reuse_memory() -> None:
    names = {str(row) for row in REUSING}

    assert {"Base.MaskFill", "Numeric.Clamp", "Float.Erf", "Numeric.Add"} <= names
    dtypes = {case.dtype for found in REUSING.values() for case, _, _ in found}
    assert len({array_dtype(dtype) for dtype in dtypes}) == 13
    # The last bits of a complex product in place may differ from those of one in new memory.
    assert not any(dtype.is_complex for dtype in dtypes)


def test_every_recorded_operation_that_reuses_memory_is_covered() -> None:
    rows = set()
    with forced_reuse():
        for value in golden("OperationIr"):
            operation = decode_operation(value.tuples).signature
            if operation.row.family not in ("Init", "Drop", "Custom"):
                plan = Plan(operation, SESSION)
                rows |= {operation.row} if plan.reusable else set()

    assert len(rows) > 20
    assert rows <= REUSING.keys()


@pytest.mark.parametrize("row", REUSING, ids=str)
def test_the_result_is_the_same_in_the_memory_of_each_input(row: Row) -> None:
    for case, operation, plan in REUSING[row]:
        given = inputs_of(operation)
        expected = as_in_a_session(plan.run, *[array.copy() for array in given])
        for position, layout in itertools.product(plan.reusable, ("C", "F", "reversed")):
            arrays = [laid_out(array, layout) for array in given]

            result = as_in_a_session(plan.run_into, *arrays, out=arrays[position])

            assert result is arrays[position], case
            assert_same(result, expected)
            for other, array in enumerate(arrays):
                if other != position:
                    assert array.tobytes() == given[other].tobytes(), (case, position)


@pytest.mark.parametrize("row", REUSING, ids=str)
def test_the_result_is_the_same_if_one_array_is_several_inputs(row: Row) -> None:
    for case, operation, plan in REUSING[row]:
        first, *others = operation.input_uses
        if not others or any(use.spec.shape != first.spec.shape for use in others):
            continue
        if any(array_dtype(use.spec.dtype) != array_dtype(first.spec.dtype) for use in others):
            continue
        given = inputs_of(operation)[0]
        expected = as_in_a_session(plan.run, given.copy(), given.copy())
        array = given.copy()

        result = as_in_a_session(plan.run_into, array, array, out=array)

        assert result is array, case
        assert_same(result, expected)


class Session:
    """An interpreter whose results reuse memory of every size."""

    def __init__(self) -> None:
        self.failures: list[Any] = []
        self.interpreter = Interpreter(
            BACKEND, Quota(2**30, 2**16), lambda _, error: self.failures.append(error)
        )

    def hold(self, tensor: int, array: Array) -> None:
        """Store an array without other references as a tensor."""
        self.interpreter.tensors.store(tensor, array)

    def array(self, tensor: int) -> Array:
        found = self.interpreter.tensors.arrays[tensor]
        assert isinstance(found, np.ndarray)
        return found

    def run(self, operation: Signature, tensors: tuple[int, ...], dying: tuple[int, ...]) -> Array:
        with forced_reuse():
            self.interpreter.plans.define(0, operation)
        plan = self.interpreter.numbered[0]
        as_in_a_session(self.interpreter.invoke, plan, tensors, dying)
        assert not self.failures
        return self.array(tensors[-1])


def small(found: list[tuple[Case, Signature, Plan]]) -> Iterator[tuple[Case, Signature, Plan]]:
    return (entry for entry in found if max(map(len, entry[0].shapes)) <= 2)


def marked(operation: Signature, positions: tuple[int, ...]) -> Signature:
    """Return the operation with the last use of some inputs marked, as Burn does."""
    places = iter(range(len(operation.input_uses)))
    arguments = [
        TensorUse(argument.spec, TensorStatus.READ_WRITE)
        if isinstance(argument, TensorUse)
        and argument.status is TensorStatus.READ_ONLY
        and next(places) in positions
        else argument
        for argument in operation.arguments
    ]
    return sign(operation.row, *arguments)


def held_by(hold: str, array: Array) -> tuple[Any, Array]:
    """Return other views of an array's memory and a copy of their elements."""
    shown: Any = array
    if hold == "a view":
        shown = array.reshape(-1)[:1]
    elif hold == "a reversed view":
        shown = array[..., ::-1] if array.ndim else array.reshape(1)
    elif hold == "a broadcast view":
        shown = np.broadcast_to(array, (2, *array.shape))
    elif hold == "bytes on their way":
        shown = np.asarray(array.reshape(-1).view(np.uint8).data)
    return shown, np.array(shown)


HOLDS = ("nothing", "the array", "a view", "a reversed view", "a broadcast view",
         "bytes on their way")  # fmt: skip


@pytest.mark.parametrize("way", ["dropped next", "marked as a last use"])
@pytest.mark.parametrize("row", REUSING, ids=str)
def test_surviving_inputs_keep_their_elements_whichever_others_die(row: Row, way: str) -> None:
    for case, operation, plan in small(REUSING[row]):
        given = inputs_of(operation)
        expected = as_in_a_session(plan.run, *[array.copy() for array in given])
        positions = range(len(given))
        holds = HOLDS if case.shapes[0] in ((), (3, 5)) else HOLDS[:1]
        for size in positions:
            for dead, hold in itertools.product(itertools.combinations(positions, size + 1), holds):
                session = Session()
                holders = []
                for tensor, array in enumerate(given):
                    copied = array.copy()
                    if hold != "nothing":
                        holders.append(held_by(hold, copied))
                    session.hold(tensor, copied)
                    del copied

                if way == "dropped next":
                    result = session.run(operation, (*positions, 9), dead)
                else:
                    result = session.run(marked(operation, dead), (*positions, 9), ())

                assert_same(result, expected)
                for tensor in set(positions) - set(dead):
                    assert session.array(tensor).tobytes() == given[tensor].tobytes(), case
                for shown, before in holders:
                    assert_same(np.array(shown), before)


@pytest.mark.parametrize("row", [row for row in REUSING if tensors_of(row) == 2], ids=str)
def test_a_tensor_given_twice_and_an_array_under_two_ids_are_unchanged(row: Row) -> None:
    for case, operation, plan in small(REUSING[row]):
        first, second = operation.input_uses
        if (first.spec.shape, array_dtype(first.spec.dtype)) != (
            second.spec.shape,
            array_dtype(second.spec.dtype),
        ):
            continue
        array = inputs_of(operation)[0]
        expected = as_in_a_session(plan.run, array.copy(), array.copy())
        for tensors, dead in itertools.product(((0, 0), (0, 1), (1, 0)), ((0,), (1,), (0, 1))):
            session = Session()
            held = array.copy()
            session.hold(0, held)
            session.hold(1, held)
            del held

            result = session.run(operation, (*tensors, 9), dead)

            assert_same(result, expected)
            for tensor in (0, 1):
                assert session.array(tensor).tobytes() == array.tobytes(), case


def test_a_result_takes_the_memory_of_a_dying_mask_and_leaves_the_tensor_unchanged() -> None:
    tensor, mask = np.array([True, True, False]), np.array([True, False, True])
    for value, expected in ((True, [True, True, True]), (False, [False, True, False])):
        operation = signature(
            "Base.MaskFill", TensorSpec((3,), BOOL), TensorSpec((3,), BOOL), value=value
        )
        session = Session()
        session.hold(0, tensor.copy())
        session.hold(1, mask.copy())
        place = session.array(1).ctypes.data

        result = session.run(operation, (0, 1, 9), (1,))

        assert result.tolist() == expected
        assert result.ctypes.data == place
        assert session.array(0).tolist() == tensor.tolist()


def test_the_tests_do_not_change_the_threshold() -> None:
    operation = signature("Float.Exp", TensorSpec((8,), F32))

    with forced_reuse():
        assert Plan(operation, SESSION).reusable == (0,)
    assert Plan(operation, SESSION).reusable == ()
