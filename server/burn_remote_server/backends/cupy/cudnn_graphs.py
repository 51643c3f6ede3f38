"""The cache of a session's cuDNN graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from burn_remote_server.backends.cupy.cudnn_selection import Task

__all__ = ["MAX_GRAPHS", "Graphs"]

# Most graphs of one session. They use host memory that no quota counts. Further distinct
# convolutions run on our own kernels.
MAX_GRAPHS: Final = 1024

Graph = TypeVar("Graph")


class Graphs(Generic[Graph]):
    """The cuDNN graphs of one session. A graph lives as long as a plan uses it."""

    def __init__(self) -> None:
        self._kept: Final[WeakValueDictionary[Task, Graph]] = WeakValueDictionary()

    def graph_of(self, task: Task, build: Callable[[], Graph]) -> Graph | None:
        """Return the graph of a task, building it if needed, or ``None`` at the limit."""
        graph = self._kept.get(task)
        if graph is None and len(self._kept) < MAX_GRAPHS:
            graph = self._kept[task] = build()
        return graph
