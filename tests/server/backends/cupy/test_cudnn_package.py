"""Parsing of the version of cuDNN's package, and classification of its errors."""

from __future__ import annotations

import pytest

from burn_remote_server.backends.cupy.cudnn_package import lacks_memory, why_unusable


@pytest.mark.parametrize("version", ["1.10", "1.10.0", "1.10rc1", "1.22.1.post2", "2.0", "10.1"])
def test_a_recent_version_is_used(version: str) -> None:
    assert why_unusable(version) is None


@pytest.mark.parametrize("version", ["1.9.2", "0.10", "1.9rc12"])
def test_an_older_version_is_not_used(version: str) -> None:
    expected = f"nvidia-cudnn-frontend {version} is too old; version 1.10 is needed"
    assert why_unusable(version) == expected


@pytest.mark.parametrize("version", ["", "unknown", "rc1.10", "1"])
def test_an_invalid_version_is_not_used_and_reported(version: str) -> None:
    assert f"unreadable version: {version}" in str(why_unusable(version))


@pytest.mark.parametrize(
    ("text", "is_lacking"),
    [
        ("cudnnBackendExecute: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", True),
        ("failed with code: CUDNN_STATUS_ALLOC_FAILED, and message: none", True),
        ("CUDNN_STATUS_EXECUTION_FAILED", False),
        ("CUDNN_STATUS_BAD_PARAM: uid is not allocated", False),
    ],
)
def test_an_out_of_memory_error_is_distinguished_from_others(text: str, is_lacking: bool) -> None:
    assert lacks_memory(RuntimeError(text)) is is_lacking
