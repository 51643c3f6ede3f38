"""Counts of the tasks that sessions send."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote.sessions.native.native_session import NativeSession


class Tasks:
    """Counts of what sessions send: single operations and calls of graphs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.operations = self.graphs = 0
        one, graph = NativeSession.execute, NativeSession.execute_graph

        def count_one(*args: Any, **kwargs: Any) -> Any:
            self.operations += 1
            return one(*args, **kwargs)

        def count_graph(*args: Any, **kwargs: Any) -> Any:
            self.graphs += 1
            return graph(*args, **kwargs)

        patch.setattr(NativeSession, "execute", count_one)
        patch.setattr(NativeSession, "execute_graph", count_graph)

    def taken(self) -> tuple[int, int]:
        """Return operations and graphs since the last call."""
        counts = self.operations, self.graphs
        self.operations = self.graphs = 0
        return counts
