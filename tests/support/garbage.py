"""Finalizers that run at every allocation, because a garbage collection may come at any time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

__all__ = ["finalizers_that_call"]


@contextlib.contextmanager
def finalizers_that_call(function: Callable[[], object]) -> Iterator[None]:
    """Collect garbage at every second allocation, with one object whose finalizer calls this."""
    thresholds = gc.get_threshold()
    is_over = False

    class Cyclic:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            if not is_over:
                function()
                Cyclic()

    gc.set_threshold(1)
    try:
        Cyclic()
        yield
    finally:
        is_over = True
        gc.set_threshold(*thresholds)
        gc.collect()
