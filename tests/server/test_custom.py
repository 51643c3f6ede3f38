"""Loading of custom operations and the errors of invalid definitions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.custom import (
    CustomOperation,
    CustomOperations,
    custom_operation,
    load_operations,
)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write an importable module of custom operations."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def operation(name: str = "double", **declared: Any) -> CustomOperation:
    settings: dict[str, Any] = {"inputs": {"x": "any"}, "shapes": lambda x: x}

    @custom_operation(name, **settings | declared)
    def double(xp: Any, x: Any) -> Any:
        return xp.add(x, x)

    return double


def test_a_decorated_function_can_still_be_called() -> None:
    assert operation()(np, np.arange(3)).tolist() == [0, 2, 4]


def test_a_module_provides_the_operations_it_decorates(
    written: Callable[[str, str], str],
) -> None:
    module = written(
        "operators_two",
        "from burn_remote_server.custom import custom_operation\n"
        "def shapes(x): return x\n"
        "@custom_operation('one', inputs={'x': 'float'}, shapes=shapes)\n"
        "def one(xp, x): return x\n"
        "@custom_operation('two', inputs={'x': 'int uint'}, shapes=shapes)\n"
        "def two(xp, x): return x\n",
    )
    assert load_operations([module]).names == ["one", "two"]
    assert load_operations([module, module]).names == ["one", "two"]
    assert load_operations([]).names == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import a_library_that_is_nowhere", "needs a_library_that_is_nowhere, which is not inst"),
        ("1 / 0", "importing 'operators_bad' raised ZeroDivisionError: division by zero"),
        ("raise SystemExit('no licence')", "raised SystemExit: no licence"),
        ("def", r"raised SyntaxError: .*operators_bad.py, line 1"),
        ("x = 1", "'operators_bad' defines none; decorate a function"),
    ],
)
def test_an_unusable_module_is_refused_with_the_reason(
    written: Callable[[str, str], str], text: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_operations([written("operators_bad", text)])


@pytest.mark.parametrize("name", ["nowhere", "nowhere.at.all", "burn_remote_server.nowhere"])
def test_a_missing_module_is_refused_with_advice(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' cannot be imported; install .* PYTHONPATH"):
        load_operations([name])


def test_the_name_of_a_file_is_no_module() -> None:
    with pytest.raises(UsageError, match=r"'unheard_of\.py' cannot .*; write unheard_of, the name"):
        load_operations(["unheard_of.py"])


def test_a_function_that_does_not_take_the_module_and_the_inputs_is_refused() -> None:
    declare = custom_operation("double", inputs={"x": "any"}, shapes=lambda x: x)
    with pytest.raises(
        UsageError,
        match=r"'double' is called with \(xp, x\), but its function takes \(x\)$",
    ):
        declare(lambda x: x)


def test_a_function_may_take_numbers_after_the_inputs() -> None:
    declare = custom_operation("power", inputs={"x": "any"}, shapes=lambda x: x)
    power = declare(lambda xp, x, exponent: xp.power(x, exponent))
    assert power(np, np.full(1, 3.0), 2).tolist() == [9.0]


def test_inputs_without_dtypes_are_refused() -> None:
    inputs: Any = ["x"]
    with pytest.raises(UsageError, match=r"'double' maps names to dtypes, .* but is \['x'\]$"):
        custom_operation("double", inputs=inputs, shapes=lambda x: x)


def test_two_operations_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two custom operations 'double'"):
        CustomOperations([operation(), operation()])


def test_other_objects_than_operations_are_refused() -> None:
    with pytest.raises(UsageError, match="is not a custom operation; decorate a function"):
        CustomOperations([len])


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"name": ""}, "1 to 100 printable characters, not ''"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "a" * 101}, "1 to 100"),
        ({"outputs": ()}, "'double' has no outputs"),
        (
            {"inputs": {"x": "float33"}},
            "input 'x' of the custom operation 'double' has the dtype 'float33'",
        ),
    ],
)
def test_an_invalid_declaration_is_refused(declared: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        operation(**declared)
