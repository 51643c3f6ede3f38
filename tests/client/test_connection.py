"""Errors of a connection are told again and again, each time with a traceback of its own."""

from __future__ import annotations

import pytest

from burn_remote.connection import fresh
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    LimitExceeded,
    OperationFailed,
    SessionLost,
)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("gone"),
        SessionLost("over"),
        LimitExceeded("bytes in one message", seen=3, allowed=2),
        OperationFailed("why", operation="Numeric.Add", shapes="float32[2]", tensor=4),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_fresh_error_says_the_same_and_is_another_object(error: BurnRemoteError) -> None:
    again = fresh(error)
    assert again is not error
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
