"""Progress of long work on files: a bar in a terminal, or a function of the program."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from burn_remote_protocol.errors import UsageError

__all__ = ["Progress", "Report", "reported"]

# A function that is called with a tensor's name, the bytes done, and the bytes of all tensors.
Report = Callable[[str, int, int], object]

# ``None``: show a bar for long work in a terminal or a notebook. A bool: always or never show one.
Progress = Report | bool | None

# Shorter work ends before anyone could read the bar.
DELAY_SECONDS: Final = 1.0


@contextlib.contextmanager
def reported(
    progress: Progress, title: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Report]:
    """Yield the function to call with progress.

    Raises ``UsageError`` if ``progress`` is true and rich is not installed.
    """
    if callable(progress):
        yield progress
        return
    has_rich = importlib.util.find_spec("rich") is not None
    if progress and not has_rich:
        raise UsageError("a progress bar needs rich: pip install rich; or pass a function")
    if progress:
        with _bar(title, total) as report:
            yield report
        return
    if progress is False or not has_rich or not (sys.stderr.isatty() or _is_notebook()):
        yield _nothing
        return
    began = clock()
    with contextlib.ExitStack() as stack:
        shown: list[Report] = []

        def report_late(name: str, done: int, total: int) -> None:
            if not shown and done < total and clock() - began >= DELAY_SECONDS:
                shown.append(stack.enter_context(_bar(title, total)))
            if shown:
                shown[0](name, done, total)

        yield report_late


def _is_notebook() -> bool:
    """Return whether the program runs in a notebook, and ipywidgets, which rich needs, is there."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    is_kernel = shell is not None and hasattr(shell, "kernel")
    return is_kernel and importlib.util.find_spec("ipywidgets") is not None


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
    with rich_progress.Progress(*columns, console=Console(stderr=not _is_notebook())) as bar:
        task = bar.add_task(title, total=total, name="")
        yield lambda name, done, _: bar.update(task, completed=done, name=name)


def _nothing(name: str, done: int, total: int) -> None:
    """Report nothing."""
