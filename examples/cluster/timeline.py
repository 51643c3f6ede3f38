"""A timeline of computation and moves on each node, as SVG.

Generated without a plotting library, which would be larger than the server in the image: the
picture only has rectangles, lines and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final
from xml.etree import ElementTree

from cluster.nodes import Node
from cluster.ring import Move
from cluster.watching import Sample

__all__ = ["draw"]

WIDTH: Final = 960
LEFT: Final = 150
RIGHT: Final = 16
TOP: Final = 56
ROW: Final = 22
LANES: Final = 3
NODE: Final = LANES * ROW + 18
FONT: Final = "font-family:sans-serif;font-size:12px"

COMPUTING: Final = "#3d7a4b"
RECEIVING: Final = "#2f6fb0"
SENDING: Final = "#c2702c"
# The lanes of a node: label, colour, field of a sample, unit and divisor.
LANE_ROWS: Final = (
    ("operations", COMPUTING, "operations", "/s", 1.0),
    ("from peers", RECEIVING, "peers_in", "MB/s", 1e6),
    ("to peers", SENDING, "peers_out", "MB/s", 1e6),
)


def draw(
    nodes: Sequence[Node],
    samples: dict[Node, list[Sample]],
    moves: Sequence[Move],
    seconds: float,
) -> str:
    """Return the picture of the first ``seconds`` of a run, as the text of an SVG file.

    Heights are rates between two samples, relative to the highest of the lane's kind; the arrows
    are the moves, by this program's clock.
    """
    scale = (WIDTH - LEFT - RIGHT) / max(seconds, 1e-9)
    height = TOP + NODE * len(nodes) + 36
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {WIDTH} {height}",
            "width": str(WIDTH),
            "height": str(height),
            "style": FONT,
        },
    )
    _add(root, "title", "Who computed and who moved, and when")
    _add(root, "rect", width=WIDTH, height=height, fill="#fff")
    _add(root, "text", "Who computed and who moved, and when", x=LEFT, y=20, font_weight="bold")
    _key(root)
    _axis(root, seconds, scale, height - 30)
    peaks = {
        name: max(
            (rate for each in samples.values() for _, _, rate in _rates(each, name)), default=0
        )
        for _, _, name, _, _ in LANE_ROWS
    }
    for position, node in enumerate(nodes):
        top = TOP + position * NODE
        _lanes(root, node, samples[node], peaks, top, scale)
    for move in moves:
        _arrow(root, move, nodes, scale)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _rates(samples: Sequence[Sample], name: str) -> list[tuple[float, float, float]]:
    """Return start, end and rate between each two samples."""
    return [
        (a.seconds, b.seconds, (getattr(b, name) - getattr(a, name)) / (b.seconds - a.seconds))
        for a, b in pairwise(samples)
        if b.seconds > a.seconds
    ]


def _lanes(
    root: ElementTree.Element,
    node: Node,
    samples: Sequence[Sample],
    peaks: dict[str, float],
    top: float,
    scale: float,
) -> None:
    name = f"{node.name} (lost)" if node.lost else node.name
    _add(root, "text", name, x=8, y=top + 13, font_weight="bold", class_="node")
    for row, (label, colour, field, unit, divisor) in enumerate(LANE_ROWS):
        bottom = top + (row + 1) * ROW
        peak = peaks[field]
        _add(root, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, stroke="#ddd")
        if row:
            _add(root, "text", label, x=8, y=bottom - 6, fill="#666")
        for start, end, rate in _rates(samples, field):
            if rate > 0:
                # Keep values visible that are small beside the peak.
                tall = max(rate / peak * (ROW - 3), 1)
                bar = _add(
                    root,
                    "rect",
                    x=LEFT + start * scale,
                    y=bottom - tall,
                    width=max((end - start) * scale, 0.5),
                    height=tall,
                    fill=colour,
                )
                _add(bar, "title", f"{label}: {rate / divisor:,.0f} {unit} at {start:.2f} s")


def _arrow(root: ElementTree.Element, move: Move, nodes: Sequence[Node], scale: float) -> None:
    y1, y2 = (
        TOP + nodes.index(node) * NODE + (LANES - 1) * ROW for node in (move.source, move.target)
    )
    line = _add(
        root,
        "line",
        x1=LEFT + move.started * scale,
        x2=LEFT + move.ended * scale,
        y1=y1,
        y2=y2,
        stroke="#222",
        stroke_width=1.5,
        class_="move",
    )
    _add(
        line,
        "title",
        f"{move.nbytes / 1e6:,.0f} MB from {move.source.name} to {move.target.name} "
        f"in {move.ended - move.started:.2f} s",
    )


def _key(root: ElementTree.Element) -> None:
    x = float(LEFT)
    for label, colour, _, _, _ in LANE_ROWS:
        _add(root, "rect", x=x, y=30, width=11, height=11, fill=colour)
        _add(root, "text", label, x=x + 16, y=40)
        x += 110
    _add(root, "line", x1=x, x2=x + 14, y1=30, y2=42, stroke="#222", stroke_width=1.5)
    _add(root, "text", "a large tensor moves", x=x + 20, y=40)


def _axis(root: ElementTree.Element, seconds: float, scale: float, y: float) -> None:
    _add(root, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke="#222")
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300) if seconds / s <= 12), 3600)
    for tick in range(int(seconds / step) + 1):
        x = LEFT + tick * step * scale
        _add(root, "line", x1=x, x2=x, y1=y, y2=y + 4, stroke="#222")
        _add(root, "text", f"{tick * step:g} s", x=x, y=y + 18, text_anchor="middle")


def _add(
    parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: object
) -> ElementTree.Element:
    named = {
        name.rstrip("_").replace("_", "-"): f"{value:.2f}"
        if isinstance(value, float)
        else str(value)
        for name, value in attributes.items()
    }
    element = ElementTree.SubElement(parent, tag, named)
    element.text = text
    return element
