"""Draw a training step before and after ``br.compile``, with the measured bytes of each.

python benchmarks/graph_picture.py        writes docs/images/graph_step.svg
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from xml.sax.saxutils import escape

import typer

import burn_remote as br
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import TensorHandle
from burn_remote_protocol.operations.row import Signature

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from graphs import remote_step
from numpy_training import softmax_arrays

from support.servers import server

STEPS: Final = 200  # as in ``graphs.py``
WIDTH, MARGIN = 760, 20
COLUMNS, BOX, GAP = 8, 22, 6
COLOURS: Final = {"sent": "#1f6fb4", "computed": "#eef3f8"}


class Names(ForwardingRunner):
    """Lists the names of operations."""

    seen: tuple[str, ...] = ()

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Note the name of one operation and issue it."""
        self.seen = (*self.seen, signature.row.name)
        return super().register_op(signature, inputs)


def operation_names() -> tuple[str, ...]:
    """Return the names of the operations of one step."""
    with br.LocalDevice() as device:
        tensors = [br.tensor(array, device=device) for array in softmax_arrays()]
        device.client = names = Names(device.client)
        remote_step(*tensors)
        return names.seen


def bytes_of_calls(step: Callable[..., Any], device: br.Device) -> tuple[float, float]:
    """Return the bytes sent for the first two steps, and for each later one."""
    x, y, w1, b1, w2, b2 = (br.tensor(array, device=device) for array in softmax_arrays())
    found = []
    for count in (2, STEPS, STEPS):
        device.sync()
        before = device.traffic
        for _ in range(count):
            w1, b1, w2, b2 = step(x, y, w1, b1, w2, b2)
        w1.numpy()
        found.append((device.traffic - before).bytes_sent)
    return found[0], found[-1] / STEPS


def boxes(names: Sequence[str], top: float, fill: str, text: str) -> list[str]:
    """Draw a box with a name for each operation, ``COLUMNS`` in a row."""
    width = (WIDTH - 2 * MARGIN + GAP) / COLUMNS - GAP
    parts = []
    for place, name in enumerate(names):
        row, column = divmod(place, COLUMNS)
        x, y = MARGIN + column * (width + GAP), top + row * (BOX + GAP)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" rx="3" fill="{fill}"/>'
            f'<text x="{x + width / 2:.1f}" y="{y + 15}" fill="{text}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return parts


def picture(names: Sequence[str], eager: float, first: float, compiled: float) -> str:
    """Return the picture as SVG. The numbers are bytes."""
    height_of_all = -(-len(names) // COLUMNS) * (BOX + GAP)
    parts: list[str] = []
    top = MARGIN + 14

    def title(text: str) -> None:
        nonlocal top
        parts.append(f'<text x="{MARGIN}" y="{top}" font-weight="bold">{escape(text)}</text>')
        top += 12

    title(f"Before: each step sends {len(names)} operations, {eager:.0f} bytes")
    parts += boxes(names, top, COLOURS["sent"], "#fff")
    top += height_of_all + 30
    title(f"After: each step sends 1 call of the graph, {compiled:.0f} bytes")
    width = WIDTH - 2 * MARGIN
    call = "graph 4096:  x, y, w1, b1, w2, b2  →  w1, b1, w2, b2"
    parts.append(
        f'<rect x="{MARGIN}" y="{top}" width="{width}" height="{BOX}" rx="3" '
        f'fill="{COLOURS["sent"]}"/><text x="{WIDTH / 2}" y="{top + 15}" fill="#fff" '
        f'text-anchor="middle">{call}</text>'
    )
    top += BOX + 24
    parts.append(
        f'<text x="{MARGIN}" y="{top}">The server runs the same {len(names)} operations. The first '
        f"two steps sent {first:,.0f} bytes: the operations, and once the graph.</text>"
    )
    top += 12
    parts += boxes(names, top, COLOURS["computed"], "#444")
    height = top + height_of_all + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="#444">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def main(
    file: Annotated[Path, typer.Option(help="Write the picture here.")] = Path(
        "docs/images/graph_step.svg"
    ),
) -> None:
    """Measure both forms of the step on a server, and draw them."""
    with server() as running:
        with br.RemoteDevice(running.address) as device:
            _, eager = bytes_of_calls(remote_step, device)
        with br.RemoteDevice(running.address) as device:
            first, compiled = bytes_of_calls(br.compile(remote_step), device)
    file.write_text(picture(operation_names(), eager, first, compiled), "utf-8")
    print(f"{eager:.1f} bytes a step, compiled {compiled:.1f}; first two steps {first}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
