"""Messages are values: they compare by their content, cannot change, and do not show secrets."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from burn_remote_protocol import messages
from burn_remote_protocol.errors import ClosedDevice, OperationFailed
from burn_remote_protocol.messages import Drop, FetchRequest, Hello, Reply, Resume, Welcome

SECRET = "a-secret-token"
OTHER_NAMES = {"MAX_HOPS", "Names", "ReplyValue", "Task"}
MESSAGES: list[Any] = [
    getattr(messages, name) for name in messages.__all__ if name not in OTHER_NAMES
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_cannot_be_changed(message: Any) -> None:
    assert issubclass(message, tuple) or message.__dataclass_params__.frozen
    assert "__slots__" in vars(message)


def test_messages_of_equal_content_are_equal() -> None:
    assert Drop((1, 2)) == Drop((1, 2))
    assert Drop((1, 2)) != Drop((1,))
    assert hash(Drop((1, 2))) == hash(Drop((1, 2)))
    values: list[Any] = [Reply(1, None), messages.Sync(1)]
    assert values[0] != values[1]


def test_every_kind_of_task_is_listed() -> None:
    tasks = set(messages.Task.__args__)
    others = {
        messages.Acknowledged, messages.BeginCollective, messages.Chunk, messages.Closing,
        messages.Failed, FetchRequest, messages.GroupBroken, Hello, messages.JoinLink,
        messages.Lent, messages.LinkJoined, messages.PeerChallenge, messages.PeerConfirmation,
        messages.PeerProof, messages.Refused, Reply, Resume, messages.Waiting, Welcome,
    }  # fmt: skip
    assert tasks | others == set(MESSAGES)
    assert not tasks & others


@pytest.mark.parametrize(
    "message",
    [
        Hello((1,), SECRET),
        Hello((1,), None, Resume(1, SECRET.encode(), 0)),
        Resume(1, SECRET.encode(), 0),
        Welcome(1, 2, SECRET.encode(), 0.0, {}, {}, "ws://a:1"),
    ],
)
def test_a_secret_is_not_shown(message: object) -> None:
    assert SECRET not in repr(message)


def test_optional_fields_of_messages_have_defaults() -> None:
    assert dataclasses.astuple(Hello((1,))) == ((1,), None, None, "", {})
    assert FetchRequest(1, b"t") == FetchRequest(1, b"t", 0, b"")
    assert Welcome(1, 2, b"", 0.0, {}, {}, "").received == 0


def test_messages_about_errors_carry_the_errors_themselves() -> None:
    closed, failed = ClosedDevice("over"), OperationFailed("why", tensor=3)
    assert messages.Closing(closed).error is closed
    assert messages.Refused(closed).error is closed
    assert messages.Failed((3,), failed).error is failed
