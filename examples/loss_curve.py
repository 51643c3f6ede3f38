"""Losses of a training, read without making it wait, and drawn as an SVG picture at the end."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import burn_remote as br

__all__ = ["LossCurve"]

WIDTH, HEIGHT, MARGIN = 640, 320, 48

# The losses of this many steps are read at once.
STEPS_PER_READ = 10

# Reads that may be pending. They limit how far the program runs ahead of the server.
READS_AHEAD = 3


class LossCurve:
    """The loss of each step.

    A loss is a tensor that may not be computed yet. ``add`` requests several of them at once, and
    waits only if the server is many steps behind.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        self._unread: list[br.Tensor] = []
        self._arriving: deque[br.Pending[Any]] = deque()

    def add(self, loss: br.Tensor) -> None:
        """Append the loss ``[]`` of a step."""
        self._unread.append(loss)
        if len(self._unread) == STEPS_PER_READ:
            self._request()
        while len(self._arriving) > READS_AHEAD:
            self.values += self._arriving.popleft().result().tolist()

    def finish(self) -> None:
        """Wait for all losses."""
        if self._unread:
            self._request()
        while self._arriving:
            self.values += self._arriving.popleft().result().tolist()

    @property
    def recent(self) -> str:
        """The mean of the last known losses, as a text."""
        last = self.values[-STEPS_PER_READ:]
        return f"loss {sum(last) / len(last):.3f}" if last else ""

    def save(self, file: Path, title: str) -> None:
        """Draw the losses over the steps as SVG, with a running mean."""
        values, total = self.values, 0.0
        smooth = []
        for place, value in enumerate(values):
            total += value - (values[place - 20] if place >= 20 else 0.0)
            smooth.append(total / min(place + 1, 20))
        top = max(values, default=1.0)
        file.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">\n'
            '<rect width="100%" height="100%" fill="white"/>\n'
            f'<text x="{MARGIN}" y="24" font-size="15">{title}</text>\n'
            f"{_line(values, top, '#bcd4ee', 1)}{_line(smooth, top, '#1f5fa8', 2)}"
            f'<text x="{MARGIN - 6}" y="{MARGIN}" text-anchor="end">{top:.2f}</text>\n'
            f'<text x="{MARGIN - 6}" y="{HEIGHT - MARGIN}" text-anchor="end">0</text>\n'
            f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 18}" text-anchor="end">'
            f"{len(values)} steps</text>\n</svg>\n"
        )

    def _request(self) -> None:
        self._arriving.append(br.stack(self._unread).read())
        self._unread = []


def _line(values: list[float], top: float, color: str, width: int) -> str:
    across = (WIDTH - 2 * MARGIN) / max(len(values) - 1, 1)
    down = (HEIGHT - 2 * MARGIN) / (top or 1.0)
    points = " ".join(
        f"{MARGIN + place * across:.1f},{HEIGHT - MARGIN - value * down:.1f}"
        for place, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>\n'
