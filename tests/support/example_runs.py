"""Runs of the examples in this process, and the pictures that they draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from typer import Typer
from typer.testing import CliRunner

__all__ = ["points_of", "printed_by"]

SVG = "{http://www.w3.org/2000/svg}"

# The height of the picture, and its margin.
HEIGHT, MARGIN = 320, 48


def printed_by(main: Callable[..., Any], *arguments: str) -> str:
    """Run a program with arguments; return what it prints, in one line."""
    program = Typer()
    program.command()(main)
    result = CliRunner().invoke(program, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def points_of(chart: Path) -> list[float]:
    """Return the losses in a picture of losses."""
    root = ElementTree.parse(chart).getroot()
    line = root.find(f"{SVG}polyline")
    top = float(root.findall(f"{SVG}text")[1].text or "")
    assert line is not None
    ordinates = [float(pair.split(",")[1]) for pair in line.attrib["points"].split()]
    return [(HEIGHT - MARGIN - y) / (HEIGHT - 2 * MARGIN) * top for y in ordinates]
