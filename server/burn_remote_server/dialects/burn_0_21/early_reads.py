"""The order of tasks in which a read does not wait for tasks that do not concern it.

A training program sends the whole step before it reads the loss, although the loss was computed
long before the step's last operations. So among tasks that arrived together, a read moves directly
behind the last task that names its tensor, and its reply leaves before the tasks that it passed are
executed. Meanwhile, the client prepares the next step.

A read passes only operations and drops. Tensors never change, so these cannot affect a tensor that
they do not name. The order of all other tasks, and of reads among each other, stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote_protocol.dialects.burn_0_22_recognition import FrameLayout, KnownFrame
from burn_remote_protocol.messages import Drop, Read
from burn_remote_protocol.operations.row import Operation

__all__ = ["MAX_PASSED", "divided_after_reads"]

# Most tasks that a read passes. In Burn 0.22, a frame of four operations is one task, so this is a
# program of 256 operations. Bounds the search for clients that send nothing but reads.
MAX_PASSED: Final = 64


def divided_after_reads(tasks: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the tasks in parts; a part ends with a read that passes the tasks of later parts."""
    parts: list[Sequence[Any]] = []
    waiting: list[Any] = []
    for task in tasks:
        found = _read_of(task)
        if found is None:
            waiting.append(task)
            continue
        tensor, before, read = found
        place = len(waiting)
        if before is None or not _concerns(before, tensor):
            least = max(0, place - MAX_PASSED)
            while place > least and not _concerns(waiting[place - 1], tensor):
                place -= 1
        if place == len(waiting):
            waiting.append(task)
            continue
        parts.append([*waiting[:place], read])
        del waiting[:place]
        if before is not None:
            waiting.append(before)
    if waiting:
        parts.append(waiting)
    return parts


def _read_of(task: Any) -> tuple[int, KnownFrame | None, Any] | None:
    """Return a read's tensor, the messages before it in its frame, and the read itself."""
    if type(task) is Read:
        return task.tensor, None, task
    if type(task) is not KnownFrame or type(task.layout) is not FrameLayout:
        return None
    final = task.layout.final_read
    if final is None:
        return None
    numbers = task.numbers
    # A read has two numbers, and its tensor's is the second.
    before = None if final.before is None else KnownFrame(final.before, numbers[: final.tensor - 1])
    return numbers[final.tensor], before, KnownFrame(final.alone, numbers)


def _concerns(task: Any, tensor: int) -> bool:
    """Whether a read of a tensor must stay behind a task."""
    if type(task) is KnownFrame:
        return not _has_only_operations(task) or tensor in task.numbers
    if type(task) is Operation or type(task) is Drop:
        return tensor in task.tensors
    return True


def _has_only_operations(frame: KnownFrame) -> bool:
    layout = frame.layout
    if type(layout) is FrameLayout:
        return layout.only_operations
    return layout.parts[-1].signature is not None
