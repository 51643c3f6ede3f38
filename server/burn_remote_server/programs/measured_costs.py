"""Costs of operations and graphs, corrected by measurements of their executions.

The operation table's estimates are upper bounds. The estimate of a matrix product is 40 to 100
times what a BLAS takes, because products of integers have no BLAS. By estimates alone, a step of a
small network would never run on the event loop.
"""

from __future__ import annotations

import time
from typing import Final

from burn_remote_protocol.operations.estimates import UNKNOWN
from burn_remote_protocol.operations.row import Signature
from burn_remote_server.backends.interface import BackendSession

__all__ = ["MeasuredCost", "is_measurable", "processor_nanoseconds"]

# Operations with at least this estimate are measured, which takes 1.5 µs. Smaller ones may run on
# the event loop anyway.
MEASURED_COST: Final = 100_000
# ``likely_cost`` is at least this share of the estimate. This bounds how long an operation may
# occupy the event loop if a program makes its first executions fast and a later one slow. Subnormal
# numbers make operations take up to five times their estimate: 240 ns for a power of float32, whose
# estimate is 60 ns, and 4.8 ns for each product in a product of matrices (estimate: 2 ns).
LEAST_SHARE: Final = 1 / 16
# A larger divisor makes ``likely_cost`` fall more slowly after an execution that took longer.
DECAY: Final = 4
# The processor time of the calling thread, which other threads and programs do not affect. Where
# that clock is coarse (Windows: 16 ms), elapsed time takes its place.
processor_nanoseconds: Final = (
    time.thread_time_ns
    if time.get_clock_info("thread_time").resolution <= 1e-6
    else time.perf_counter_ns
)


class MeasuredCost:
    """The cost of an operation or a graph, in nanoseconds.

    ``cost`` is the estimate. ``likely_cost`` equals it before the first measurement. Later, it is
    at least the last measurement and ``LEAST_SHARE`` of the estimate, and approaches the larger of
    both from above. If ``is_measured`` is true, each execution is to be measured.
    """

    __slots__ = ("cost", "is_measured", "likely_cost")

    def __init__(self) -> None:
        self.cost = self.likely_cost = 0
        self.is_measured = False

    def estimate(self, cost: int, *, is_measurable: bool) -> None:
        """Set the estimate."""
        self.cost = self.likely_cost = cost
        self.is_measured = is_measurable and cost >= MEASURED_COST

    def measure(self, nanoseconds: int) -> None:
        """Note the time of an execution."""
        likely = self.likely_cost
        nanoseconds = max(nanoseconds, int(LEAST_SHARE * self.cost))
        if likely != self.cost:
            nanoseconds = max(nanoseconds, likely - (likely - nanoseconds) // DECAY)
        self.likely_cost = nanoseconds


def is_measurable(signature: Signature, session: BackendSession) -> bool:
    """Whether the time of an execution shows how long others of this signature take.

    Iterations of LAPACK depend on the elements, and custom operations on anything.
    """
    row = signature.row
    is_known = row.estimates is not UNKNOWN and row.family != "LinearAlgebra"
    return is_known and not session.computes_asynchronously
