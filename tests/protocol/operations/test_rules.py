"""All rules with random calls: they infer outputs or refuse, consistently.

Few random calls of the rows with several inputs are right: tests/client/test_changed_calls.py
changes the client's own calls.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.table import TABLE
from support.random_calls import assert_consistent, calls


@pytest.mark.parametrize("row", TABLE.values(), ids=str)
@given(data=st.data())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_a_rule_infers_outputs_or_refuses_consistently(row: Row, data: st.DataObject) -> None:
    assert_consistent(row, data.draw(calls(row)))
