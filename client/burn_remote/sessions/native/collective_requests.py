"""Groups of sessions, and their collectives, in the native dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote.runner.interface import TensorHandle
from burn_remote.sessions.lifetime import DROP_BYTES, DROP_TENSORS, FLUSH_SECONDS
from burn_remote.sessions.native.task_queue import TaskQueue
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.dialects.native import encode_task
from burn_remote_protocol.errors import Unsupported, UsageError
from burn_remote_protocol.messages import Collective, JoinGroup, LeaveGroup
from burn_remote_protocol.snapshots import items_of

__all__ = ["PROMPT_COLLECTIVES", "PROMPT_SECONDS", "PROMPT_TASKS", "CollectiveRequests"]

# After a wait of the program, the server has nothing to do. So this many collectives are sent at
# once, if nothing was sent for this time: two GPUs reduce 64 MiB in it. Later ones are sent with
# others, in batches of at least this many tasks: a frame takes 100 µs of processor time on both
# sides.
PROMPT_COLLECTIVES: Final = 2
PROMPT_SECONDS: Final = 0.00025
PROMPT_TASKS: Final = 8


class CollectiveRequests(TaskQueue):
    """The methods of ``NativeSession`` for groups of which the session is a member."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: Final[dict[int, GroupSpec]] = {}
        self._sequences: Final[dict[int, int]] = {}  # of the next collective, by group
        # How many collectives to send at once, see ``PROMPT_COLLECTIVES``. Renewed by each wait.
        self._prompts = PROMPT_COLLECTIVES

    def join_group(self, spec: GroupSpec) -> int:
        """Make the session a member of a group; see ``RunnerClient.join_group``."""
        allowed = self.welcome.limits.get("groups", 0)
        if not allowed:
            raise Unsupported(
                f"{self._connection.address} carries out no collectives: update the server"
            )
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            self.check_open()
            number = next((one for one in range(allowed) if one not in self._groups), None)
            if number is None:
                raise UsageError(
                    f"this session is a member of {allowed} groups, the server's limit; leave one"
                )
            task = encode_task(JoinGroup(number, spec))
            groups, sequences, tasks = self._groups, self._sequences, self._tasks
            end = len(tasks)
            # Ctrl-C cannot come between these, as in ``collective``.
            groups[number], sequences[number], tasks[end:] = spec, 0, [task]
            self._appended(task)
            self._flush()  # the other members' servers wait for this one
        return number

    def group_size(self, group: int) -> tuple[int, int]:
        """Return the number of members of a group, and the rank of this session in it."""
        spec = self._groups.get(group)
        if spec is None:
            raise UsageError(f"this session is not a member of group {group}")
        return len(spec.addresses), spec.rank

    def group_number(self, spec: GroupSpec) -> int | None:
        """Return the number of the group that was joined with ``spec`` and not left."""
        return next((number for number, one in items_of(self._groups) if one is spec), None)

    def collectives_issued(self, group: int) -> int:
        """Return how many collectives this session has issued in a group."""
        self.group_size(group)
        return self._sequences[group]

    def collective(
        self,
        group: int,
        call: CollectiveCall,
        inputs: list[int],
        outputs: Sequence[TensorHandle],
    ) -> None:
        """Issue this member's part of a collective; see ``Session.collective``."""
        size = sum([handle.spec.nbytes for handle in outputs])
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            self.check_open()
            sequence = self._sequences[group]
            made = self._assign_ids(outputs)
            self._locations.note(made.start, 4)
            if self._dropped and (
                self._undropped_bytes + size >= DROP_BYTES or len(self._dropped) >= DROP_TENSORS
            ):
                self._append_drops()
            self._undropped_bytes += size
            task = encode_task(Collective(group, sequence, call, tuple(inputs), tuple(made)))
            tasks, sequences, end = self._tasks, self._sequences, len(self._tasks)
            # The other members rely on this part once it is counted, so Ctrl-C must not come
            # between counting and queueing it. CPython runs no signal handler in a statement
            # without calls.
            sequences[group], tasks[end:] = sequence + 1, [task]
            self._appended(task)
            if self.transfer_domain == "local":
                # A local device executes in the thread that sends. Another member's thread must not
                # wait for this collective while the same thread still has to send it.
                self._flush()
            else:
                self._send_promptly()

    def _send_promptly(self) -> None:
        """Send a collective if the server may be idle, or if the flusher is late.

        The flusher needs the interpreter lock, which a program that issues one collective after the
        other does not release: its thread would run after 5 ms, when all of them are issued.
        """
        if not self._prompts and len(self._tasks) < PROMPT_TASKS:
            return
        if self._clock() - self._flushed_at >= (PROMPT_SECONDS if self._prompts else FLUSH_SECONDS):
            self._prompts = max(0, self._prompts - 1)
            self._flush()

    def leave_group(self, group: int) -> None:
        """Leave a group once the collectives issued so far are done."""
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            self.group_size(group)
            task = encode_task(LeaveGroup(group))
            is_sent = self._connection.error is None
            groups, sequences, tasks, end = (
                self._groups, self._sequences, self._tasks, len(self._tasks)
            )  # fmt: skip
            # Ctrl-C cannot come between these, as in ``collective``.
            tasks[end:] = [task] if is_sent else []
            del groups[group], sequences[group]
            if is_sent:
                self._appended(task)
