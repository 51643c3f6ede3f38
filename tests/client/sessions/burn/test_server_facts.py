"""Fixed facts about a Burn server, and the one that must be queried."""

from __future__ import annotations

import pytest

from burn_remote.runner.pending import Pending
from burn_remote.sessions.burn.server_facts import MAX_MESSAGE_BYTES, facts, find_bool_store
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, BOOL_U32, DType, DTypeUsage
from burn_remote_protocol.errors import ConnectionFailed


def answering(usages: dict[DType, int], asked: list[DType] | None = None):  # type: ignore[no-untyped-def]
    """Return a function ``ask`` that replies with these usages."""

    def ask(dtype: DType) -> Pending[DTypeUsage]:
        pending: Pending[DTypeUsage] = Pending()
        pending.complete(DTypeUsage(usages.get(dtype, 0)))
        if asked is not None:
            asked.append(dtype)
        return pending

    return ask


def test_the_facts_name_the_dialect_and_the_address() -> None:
    known = facts("ws://box:3000/1")
    assert known.device == {"dialect": "burn-0.21"}
    assert known.peer_address == "ws://box:3000/1"
    assert known.limits["message_bytes"] == MAX_MESSAGE_BYTES == 67_108_864


@pytest.mark.parametrize(
    ("usages", "store"),
    [
        ({BOOL: 3, BOOL_U8: 3}, BOOL),  # the CPU backend, as recorded
        ({BOOL_U8: 3, BOOL_U32: 3}, BOOL_U8),
        ({BOOL: 1, BOOL_U32: 3}, BOOL_U32),
        ({}, BOOL),
    ],
)
def test_bools_are_stored_in_the_first_dtype_that_supports_arithmetic(
    usages: dict[DType, int], store: DType
) -> None:
    asked: list[DType] = []
    assert find_bool_store(answering(usages, asked), "ws://box", 1.0) is store
    assert asked == [BOOL, BOOL_U8, BOOL_U32]


def test_the_error_for_a_server_that_does_not_respond_says_to_restart_it() -> None:
    with pytest.raises(ConnectionFailed, match=r"ws://box.*panicked.*restart it"):
        find_bool_store(lambda _: Pending(), "ws://box", 0.01)
