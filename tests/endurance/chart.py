"""Line charts of samples over time, as SVG, with panels below each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Line", "Panel", "chart"]

WIDTH: Final = 760
LEFT: Final = 60
RIGHT: Final = 130
PANEL_HEIGHT: Final = 150
GAP: Final = 45
COLOURS: Final = ("#1f6fb4", "#d9730d", "#2d8a4e", "#8a4fb0")
TICKS: Final = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A name, and a value for each sample."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines that share an axis, which begins at 0."""

    title: str
    lines: Sequence[Line]


def chart(minutes: Sequence[float], panels: Sequence[Panel]) -> str:
    """Return panels over the same minutes as an SVG document."""
    height = GAP + len(panels) * (PANEL_HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" fill="#444">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        top = GAP + number * (PANEL_HEIGHT + GAP)
        parts += _panel(panel, minutes, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, minutes: Sequence[float], top: int) -> list[str]:
    highest = _rounded_up(max(max(line.values) for line in panel.lines))
    last = minutes[-1]
    right, bottom = WIDTH - RIGHT, top + PANEL_HEIGHT

    def x(minute: float) -> float:
        return LEFT + (right - LEFT) * minute / last

    def y(value: float) -> float:
        return bottom - PANEL_HEIGHT * value / highest

    parts = [f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{panel.title}</text>']
    for tick in range(TICKS + 1):
        value = highest * tick / TICKS
        parts += [
            f'<path d="M{LEFT} {y(value):.1f}H{right}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>',
        ]
    for minute in _whole_minutes(last):
        parts.append(
            f'<text x="{x(minute):.1f}" y="{bottom + 16}" text-anchor="middle">{minute} min</text>'
        )
    for number, line in enumerate(panel.lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{x(minute):.1f},{y(value):.1f}"
            for minute, value in zip(minutes, line.values, strict=True)
        )
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>',
            f'<text x="{right + 8}" y="{top + 14 + 16 * number}" fill="{colour}">'
            f"{line.name}</text>",
        ]
    return parts


def _whole_minutes(last: float) -> range:
    step = next((step for step in (1, 5, 15, 60) if last / step < 8), 60)
    return range(0, int(last) + 1, step)


def _rounded_up(value: float) -> float:
    """Return the next of 1, 2, 4 and 8 times a power of ten."""
    scale = 1.0
    while scale * 10 < value:
        scale *= 10
    return next((factor * scale for factor in (1, 2, 4, 8) if factor * scale >= value), 10 * scale)
