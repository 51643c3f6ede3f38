"""The prepared signatures and graphs of a session, and the memory that they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import getrefcount
from typing import Any, Final

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded
from burn_remote_protocol.interrupted_finalizers import call_once_when_freed
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.row import Signature
from burn_remote_server.access.quota import OverheadAccount, Quota, ended_for_memory
from burn_remote_server.backends.interface import Backend, BackendSession, Run
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.fusion.fusing_backend import FusionBackend
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.programs.plans import (
    PLAN_BYTES,
    Plan,
    signature_bytes,
    timed,
    too_costly,
    within,
)
from burn_remote_server.programs.program_capture import Captures
from burn_remote_server.tensors.allocations import memory_bytes
from burn_remote_server.tensors.tensor_table import TensorTable

__all__ = ["PlanTable"]

# Number of plans kept for Burn's dialect, which does not number signatures. Each takes about 2 KiB.
# For a program with more signatures, some plans are prepared again. They take at most a session's
# quota divided by ``PLAN_CACHE_DIVISOR``, so that the rest is left for its tensors.
PLAN_CACHE_LENGTH: Final = 4096
PLAN_CACHE_DIVISOR: Final = 16

# Operations with at least this estimated cost are timed, or with at least a tenth of
# ``max_operation_seconds``: no operation takes more than ten times its estimate
# (`benchmarks/costs.py`).
TIMED_COST: Final = 1_000_000
NANOSECONDS: Final = 10**9

# Smallest amount of scratch memory that is reserved in the quota. Reserving smaller amounts would
# add 0.3 µs to every small operation, and a session runs only one operation at a time.
RESERVED_WORKSPACE_BYTES: Final = 2**20

# A signature counts in the quota if its ``signature_bytes`` exceed this: the memory of 16 tensors
# without dimensions. 4,096 signatures of this size take 18 MiB.
UNCOUNTED_SIGNATURE_BYTES: Final = 16 * 280

# Memory of a plan that a signature keeps, measured for sums of two tensors. Plans are counted 64 at
# a time, because a count for each would add 1 µs to every definition.
KEPT_PLAN_BYTES: Final = 2048
PLANS_AT_ONCE: Final = 64

# References to a plan besides those of graphs: a local variable and the argument of getrefcount.
_NO_GRAPH: Final = 2


class PlanTable:
    """The plans of one session: those that have a number, and those that are kept by signature."""

    def __init__(
        self,
        backend: Backend,
        session: BackendSession,
        tensors: TensorTable,
        quota: Quota,
        reply_quota: Quota,
        counts: FusionCounts,
        check_stopped: Callable[[], None],
        *,
        max_operation_cost: int | None,
        max_operation_seconds: float | None,
    ) -> None:
        """``check_stopped`` raises ``Stopped`` once the session has ended."""
        self._backend: Final = backend
        self._session: Final = session
        self._tensors: Final = tensors
        self._quota: Final = quota
        self._counts: Final = counts
        self._check_stopped: Final = check_stopped
        self._max_operation_cost: Final = max_operation_cost
        self._max_operation_seconds: Final = max_operation_seconds
        self.numbered: Final[dict[int, Any]] = {}  # ``Plan`` or ``GraphPlan``
        fusing = backend if isinstance(backend, FusionBackend) else None
        self._fusers: Final = () if fusing is None else fusing.fusers()
        self._fuses_streams: Final = fusing is not None and fusing.fusion_runtime.fuses_streams
        captures = fusing is not None and session.captures_runs
        self._captures: Final = Captures(session, quota, counts) if captures else None
        # Keyed by ``id``: the decoder returns the same object for the same signature, and the plan
        # keeps that object alive.
        self._plans: dict[int, Plan] = {}
        self._plan_account: Final = OverheadAccount(reply_quota)
        most = reply_quota.max_bytes // PLAN_CACHE_DIVISOR // KEPT_PLAN_BYTES
        self._cached_plans: Final = max(1, min(PLAN_CACHE_LENGTH, most))
        self._counted_plans = 0  # those of ``numbered`` and ``_plans`` that the account has counted

    def define(self, number: int, signature: Signature) -> None:
        """Assign a number to a signature, replacing an earlier one with that number."""
        replaced = self.numbered.get(number)
        if replaced is None:
            try:
                self._count_kept_plan()
            except QuotaExceeded as error:
                raise ended_for_memory("a signature", error) from error
        self.numbered[number] = self._prepare(signature)
        if replaced is not None and getrefcount(replaced) > _NO_GRAPH:
            # Graphs still use the plan. Only plans that have a number are limited in number, so
            # this one counts in the quota now.
            self._count_plan(replaced, PLAN_BYTES)

    def define_graph(self, task: DefineGraph) -> None:
        """Assign a number to a graph. Raises ``ProtocolViolation`` for an invalid graph."""
        self.numbered[task.number] = self.compile_graph(task, self.numbered)

    def compile_graph(self, task: DefineGraph, numbered: Mapping[int, Any]) -> GraphPlan:
        """Compile a graph whose steps are the numbers of plans, and count its memory.

        Raises ``ProtocolViolation`` for an invalid graph.
        """
        started = time.perf_counter()
        plan = GraphPlan(
            task,
            numbered,
            self._backend,
            self._session,
            self._prepare,
            self.limited,
            self._check_stopped,
            self._captures,
        )
        self._counts.graphs += 1
        self._counts.compile_seconds += time.perf_counter() - started
        self._count_plan(plan, plan.nbytes)
        return plan

    def plan_of(self, signature: Signature) -> Plan:
        """Return the plan of a signature; prepare it if needed."""
        plan = self._plans.get(id(signature))
        if plan is None:
            plan = self._prepare(signature)
            if not self._keeps_another_plan() and self._plans:
                self._plans.pop(next(iter(self._plans)))
            self._plans[id(signature)] = plan
        return plan

    def known_plan(self, signature: Signature) -> Plan | None:
        """Return the plan of a signature that was executed before, or ``None``."""
        return self._plans.get(id(signature))

    def definition_bytes(self) -> int:
        """Return the memory of the signatures and graphs, in bytes (an estimate)."""
        plans = len(self.numbered) + len(self._plans)
        others = self._plan_account.bytes - KEPT_PLAN_BYTES * self._counted_plans
        return PLAN_BYTES * plans + others

    def _prepare(self, signature: Signature) -> Plan:
        plan = Plan(signature, self._session)
        size = signature_bytes(signature)
        if size > UNCOUNTED_SIGNATURE_BYTES:
            self._count_plan(plan, size)
        refusal = self._quota.refusal(memory_bytes(spec) for spec in signature.outputs)
        plan.error = (
            self._tensors.lost
            or plan.error
            or refusal
            or too_costly(plan.cost, self._max_operation_cost)
        )
        plan.wrap(lambda run: self.limited(run, (plan,)))
        if self._fusers:
            plan.let_fuse(self._session, self._fusers, opens_windows=self._fuses_streams)
        return plan

    def limited(self, run: Run, plans: Sequence[Plan]) -> Run:
        """Add the checks of the quota and of time to the execution of one or several plans."""
        workspace_bytes = max(plan.workspace_bytes for plan in plans)
        if workspace_bytes >= RESERVED_WORKSPACE_BYTES:
            run = within(run, workspace_bytes, self._quota)
        allowed_seconds = self._max_operation_seconds
        if allowed_seconds is None:
            return run
        least = allowed_seconds * NANOSECONDS / 10
        if len(plans) == 1:
            least = min(TIMED_COST, least)
        # Fused operations may overwrite their inputs only if no later check can make them fail. The
        # time limit is checked when they have finished, so they are timed only if they could exceed
        # it.
        if sum(plan.cost for plan in plans) >= least:
            run = timed(run, allowed_seconds)
        return run

    def _count_plan(self, plan: Plan | GraphPlan, size: int) -> None:
        """Count a plan's memory until the plan is freed. Raises ``SessionLost``."""
        try:
            self._plan_account.add(size)
        except QuotaExceeded as error:
            raise ended_for_memory("a large signature", error) from error
        call_once_when_freed(plan, partial(self._plan_account.remove, size))

    def _count_kept_plan(self) -> None:
        """Count one more plan in ``numbered`` or ``_plans``. Raises ``QuotaExceeded``."""
        if len(self.numbered) + len(self._plans) >= self._counted_plans:
            self._plan_account.add(PLANS_AT_ONCE * KEPT_PLAN_BYTES)
            self._counted_plans += PLANS_AT_ONCE

    def _keeps_another_plan(self) -> bool:
        """Count one more plan in ``_plans``; return whether there is room for it."""
        if len(self._plans) >= self._cached_plans:
            return False
        try:
            self._count_kept_plan()
        except QuotaExceeded:
            return False
        return True

    def fail(self, error: OperationFailed) -> None:
        """Let every plan of the session fail with an error from now on."""
        for plan in (*self.numbered.values(), *self._plans.values()):
            plan.error = error

    def clear(self) -> None:
        """Free all plans."""
        # One by one, because other threads would wait while ``dict.clear`` frees thousands.
        for plans in (self.numbered, self._plans):
            while plans:
                plans.popitem()
        self._plan_account.remove(KEPT_PLAN_BYTES * self._counted_plans)
        self._counted_plans = 0
