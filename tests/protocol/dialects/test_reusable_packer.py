"""A packer that threads share packs each value alone, also after it ran out of memory."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dialects.reusable_packer import reusable_pack


@pytest.mark.parametrize("failing", range(4))
def test_a_value_that_had_no_memory_is_not_sent_with_the_next(
    failing: int, allocations: Any
) -> None:
    pack = reusable_pack()
    value = [bytes(200_000), "text"]
    try:
        allocations.set_nomemory(failing, failing + 1)
        try:
            pack(value)
        finally:
            allocations.remove_mem_hooks()
    except MemoryError:
        pass
    assert pack([1, 2]) == msgpack.packb([1, 2])


def test_a_value_that_cannot_be_packed_is_not_sent_with_the_next() -> None:
    pack = reusable_pack()
    with pytest.raises(TypeError):
        pack([1, object()])
    assert pack([1, 2]) == msgpack.packb([1, 2])
