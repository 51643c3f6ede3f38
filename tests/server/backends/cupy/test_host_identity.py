"""Processes of one host say the same of it, others do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from burn_remote_server.backends.cupy.host_identity import host_identity


def test_it_is_the_same_each_time_and_says_nothing_about_the_host(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    identity = host_identity(boot)
    assert identity is not None
    assert identity == host_identity(boot)
    assert "1111" not in identity


def test_after_another_start_and_for_another_user_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot_id"
    seen = set()
    for started in ("first", "second"):
        for user in (1000, 1001):
            boot.write_text(started)
            monkeypatch.setattr(os, "getuid", lambda user=user: user)
            seen.add(host_identity(boot))
    assert len(seen) == 4


def test_a_system_that_does_not_tell_lends_nothing(tmp_path: Path) -> None:
    assert host_identity(tmp_path / "absent") is None
