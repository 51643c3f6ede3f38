"""Counts of what was compiled and fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FusionCounts", "KernelCounts"]


@dataclass(slots=True, eq=False)
class FusionCounts:
    """Counts of one session; only the thread that runs the session writes them.

    A *window* is a run of operations of a stream that was offered to the fusers. ``plans_found``
    counts windows whose execution plan was known, ``fallbacks`` counts optimizations whose
    operations ran one by one instead, and ``graph_fallbacks`` counts calls of graphs that ran step
    by step. ``compile_seconds`` is the time spent on compiling graphs and on exploring windows.

    ``captures`` counts parts of graphs that a device captured, and ``replays`` their launches.
    ``replay_fallbacks`` counts calls of such parts that ran the operations one by one instead.
    ``captures_refused`` counts attempts that failed, except for lack of memory, and
    ``captures_released`` counts captures that were released so that tensors fit.
    """

    windows: int = 0
    plans_explored: int = 0
    plans_found: int = 0
    plans_evicted: int = 0
    operations_fused: int = 0
    fallbacks: int = 0
    graphs: int = 0
    graph_calls: int = 0
    graph_fallbacks: int = 0
    captures: int = 0
    replays: int = 0
    replay_fallbacks: int = 0
    captures_refused: int = 0
    captures_released: int = 0
    compile_seconds: float = 0.0


class KernelCounts(NamedTuple):
    """Counts of a compiler: kernels compiled and evicted, and the time spent on compiling them."""

    compiled: int = 0
    evicted: int = 0
    seconds: float = 0.0
