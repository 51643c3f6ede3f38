"""A growing buffer holds what was appended, and copies nothing when it grows."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.links.websocket import growing_buffer
from burn_remote_protocol.links.websocket.growing_buffer import GrowingBuffer


class _Fixed(mmap.mmap):
    """Memory that the system cannot resize."""

    def resize(self, newsize: int) -> None:
        raise SystemError("mmap: resizing not available--no mremap()")


@pytest.mark.parametrize("kind", [mmap.mmap, _Fixed])
@given(first=st.binary(), parts=st.lists(st.binary(max_size=5000), max_size=20))
def test_it_holds_the_parts_in_their_order(
    kind: type[mmap.mmap], first: bytes, parts: list[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mmap, "mmap", kind)
        buffer = GrowingBuffer(first)
        for part in parts:
            buffer.extend(memoryview(part))
    whole = first + b"".join(parts)
    assert len(buffer) == len(whole)
    assert bytes(buffer.view()) == whole


@pytest.mark.skipif(sys.platform != "linux", reason="the system moves no pages")
def test_linux_grows_it_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    map_memory = growing_buffer._mapped

    def mapped(size: int) -> Any:
        made.append(size)
        return map_memory(size)

    monkeypatch.setattr(growing_buffer, "_mapped", mapped)
    buffer = GrowingBuffer(b"x")
    for _ in range(100):
        buffer.extend(bytes(10_000))
    assert len(made) == 1


def test_a_view_outlives_its_buffer() -> None:
    view = GrowingBuffer(b"some bytes").view()
    assert view.tobytes() == b"some bytes"
