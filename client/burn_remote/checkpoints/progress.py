"""Progress of long work on files: a bar in a terminal, or a function of the program."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from burn_remote_protocol.errors import UsageError

__all__ = ["Progress", "Report", "reported"]

# A function that is called with a tensor's name, the bytes done, and the bytes of all tensors.
Report = Callable[[str, int, int], object]

# ``None``: show a bar for many bytes in a terminal. A bool: always or never show one.
Progress = Report | bool | None

# A bar for less would vanish at once on most devices.
MIN_BYTES: Final = 128 * 1024 * 1024


@contextlib.contextmanager
def reported(progress: Progress, title: str, total: int) -> Iterator[Report]:
    """Yield the function to call with progress. Raises ``UsageError`` if a bar needs rich."""
    if callable(progress):
        yield progress
        return
    has_rich = importlib.util.find_spec("rich") is not None
    if progress and not has_rich:
        raise UsageError("a progress bar needs rich: pip install rich; or pass a function")
    if progress is None:
        progress = has_rich and total >= MIN_BYTES and sys.stderr.isatty()
    if not progress:
        yield _nothing
        return
    with _bar(title, total) as report:
        yield report


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Report]:
    from rich import progress as rich_progress
    from rich.console import Console

    columns: tuple[Any, ...] = (
        "{task.description}",
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
        "{task.fields[name]}",
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, name="")
        yield lambda name, done, _: bar.update(task, completed=done, name=name)


def _nothing(name: str, done: int, total: int) -> None:
    """Report nothing."""
