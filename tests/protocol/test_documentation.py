"""Style rules that can be checked automatically, for the protocol package and its tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = [
    *sorted((ROOT / "protocol").rglob("*.py")),
    *sorted((ROOT / "tests" / "protocol").rglob("*.py")),
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_is_a_question(path: Path) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        docstring.splitlines()[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, documented) and (docstring := ast.get_docstring(node))
    ]
    assert [line for line in found if line.endswith("?")] == []


def test_every_module_of_the_package_has_a_docstring() -> None:
    package = [path for path in MODULES if "protocol/burn_remote_protocol" in str(path)]
    bare = [path.name for path in package if path.stat().st_size and not re.match(
        r'"""[A-Z`]', path.read_text("utf-8"))]  # fmt: skip
    assert bare == []
