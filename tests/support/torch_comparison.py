"""Inputs of PyTorch programs on a burn device, and comparison of their results with the CPU's."""

from __future__ import annotations

from typing import Any

import pytest


def drawn(device: Any, *shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """Return normal random numbers that are the same on every device."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).to(device)


def compared(ours: Any, theirs: Any, at: str = "") -> None:
    """Fail unless results have the dtypes, shapes and, within 1e-4, the elements of the CPU's."""
    import torch

    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor), at
        assert ours.dtype == theirs.dtype, at
        assert tuple(ours.shape) == tuple(theirs.shape), at
        torch.testing.assert_close(
            ours.detach().cpu(),
            theirs.detach(),
            atol=1e-4,
            rtol=1e-4,
            equal_nan=True,
            msg=lambda text: f"result {at}: {text}",
        )
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), at
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            compared(one, other, f"{at}[{number}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-4), at
    elif not (isinstance(theirs, str) and "torch." in theirs):
        assert ours == theirs, at
