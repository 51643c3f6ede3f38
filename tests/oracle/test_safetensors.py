"""Files of tensors are exchanged with the package safetensors in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import burn_remote as br

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
package = pytest.importorskip("safetensors.torch", reason="it is in the dependency group oracle")
pytestmark = pytest.mark.oracle


def tensors() -> dict[str, Any]:
    whole = torch.arange(-6, 6).reshape(3, 4)
    dtypes = (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool,
    )  # fmt: skip
    found = {f"layer.{dtype}".replace("torch.", ""): whole.to(dtype) for dtype in dtypes}
    return {**found, "empty": torch.ones(0, 2), "scalar": torch.tensor(1.5)}


def test_both_read_what_the_other_writes(tmp_path: Path) -> None:
    package.save_file(tensors(), tmp_path / "theirs", metadata={"format": "pt"})
    with br.LocalDevice() as device:
        ours = br.load_safetensors(tmp_path / "theirs", device=device)
        assert br.safetensors_metadata(tmp_path / "theirs") == {"format": "pt"}
        br.save_safetensors(tmp_path / "ours", ours, metadata={"format": "pt"})
    found = package.load_file(tmp_path / "ours")
    assert found.keys() == tensors().keys()
    for name, expected in tensors().items():
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected), name
