"""A session's failures count in its quota, as objects and as entries of its table."""

from __future__ import annotations

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded, UnknownTensor
from burn_remote_server.access.quota import FREE_OVERHEAD_BYTES, Quota
from burn_remote_server.tensors.failures import ENTRY_BYTES, FAILURE_BYTES, Failures


def failed(reason: str = "failed") -> OperationFailed:
    return OperationFailed(reason, operation="Numeric.Add")


def test_failures_beyond_the_free_ones_count_until_nothing_references_them() -> None:
    quota = Quota(10**6, 10)
    failures = Failures(quota)
    kept = [failures.kept(failed()) for _ in range(1000)]
    assert FAILURE_BYTES * 1000 - FREE_OVERHEAD_BYTES < quota.held <= 10**6
    kept.clear()
    assert quota.held == 0


def test_the_texts_of_a_failure_count() -> None:
    quota = Quota(10**7, 10)
    kept = Failures(quota).kept(failed("x" * 10**6))
    assert kept.reason == "x" * 10**6
    assert quota.held > 10**6 - FREE_OVERHEAD_BYTES


def test_failures_without_room_share_one_that_names_the_quota() -> None:
    quota = Quota(FREE_OVERHEAD_BYTES, 10)
    failures = Failures(quota)
    made = [failed() for _ in range(2000)]
    kept = [failures.kept(each) for each in made]
    assert kept[0] is made[0]
    assert kept[-1] is kept[-2]
    assert isinstance(kept[-1], QuotaExceeded)
    assert "the reason could not be kept: session bytes" in str(kept[-1])
    assert quota.held <= quota.max_bytes


def test_entries_count_and_tensors_without_one_have_an_error_that_names_the_quota() -> None:
    quota = Quota(FREE_OVERHEAD_BYTES, 10)
    failures = Failures(quota)
    assert isinstance(failures.unknown(7), UnknownTensor)
    entries = 2 * FREE_OVERHEAD_BYTES // ENTRY_BYTES
    added = [failures.add_entry(lambda: None) for _ in range(entries + 3)]
    assert added == [True] * entries + [False] * 3
    assert isinstance(failures.unknown(7), QuotaExceeded)
    for _ in range(entries):
        failures.remove_entry()
    assert quota.held == 0
