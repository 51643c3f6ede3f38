"""Agreement on a version, and what a client accepts as the response to its Hello."""

from __future__ import annotations

import pytest

from burn_remote_protocol.errors import HandshakeRefused, ProtocolViolation, VersionMismatch
from burn_remote_protocol.handshake import accepted, agreed_version
from burn_remote_protocol.messages import Closing, Hello, Refused, Sync, Welcome

WELCOME = Welcome(2, 1, bytes(16), 60.0, {}, {}, "")


def test_both_sides_agree_on_the_highest_common_version() -> None:
    assert agreed_version(Hello((1, 2, 3)), (0, 1, 2)) == 2


@pytest.mark.parametrize("versions", [(), (3,), (3, 4)])
def test_sides_without_a_common_version_are_told_to_update(versions: tuple[int, ...]) -> None:
    with pytest.raises(VersionMismatch, match=r"versions 1, 2.*update"):
        agreed_version(Hello(versions), (1, 2))


def test_a_welcome_with_a_known_version_is_accepted() -> None:
    assert accepted(WELCOME, (1, 2)) is WELCOME


def test_a_welcome_with_another_version_is_a_mismatch() -> None:
    with pytest.raises(VersionMismatch, match=r"chose version 2.*version 1"):
        accepted(WELCOME, (1,))


@pytest.mark.parametrize("kind", [Refused, Closing])
def test_a_refusal_raises_its_error(kind: type[Refused | Closing]) -> None:
    error = HandshakeRefused("no")
    with pytest.raises(HandshakeRefused) as caught:
        accepted(kind(error), (1,))
    assert caught.value is error


def test_any_other_message_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="Sync"):
        accepted(Sync(1), (1,))
