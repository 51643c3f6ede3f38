"""Host identities: equal for processes of one host, different otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from burn_remote_server.backends.cupy.host_identity import host_identity


def test_the_identity_is_stable_and_reveals_nothing_about_the_host(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    identity = host_identity(boot)
    assert identity is not None
    assert identity == host_identity(boot)
    assert "1111" not in identity


def test_the_identity_differs_after_a_reboot_and_for_another_user(
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


def test_a_system_without_an_identity_lends_nothing(tmp_path: Path) -> None:
    assert host_identity(tmp_path / "absent") is None
