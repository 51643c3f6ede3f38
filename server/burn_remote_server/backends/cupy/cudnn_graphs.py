"""Which of cuDNN's graphs does a session have already, and may it have one more?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from burn_remote_server.backends.cupy.cudnn_tasks import Task

__all__ = ["MAX_GRAPHS", "Graphs"]

# What one session may have. Larger: a program of ever new shapes holds more of the host's memory,
# which no quota counts. Smaller: programs of many layers run some of them on our own kernels.
MAX_GRAPHS: Final = 1024

Graph = TypeVar("Graph")


class Graphs(Generic[Graph]):
    """The graphs of one session, for as long as one of its plans has them."""

    def __init__(self) -> None:
        self._kept: Final[WeakValueDictionary[Task, Graph]] = WeakValueDictionary()

    def graph_of(self, task: Task, build: Callable[[], Graph]) -> Graph | None:
        """Return a task's graph, built where there is none; ``None`` where there are too many."""
        graph = self._kept.get(task)
        if graph is None and len(self._kept) < MAX_GRAPHS:
            graph = self._kept[task] = build()
        return graph
