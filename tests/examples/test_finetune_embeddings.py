"""The training of a head on the embeddings of a package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import burn_remote as br
from support.example_runs import points_of, printed_by

pytest.importorskip("wordllama", reason="wordllama has no wheel for this version of Python")
import finetune_embeddings


def test_the_head_learns_from_which_module_a_docstring_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few modules: parsing all of them takes several seconds.
    monkeypatch.setattr(finetune_embeddings, "MODULES", ("http", "ipaddress", "tarfile"))
    file, chart = tmp_path / "head", tmp_path / "chart.svg"
    printed = printed_by(
        finetune_embeddings.main, "--steps", "60", "--save", str(file), "--chart", str(chart)
    )
    accuracy, most = map(float, re.findall(r"(\d+\.\d)%", printed))
    assert accuracy > 75 > most
    losses = points_of(chart)
    assert len(losses) == 60
    assert sum(losses[-10:]) < sum(losses[:10]) / 2
    assert br.safetensors_metadata(file) == {"modules": "http ipaddress tarfile"}


def test_the_embeddings_are_those_of_the_package() -> None:
    weights, tokenizer = finetune_embeddings.wordllama_files()
    with br.LocalDevice() as device:
        loaded = br.load_safetensors(weights, device=device)
        assert loaded["embedding.weight"].shape == (32_000, 256)
        assert loaded["embedding.weight"].dtype is br.float16
    assert tokenizer.exists()
