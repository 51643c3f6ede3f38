"""Tracebacks of errors: the program's lines and the sentence, without frames of the package."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

import burn_remote as br
from burn_remote.diagnostics.tracebacks import FULL_TRACEBACKS, shorten

# Of a compiled function's error: the program's call, its line in the function, and the sentence.
MAX_LINES = 15


@pytest.fixture(autouse=True, scope="module")
def device() -> Iterator[br.LocalDevice]:
    with br.LocalDevice() as device:
        br.set_default_device(device)
        yield device
        br.set_default_device(None)


def shapes_that_do_not_fit(x: br.Tensor) -> br.Tensor:
    return x @ x


def a_read(x: br.Tensor) -> br.Tensor:
    return x if x.sum() > 0 else -x


def a_shape_that_depends_on_elements(x: br.Tensor) -> br.Tensor:
    return x[x > 0]


def a_mistake_of_the_program(x: br.Tensor) -> br.Tensor:
    return x + dict[str, float]()["rate"]


def a_foreign_name(x: br.Tensor) -> br.Tensor:
    return br.concatenate([x, x])  # type: ignore[attr-defined, no-any-return]


def a_gradient(x: br.Tensor) -> Any:
    return br.grad(lambda w: (w @ w).sum())(x)


FUNCTIONS = [
    shapes_that_do_not_fit, a_read, a_shape_that_depends_on_elements, a_mistake_of_the_program,
    a_foreign_name, a_gradient,
]  # fmt: skip


def lines_of(function: Callable[[br.Tensor], Any]) -> list[str]:
    x = br.zeros((3, 4))
    try:
        function(x)
    except Exception as error:
        return "".join(traceback.format_exception(error)).splitlines()
    raise AssertionError("no error was raised")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_error_in_a_compiled_function_shows_the_line_and_the_sentence(
    function: Callable[[br.Tensor], Any],
) -> None:
    lines = lines_of(br.compile(function))
    assert len(lines) <= MAX_LINES
    assert any(line.endswith(f"in {function.__name__}") for line in lines)
    assert not any("/graphs/" in line or "/dispatch/" in line for line in lines)


def test_an_error_of_a_function_shows_no_frame_of_the_package_but_the_call() -> None:
    lines = lines_of(shapes_that_do_not_fit)
    assert len(lines) <= MAX_LINES
    assert lines[-2].startswith("burn_remote_protocol.errors.ShapeMismatch: ")


def test_an_error_that_is_not_ours_keeps_the_innermost_frames() -> None:
    class Broken:
        @property
        def handle(self) -> Any:
            raise RuntimeError("broken")

    lines = lines_of(br.compile(lambda x: br.stack([x, Broken()])))  # type: ignore[list-item]
    assert any("in handle" in line for line in lines)


def test_an_environment_variable_keeps_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FULL_TRACEBACKS, "1")
    assert any("/dispatch/" in line for line in lines_of(br.compile(shapes_that_do_not_fit)))


def assigned(x: br.Tensor, y: br.Tensor) -> None:
    x[0] = y


def indexed(x: br.Tensor, y: br.Tensor) -> Any:
    return x[5]


OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    divmod, operator.pow, operator.matmul, operator.lt, operator.le, operator.gt, operator.ge,
    operator.eq, operator.ne, operator.iadd, operator.isub, operator.imul, operator.itruediv,
    operator.ifloordiv, operator.imod, operator.ipow,
]  # fmt: skip
INTEGER_OPERATORS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


def modules_of(
    function: Callable[[Any, Any], Any], x: Any, y: Any, expected: type[Exception]
) -> list[str]:
    with pytest.raises(expected) as caught:
        function(x, y)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    return [frame.f_globals["__name__"] for frame in frames]


@pytest.mark.parametrize("act", [*OPERATORS, assigned, indexed])
def test_a_mismatch_in_an_operator_shows_no_frame_of_the_package(
    act: Callable[[Any, Any], Any],
) -> None:
    modules = modules_of(act, br.ones((2, 3)), br.ones((4, 5)), br.ShapeMismatch)
    assert set(modules) == {__name__}


@pytest.mark.parametrize("act", INTEGER_OPERATORS)
def test_a_mismatch_of_bits_shows_no_frame_of_the_package(act: Callable[[Any, Any], Any]) -> None:
    x, y = br.ones((2, 3), dtype=br.int64), br.ones((4, 5), dtype=br.int64)
    assert set(modules_of(act, x, y, br.ShapeMismatch)) == {__name__}


@pytest.mark.parametrize("act", [operator.add, operator.sub, operator.truediv, operator.pow])
def test_an_operand_that_is_no_number_shows_no_frame_of_the_package(
    act: Callable[[Any, Any], Any],
) -> None:
    x = br.ones(3)
    assert set(modules_of(act, x, [1, 2, 3], br.ArgumentMismatch)) == {__name__}
    assert set(modules_of(act, [1, 2, 3], x, br.ArgumentMismatch)) == {__name__}


def test_an_error_raised_at_an_instruction_without_a_line_keeps_its_kind() -> None:
    without_lines = FunctionType(
        a_mistake_of_the_program.__code__.replace(co_linetable=b""), globals()
    )
    with pytest.raises(KeyError) as raised:
        without_lines(br.ones(2))
    shorten(raised.value)
    lines = [line for _, line in traceback.walk_tb(raised.value.__traceback__)]
    assert lines[-1] is None
    assert lines[0] is not None
