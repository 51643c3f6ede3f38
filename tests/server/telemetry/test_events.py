"""The names of log events are phrases, and docs/running-a-server.md lists all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import burn_remote_server

LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception"})
LOGGERS: Final = frozenset({"log", "logger"})
PAGE: Final = Path(__file__).parents[3] / "docs" / "running-a-server.md"


def events() -> Iterator[tuple[str, str]]:
    """Iterate over the events that the server logs, with the level."""
    for path in Path(burn_remote_server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner, level = node.func.value, node.func.attr
            if not (isinstance(owner, ast.Name) and owner.id in LOGGERS and level in LEVELS):
                continue
            names = [node.args[0]]
            if isinstance(names[0], ast.IfExp):
                names = [names[0].body, names[0].orelse]
            for name in names:
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: not a constant"
                yield str(name.value), "error" if level == "exception" else level


def listed() -> set[tuple[str, str]]:
    """Return the events and levels of the table in the documentation."""
    table = PAGE.read_text("utf-8").split("### Log entries")[1].split("\n## ")[0]
    found: set[tuple[str, str]] = set()
    for row in re.findall(r"^\| (`.*?) \| ([a-z, ]+) \|", table, re.MULTILINE):
        names, levels = re.findall("`(.*?)`", row[0]), row[1].split(", ")
        levels *= len(names) if len(levels) == 1 else 1
        found |= set(zip(names, levels, strict=True))
    return found


def test_events_are_lower_case_phrases() -> None:
    for event, _ in events():
        assert re.fullmatch("[a-z]+( [a-z]+)*", event), event


def test_the_documentation_lists_all_events_with_their_levels() -> None:
    assert listed() == set(events())
