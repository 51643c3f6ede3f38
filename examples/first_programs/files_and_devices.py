"""Files, several servers and asyncio."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

import burn_remote as br


def saved_and_loaded(path: Path, weights: dict[str, np.ndarray], device: br.Device) -> bool:
    """Save weights as safetensors, load them again, and compare them on the device."""
    sent = {name: br.tensor(array, device=device) for name, array in weights.items()}
    br.save(path, sent)
    loaded = br.load(path, device=device)
    return all(bool((loaded[name] == sent[name]).all()) for name in sent)


def on_two_servers(matrix: np.ndarray, first: br.Device, second: br.Device) -> np.ndarray:
    """Multiply on one server, and go on with the result on another one."""
    x = br.tensor(matrix, device=first)
    moved = (x @ x.mT).to(second)  # the servers exchange it; the program sends two messages
    return br.linalg.inv(moved + br.eye(len(matrix), dtype=moved.dtype, device=second)).numpy()


async def _sum_of(number: float, device: br.Device) -> float:
    x = await br.aio.tensor(np.full((64, 64), number), device=device)
    return float(await (x @ x).sum().read())


def many_at_once(numbers: list[float], address: str) -> list[float]:
    """Compute for several requests at once, as a web server does."""

    async def serve() -> list[float]:
        async with await br.aio.open_device(address) as device:
            return await asyncio.gather(*(_sum_of(number, device) for number in numbers))

    return asyncio.run(serve())
