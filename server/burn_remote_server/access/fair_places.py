"""A bounded number of places, of which one party can take at most half."""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["FairPlaces"]


class FairPlaces:
    """Places that parties share, such as clients or the hosts of other servers.

    A party may take another place only while it has fewer than are free. So one party has at most
    half of them, and others are not refused because of it. Not thread-safe.
    """

    def __init__(self, allowed: int) -> None:
        self.allowed: Final = allowed
        self.total = 0  # taken by all parties
        self._taken: Final[Counter[str]] = Counter()  # by party

    def taken(self, party: str) -> int:
        """Return the number of places that a party has."""
        return self._taken[party]

    def take(self, party: str) -> bool:
        """Take a place for a party; return whether it may have another one."""
        if self._taken[party] >= self.allowed - self.total:
            return False
        self.total += 1
        self._taken[party] += 1
        return True

    def give_back(self, party: str) -> None:
        """Give a place of a party back."""
        self.total -= 1
        self._taken[party] -= 1
        if not self._taken[party]:
            del self._taken[party]
