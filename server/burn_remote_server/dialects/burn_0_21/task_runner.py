"""Execution of a Burn session's tasks.

Burn's client waits forever if its socket closes, so a failed session stays open and replies to
every request with the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import BurnRemoteError, OperationFailed, ProtocolViolation
from burn_remote_protocol.messages import Fetch, QueryDType, Read, Sync, Task, Upload
from burn_remote_protocol.operations.row import Operation
from burn_remote_server.execution.costs import (
    NEW_SIGNATURE_COST,
    READ_COST,
    TASK_COST,
    cost_of_plan,
)
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.engine_interfaces import Outbox
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.interpreter_turns import LONG_COST
from burn_remote_server.programs.stream_fusion import MAX_WINDOW_TASKS, Entry
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["BurnTask", "TaskRunner", "Unreadable"]

logger = get_logger(__name__)


# Operations that need no plan: one ends an upload, the other frees a tensor.
_WITHOUT_PLANS: Final = frozenset({"Init", "Drop"})

# Most tensors that the event loop frees at once; takes about 1 ms.
FREED_INLINE: Final = 5_000


class Unreadable(NamedTuple):
    """A malformed task."""

    error: ProtocolViolation


BurnTask = Task | Operation | Unreadable


class TaskRunner:
    """Executes the tasks of a Burn session.

    After an error that would end a native session, it frees the tensors and replies to every later
    request with that error.
    """

    def __init__(self, engine: Engine, interpreter: Interpreter, outbox: Outbox) -> None:
        self._engine: Final = engine
        self._interpreter: Final = interpreter
        self._outbox: Final = outbox
        self.failure: OperationFailed | None = None
        # Sends the replies that are queued, also during a task; set while a thread may do that.
        self.send_replies: Callable[[], None] | None = None

    # One loop with a branch per kind of task: a call per operation would cost 5 %.
    def run(self, tasks: Sequence[Any]) -> None:  # noqa: C901
        """Execute tasks in order. Never raises."""
        handle = self.handle
        execute = self._interpreter.execute
        known_plan = self._interpreter.plans.known_plan
        invoke, invoke_simple = self._interpreter.invoke, self._interpreter.invoke_simple
        if self._interpreter.fusion is not None:
            self._interpreter.fusion.known_until = 0
        engine = self._engine
        engine.tasks = tasks
        waiting: Iterator[tuple[int, Any]] = enumerate(tasks)
        if engine.turn.is_crowded:
            waiting = engine.turn.paced(waiting, self._python_cost)
        elif engine.turn.has_company:
            waiting = engine.turn.unpaced(waiting)
        for engine.place, task in waiting:
            if engine.is_stopped:
                return
            try:
                if self.failure is not None:
                    raise self.failure
                if isinstance(task, Operation):
                    plan = known_plan(task.signature)
                    if plan is None:
                        execute(task)
                        continue
                    if plan.seen is not None and not plan.is_large:
                        invoke_simple(plan, task.tensors, 0)
                        continue
                    if not plan.is_fusible:
                        invoke(plan, task.tensors)
                        continue
                    done = self._interpreter.invoke_fused(partial(self._fusible, tasks), engine)
                    if not done:
                        invoke(plan, task.tensors)
                    elif done > 1:
                        next(islice(waiting, done - 1, done - 1), None)  # skip the fused tasks
                elif isinstance(task, Unreadable):
                    raise task.error
                else:
                    handle(task)
            except Exception as error:  # the client needs a response to each task
                self._give_up(task, error)

    @property
    def runs_graphs(self) -> bool:
        """Whether the client has registered graphs."""
        return False

    def handle(self, task: Any) -> None:
        """Execute a task other than an operation."""
        self._engine.handle(task)

    def cost_of(self, task: Any) -> int | None:
        """Estimate the cost of a task other than an operation; return ``None`` if it is unknown."""
        if isinstance(task, Fetch):
            return None
        if isinstance(task, Read):
            return READ_COST * task.spec.size
        if isinstance(task, Upload):
            copies = self._interpreter.backend.copies_upload(task.data)
            return len(task.data.bytes) if copies else TASK_COST
        return 0

    def answer_refused(self, task: Any, failure: OperationFailed) -> None:
        """Reply to a request of a session that has failed."""
        if isinstance(task, Read | QueryDType):
            self._outbox.reply(task.request, failure)
        elif isinstance(task, Sync):
            self._outbox.failed((), failure)
            self._outbox.reply(task.request, None)

    def _fusible(self, tasks: Sequence[BurnTask]) -> Iterator[Entry]:
        """Yield the tasks that fusers may take: the current one and those directly after it."""
        place = self._engine.place
        for task in tasks[place : place + MAX_WINDOW_TASKS]:
            if not isinstance(task, Operation):
                return
            signature, tensors = task
            if signature.row.family == "Drop":
                yield Entry(None, tensors)
                continue
            plan = self._interpreter.plans.known_plan(signature)
            if plan is None or not plan.joins_windows or plan.error is not None:
                return
            yield Entry(plan, tensors)

    def estimate(self, tasks: Sequence[Any]) -> int | None:
        """Estimate the cost of tasks; return ``None`` if it is unknown."""
        tensors = self._interpreter.tensors
        # The first error frees all tensors. Freeing many tensors would block the event loop.
        if tensors.has_slots() or len(tensors) > FREED_INLINE:
            return None
        known_plan = self._interpreter.plans.known_plan
        total = 0
        for task in tasks:
            if type(task) is Operation:
                plan = known_plan(task.signature)
                if plan is not None:
                    total += plan.cost
                elif task.signature.row.family not in _WITHOUT_PLANS:
                    return None
            elif task is not tasks[0] or not self._reads_in_place(task):
                cost = self.cost_of(task)
                if cost is None:
                    return None
                total += cost
            total += TASK_COST
        return total

    def _reads_in_place(self, task: Any) -> bool:
        """Whether a task is a read that copies nothing, of a tensor that exists now."""
        if type(task) is not Read:
            return False
        array = self._interpreter.tensors.arrays.get(task.tensor)
        backend = self._interpreter.backend
        return array is not None and not backend.copies_elements(array, task.spec.dtype)

    def _python_cost(self, entry: tuple[int, Any]) -> int | None:
        """Estimate the cost of a task that computes in Python; return ``None`` for others."""
        _, task = entry
        if type(task) is Operation:
            plan = self._interpreter.plans.known_plan(task.signature)
            return NEW_SIGNATURE_COST if plan is None else cost_of_plan(plan)
        cost = self.cost_of(task)
        return None if cost is None or cost > LONG_COST else TASK_COST + cost

    def _give_up(self, task: Any, error: Exception) -> None:
        """Make the session fail with a task's error, and reply to the task."""
        if isinstance(error, BurnRemoteError):
            self._refuse(task, error)
            error.__traceback__ = None  # ``failure`` is kept, and the traceback refers to the tasks
        else:  # a bug in the server: the client still needs a response
            logger.error("session failed", exc_info=error)
            self._refuse(task, OperationFailed(f"{type(error).__name__}: {error}"))

    def _refuse(self, task: BurnTask, error: BurnRemoteError) -> None:
        if self.failure is None:
            self.failure = OperationFailed(f"the session has failed: {error}")
            self._engine.close()
        self.answer_refused(task, self.failure)
