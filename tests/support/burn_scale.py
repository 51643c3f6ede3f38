"""The custom operation of the recorded sessions of Burn 0.22: a tensor times a number."""

from __future__ import annotations

from typing import Any

from burn_remote_server.custom import custom_operation


@custom_operation("scale", inputs={"x": "float"}, shapes=lambda x: x)
def scale(xp: Any, x: Any, factor: float) -> Any:
    return xp.multiply(x, x.dtype.type(factor))
