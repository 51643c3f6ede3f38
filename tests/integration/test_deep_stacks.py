"""Calls near the recursion limit: they compute, or raise RecursionError and change nothing."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.servers import RunningServer

CALLS_BELOW_LIMIT = 160


def depth() -> int:
    return len([*traceback.walk_stack(sys._getframe())])


def nested(calls: int, function: Callable[[], Any]) -> Any:
    return nested(calls - 1, function) if calls else function()


def uploaded(x: br.Tensor) -> float:
    return float(br.tensor(np.ones(100_000, np.float32), device=x.device).sum())


def trained(x: br.Tensor) -> list[float]:
    w = br.tensor([3.0], device=x.device).requires_grad_()
    (w * w).sum().backward()
    found: list[float] = w.grad.tolist()
    return found


CALLS: dict[str, tuple[Callable[[br.Tensor], Any], Any]] = {
    "operation": (lambda x: (x + 1).tolist(), [2, 2, 2]),
    "upload": (uploaded, 100_000),
    "gradient": (trained, [6]),
    "sync": (lambda x: x.device.sync(), None),
}


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
@pytest.mark.parametrize("name", CALLS)
def test_a_recursion_error_ends_no_session(
    first_server: RunningServer, name: str, dialect: str
) -> None:
    call, expected = CALLS[name]
    with br.RemoteDevice(first_server.address, dialect=dialect) as device:
        x = br.ones((3,), device=device)
        assert call(x) == expected
        reached, raised = 0, 0
        deepest = sys.getrecursionlimit() - depth()
        for calls in range(deepest - CALLS_BELOW_LIMIT, deepest):
            try:
                assert nested(calls, lambda: call(x)) == expected
                reached += 1
            except RecursionError:
                raised += 1
        assert reached > 0
        assert raised > 0
        assert (x * 5).tolist() == [5, 5, 5]
