"""MiniLM-L6 with its published weights, on a server and in plain NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burn_remote as br
from support.minilm import embed
from support.servers import server

pytestmark = pytest.mark.examples

LENGTHS = (9, 4, 1)
ROOT = Path(__file__).parents[2]


def test_the_embeddings_are_those_of_the_model_in_numpy_and_cost_one_round_trip() -> None:
    import embed_sentences
    from optional_packages import model_folder

    file = model_folder() / "model.safetensors"
    tokens = np.random.default_rng(0).integers(1000, 30_000, (len(LENGTHS), max(LENGTHS)))
    lengths = np.array(LENGTHS)
    with server() as running, br.RemoteDevice(running.address) as device:
        weights = br.load_safetensors(file, device=device)
        encoder = embed_sentences.Encoder(weights)
        device.sync()
        before = device.traffic
        inputs = device.tensor(tokens), device.tensor(lengths)
        uploaded = device.traffic
        found = encoder.embed(*inputs).numpy()
        after = device.traffic
        requests = after.requests - before.requests
        operations = after.operations - uploaded.operations
        read = dict(zip(weights, br.read([*weights.values()]), strict=True))
    expected = embed(read, tokens, lengths)

    assert requests == 1
    for document in ("README.md", "docs/performance/training.md"):
        assert f" {operations} operations" in (ROOT / document).read_text()
    assert np.abs(found - expected).max() < 1e-5


def test_the_short_program_has_the_same_embeddings_and_costs_one_round_trip() -> None:
    from first_programs import sentences
    from optional_packages import model_folder

    file = model_folder() / "model.safetensors"
    tokens = np.random.default_rng(1).integers(1000, 30_000, (len(LENGTHS), max(LENGTHS)))
    lengths = np.array(LENGTHS)
    with server() as running, br.RemoteDevice(running.address) as device:
        weights = br.load(file, device=device, nested=True)
        device.sync()
        before = device.traffic
        found = sentences.embed(weights, device.tensor(tokens), device.tensor(lengths)).numpy()
        requests = device.traffic.requests - before.requests
        flat = br.load(file, device=device)
        read = dict(zip(flat, br.read([*flat.values()]), strict=True))

    assert requests == 1
    assert np.abs(found - embed(read, tokens, lengths)).max() < 1e-5


def test_each_sentence_is_most_similar_to_the_one_on_its_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import embed_sentences

    embed_sentences.main("")

    printed = " ".join(capsys.readouterr().out.split())
    for sentence, similar in ((0, 2), (1, 4), (2, 0), (3, 5), (4, 1), (5, 3)):
        one, other = embed_sentences.SENTENCES[sentence], embed_sentences.SENTENCES[similar]
        assert f"{one} → {other}" in printed
