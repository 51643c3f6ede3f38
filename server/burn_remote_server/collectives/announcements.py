"""Announcements of collectives before they begin, for engines that do not use the members' links.

A member's session announces each collective when it submits it, unless the member's worker is busy:
while that begins earlier collectives, each message would take the interpreter lock from it. Then
the worker itself announces several collectives together: when it comes to the first of them, or
before it waits for anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from burn_remote_protocol.messages import BeginCollective
from burn_remote_server.collectives.collective_engine import Job

__all__ = ["MAX_REASON", "EarlyAnnouncements", "announcement_of"]

Send: TypeAlias = Callable[[Sequence[BeginCollective]], None]

# The most characters of a reason or description that is sent to other members.
MAX_REASON: Final = 900
# The most collectives to announce before the first of them begins.
MAX_TOGETHER: Final = 32


def announcement_of(job: Job) -> BeginCollective:
    """Return the message by which a member announces a collective."""
    call, sequence = job.call, job.sequence
    return BeginCollective(sequence, call.digest(sequence), call.describe()[:MAX_REASON])


class EarlyAnnouncements:
    """Announces a member's collectives in the order of their jobs.

    ``lock`` is the member's. One thread submits jobs, and one begins them. ``send`` sends messages
    to the next member, and does not wait. It is not kept, because the member refers to this object:
    only the garbage collector frees a reference cycle.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock: Final = lock
        self.is_on = False
        # The worker begins collectives, and does not wait for links or inputs.
        self.is_beginning = False
        self._left: list[Job] = []  # the jobs that the worker has to announce

    def turn_on(self, jobs: Iterable[Job]) -> None:
        """Announce these jobs, which were submitted before, and all later ones.

        The worker calls this with the lock, and then ``stop_beginning``.
        """
        self.is_on = self.is_beginning = True
        self._left = [*jobs]

    def leaves_to_worker(self, job: Job) -> bool:
        """Whether the worker will announce a job. Call this with the lock, when it is submitted."""
        if self.is_beginning:
            self._left.append(job)
        return self.is_beginning

    def announce(self, jobs: Sequence[Job], send: Send) -> None:
        """Announce jobs that were not left to the worker."""
        for job in jobs:
            job.begun = announcement_of(job)
        send([job.begun for job in jobs if job.begun is not None])

    def begin(self) -> None:
        """Note that the worker takes a job. Call this with the lock."""
        self.is_beginning = self.is_on

    def announce_left(self, send: Send) -> None:
        """Announce jobs that were left to the worker, which calls this for the first of them."""
        with self._lock:
            jobs = self._left[:MAX_TOGETHER]
            del self._left[:MAX_TOGETHER]
        self.announce(jobs, send)

    def stop_beginning(self, send: Send) -> None:
        """Announce all jobs that were left to the worker, because it may wait from now on."""
        while True:
            with self._lock:
                # The session announces again only after the worker has sent what was left to it.
                if not self._left:
                    self.is_beginning = False
                    return
            self.announce_left(send)
