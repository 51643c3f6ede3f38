"""The rules with a call of the client for each row, and with calls that differ in one part.

The rules accept the client's calls. They infer outputs for the others or refuse them, consistently.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burn_remote_protocol.operations.row import Call, Row
from burn_remote_protocol.operations.table import TABLE
from support.calls import CALLS, calling_on
from support.random_calls import assert_consistent, changed_calls, resized_calls
from support.runners import RecordingDevice


def issued(row: Row) -> list[Call]:
    """Return the calls of a row that the client issues."""
    device = RecordingDevice()
    device.runner.answers_reads = True
    with calling_on(device):
        CALLS[row.family, row.name]()
    signatures = [operation.signature for operation in device.runner.operations]
    return [signature.call for signature in signatures if signature.row is row]


@pytest.mark.parametrize("key", CALLS, ids=".".join)
def test_a_rule_accepts_the_calls_of_the_client(key: tuple[str, str]) -> None:
    calls = issued(TABLE[key])
    assert calls
    for call in calls:
        assert assert_consistent(TABLE[key], call)


@pytest.mark.parametrize("key", CALLS, ids=".".join)
def test_calls_with_other_sizes_are_consistent(key: tuple[str, str]) -> None:
    for call in issued(TABLE[key]):
        for other in resized_calls(call):
            assert_consistent(TABLE[key], other)


@pytest.mark.parametrize("key", CALLS, ids=".".join)
@given(data=st.data())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_calls_with_one_part_replaced_are_consistent(
    key: tuple[str, str], data: st.DataObject
) -> None:
    call = data.draw(st.sampled_from(issued(TABLE[key])))
    assert_consistent(TABLE[key], data.draw(changed_calls(TABLE[key], call)))
