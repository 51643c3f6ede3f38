"""A short run of interrupts; ``python -m endurance interrupts`` has the long one."""

from __future__ import annotations

import pytest

from endurance.interrupts import LOOPS, interrupted_loop


@pytest.mark.parametrize("name", LOOPS)
def test_no_ctrl_c_is_swallowed_and_no_tensor_is_left(name: str) -> None:
    seen = interrupted_loop(name, 30)
    assert (seen.seen, seen.swallowed, seen.tensors_left, seen.wrong) == (30, 0, 0, 0)
