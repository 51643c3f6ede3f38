"""Numbers of the graphs that a server knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote.runner.operation_graph import Graph
from burn_remote_protocol.dialects.native import MAX_GRAPHS, MAX_SIGNATURES, encode_task
from burn_remote_protocol.messages import DefineGraph

__all__ = ["GraphTable"]


class GraphTable:
    """A session's graph numbers, which are reused in a ring. Not thread-safe.

    The table keeps the graphs alive that have a number.
    """

    def __init__(self) -> None:
        self.known: Final[dict[int, int]] = {}
        self._ring: Final[list[Graph | None]] = [None] * MAX_GRAPHS
        self._defined = 0

    def take(self, graph: Graph, signatures: Sequence[int]) -> tuple[int, bytes]:
        """Number a graph; return the number and the task that defines it.

        ``signatures`` has the number of each step's signature. The number takes effect once the
        task was appended to a batch and ``keep`` was called.
        """
        position = self._defined % MAX_GRAPHS
        replaced = self._ring[position]
        if replaced is not None:
            self.known.pop(id(replaced), None)
        number = MAX_SIGNATURES + position
        steps = zip(signatures, graph.steps, strict=True)
        task = DefineGraph(
            number,
            graph.input_count,
            tuple((signature, *step.inputs) for signature, step in steps),
            graph.output_slots,
            tuple(
                (place, field, number)
                for place, step in enumerate(graph.steps)
                for field, number in step.numbers
            ),
        )
        return number, encode_task(task)

    def keep(self, graph: Graph, number: int) -> None:
        """Record the number that ``take`` assigned to a graph."""
        self._ring[number - MAX_SIGNATURES] = graph
        self.known[id(graph)] = number
        self._defined += 1
