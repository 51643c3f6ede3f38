"""When a session that lost its connection gives up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from burn_remote.sessions.native import resume_attempts
from burn_remote.sessions.native.resume_attempts import REFUSED_SECONDS, ResumeAttempts
from burn_remote_protocol.errors import ConnectionFailed, ConnectionLost, SessionLost

LEASE_SECONDS = 60.0
OWN, OTHER = "10.0.0.1", "10.0.0.2"


class Attempts:
    """The attempts of a session whose link led to ``OWN``, by a clock that only tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(resume_attempts, "time", clock)
        self._attempts = ResumeAttempts("cut", LEASE_SECONDS, 0, OWN)

    def refused(self, *hosts: str, at: float) -> Exception | None:
        """Return the final error after an attempt that these addresses refused, if it is final."""
        self.now = at
        self._attempts.begin()
        failure = ConnectionFailed("nothing listens")
        failure.refused_by = frozenset(hosts)
        failure.__cause__ = ConnectionRefusedError()
        return self._attempts.final_error(failure)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(monkeypatch)


def test_a_server_whose_port_refuses_connections_for_a_while_has_ended(attempts: Attempts) -> None:
    assert attempts.refused(OWN, at=0) is None
    assert attempts.refused(OWN, OTHER, at=REFUSED_SECONDS / 2) is None
    final = attempts.refused(OWN, at=REFUSED_SECONDS)
    assert isinstance(final, ConnectionLost)
    assert "nothing listens there any more" in str(final)


def test_other_addresses_of_its_name_may_refuse_until_the_lease_ends(attempts: Attempts) -> None:
    assert attempts.refused(OTHER, at=0) is None
    assert attempts.refused(OTHER, at=LEASE_SECONDS - 1) is None
    final = attempts.refused(OTHER, at=LEASE_SECONDS)
    assert isinstance(final, SessionLost)
    assert "within its lease of 60 seconds" in str(final)


def test_only_refusals_of_its_address_in_a_row_end_a_session(attempts: Attempts) -> None:
    assert attempts.refused(OWN, at=0) is None
    assert attempts.refused(OTHER, at=REFUSED_SECONDS) is None
    assert attempts.refused(OWN, at=2 * REFUSED_SECONDS) is None
    assert attempts.refused(OWN, at=3 * REFUSED_SECONDS) is not None
