"""Moves of a large tensor between servers, with their throughput and this program's traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

import burn_remote as br
from cluster.nodes import Cluster, Node

__all__ = ["MAX_MIB", "Move", "Ring"]

COLUMNS: Final = 4096
# Element [r, c] is r % 127 + c % 113, so all sums of rows and columns are integers that float32
# represents exactly in any order of addition, up to 2²⁴ / 238 rows.
ROW_PERIOD: Final = 127
COLUMN_PERIOD: Final = 113
MAX_MIB: Final = 1024


@dataclass(frozen=True)
class Move:
    """A successful move; times are seconds since the start of the program."""

    source: Node
    target: Node
    nbytes: int
    started: float
    ended: float
    client_bytes: int

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / (self.ended - self.started)


@dataclass
class Ring:
    """Moves one float32 tensor around the nodes and checks it by its sums."""

    cluster: Cluster
    nbytes: int
    moves: list[Move] = field(default_factory=list)
    wrong: int = 0
    _at: Node | None = None
    _tensor: br.Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the tensor [rows, 4096]."""
        return max(1, self.nbytes // (4 * COLUMNS))

    def start(self) -> None:
        """Create the tensor on the first remaining node."""
        self._at = self.cluster.alive[0]
        self._tensor = None  # frees the old one, if its server is still there
        rows, columns = self._terms()
        self._tensor = br.tensor(rows[:, None], device=self._at.device) + br.tensor(
            columns, device=self._at.device
        )
        self.cluster.sync(self._at)

    def hop(self) -> Move | None:
        """Move the tensor to the next node; return ``None`` if there is only one.

        Raises one of ``FAILURES``.
        """
        alive = self.cluster.alive
        if len(alive) < 2:
            return None
        assert self._at is not None and self._tensor is not None  # started
        source, target = self._at, alive[(alive.index(self._at) + 1) % len(alive)]
        self.cluster.sync(target)
        before = [node.device.traffic for node in (source, target)]
        started = self.cluster.seconds
        moved = self._tensor.to(target.device)
        self.cluster.sync(target)
        ended = self.cluster.seconds
        traffic = [
            node.device.traffic - past for node, past in zip((source, target), before, strict=True)
        ]
        client_bytes = sum(each.bytes_sent + each.bytes_received for each in traffic)
        self._at, self._tensor = target, moved
        self._check(moved)
        move = Move(source, target, moved.nbytes, started, ended, client_bytes)
        self.moves.append(move)
        return move

    def _terms(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the terms that each row and each column adds to its elements."""
        return (
            (np.arange(self.rows) % ROW_PERIOD).astype(np.float32),
            (np.arange(COLUMNS) % COLUMN_PERIOD).astype(np.float32),
        )

    def _check(self, moved: br.Tensor) -> None:
        """Compare the sums of columns and rows with the expected ones."""
        rows, columns = self._terms()
        expected = (self.rows * columns + rows.sum(), COLUMNS * rows + columns.sum())
        for axis, sums in enumerate(expected):
            found = self.cluster.result(moved.sum(axis=axis).read())
            if not np.array_equal(np.asarray(found).ravel(), sums):
                self.wrong += 1
