"""A session builds one cuDNN graph per task and keeps a bounded number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F16
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.cupy import cudnn_graphs
from burn_remote_server.backends.cupy.cudnn_graphs import Graphs
from burn_remote_server.backends.cupy.cudnn_selection import Task, task_of
from support.kernels import signature


class Graph:
    """A graph that counts how often it is built."""


def task(batch: int) -> Task:
    x, weight = TensorSpec((batch, 8, 9, 9), F16), TensorSpec((8, 8, 3, 3), F16)
    plain: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    found = task_of(signature("Module.Conv2d", x, weight, None, **plain))
    assert found is not None
    assert found.dtype == np.float16
    return found


def test_operations_of_one_task_share_a_graph() -> None:
    graphs = Graphs[Graph]()
    first = graphs.graph_of(task(1), Graph)
    assert first is not None
    assert graphs.graph_of(task(1), Graph) is first
    assert graphs.graph_of(task(2), Graph) is not first


def test_the_number_of_graphs_is_bounded_and_a_freed_graph_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cudnn_graphs, "MAX_GRAPHS", 3)
    graphs = Graphs[Graph]()
    kept = [graphs.graph_of(task(batch), Graph) for batch in range(1, 4)]
    assert None not in kept
    assert graphs.graph_of(task(4), Graph) is None
    assert graphs.graph_of(task(3), Graph) is kept[2]
    kept.pop(0)
    assert graphs.graph_of(task(4), Graph) is not None


def test_a_graph_that_cannot_be_built_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_graphs, "MAX_GRAPHS", 1)

    def fail() -> Graph:
        raise RuntimeError("not supported")

    graphs = Graphs[Graph]()
    with pytest.raises(RuntimeError, match="not supported"):
        graphs.graph_of(task(1), fail)
    assert graphs.graph_of(task(2), Graph) is not None
