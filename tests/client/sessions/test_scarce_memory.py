"""A session survives operations for which the client has no memory."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import burn_remote as br


@pytest.mark.parametrize("failing", range(40))
def test_an_operation_without_memory_does_not_garble_the_next(
    failing: int, allocations: Any
) -> None:
    with br.LocalDevice() as device:
        x = br.tensor([1.0, 2.0], device=device)
        (x + 1).numpy()  # caches the signature
        with contextlib.suppress(MemoryError):
            allocations.set_nomemory(failing, failing + 1)
            try:
                x + 1
            finally:
                allocations.remove_mem_hooks()
        assert np.array_equal((x + 2).numpy(), [3.0, 4.0])
