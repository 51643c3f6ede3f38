"""Moves of tensors between devices: the part that runs in the client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import burn_remote as br

PATIENCE_SECONDS = 5.0


def test_a_source_that_cannot_send_delays_no_move_between_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        br.LocalDevice() as frozen,
        br.LocalDevice() as healthy,
        br.LocalDevice() as target,
        ThreadPoolExecutor(2) as pool,
    ):
        tensors = [br.ones((2,), device=device) for device in (frozen, healthy)]
        is_stuck, may_send = threading.Event(), threading.Event()
        expose: Any = frozen.session.expose

        def expose_late(*arguments: Any) -> None:
            is_stuck.set()
            assert may_send.wait(PATIENCE_SECONDS)
            expose(*arguments)

        monkeypatch.setattr(frozen.session, "expose", expose_late)
        stuck = pool.submit(tensors[0].to, target)
        assert is_stuck.wait(PATIENCE_SECONDS)
        try:
            moved = pool.submit(tensors[1].to, target).result(PATIENCE_SECONDS)
            assert moved.tolist() == [1, 1]
        finally:
            may_send.set()
        assert stuck.result(PATIENCE_SECONDS).tolist() == [1, 1]
