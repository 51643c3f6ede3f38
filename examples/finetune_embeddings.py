"""Train a classifier on published word embeddings: it finds the module of a docstring.

The embeddings are WordLlama's (MIT licence): 32,000 tokens of a large language model, reduced to
256 numbers each. The package `wordllama` ships them as a safetensors file of 16 MB, with their
tokenizer; nothing is downloaded. The embeddings do not change. Only the head is trained: a
perceptron on the mean of a text's embeddings. The texts are the docstrings of Python's own library.

    pip install wordllama
    python examples/finetune_embeddings.py                               computes in this process
    python examples/finetune_embeddings.py --address ws://gpu-box:3000   computes on a server
"""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, track

import burn_remote as br
from burn_remote import functional as F
from command_line import run
from loss_curve import LossCurve

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODULES = (
    "asyncio", "email", "http", "importlib", "inspect", "ipaddress", "logging", "mailbox",
    "multiprocessing", "pathlib", "tarfile", "threading", "turtle", "typing", "unittest", "urllib",
    "xml",
)  # fmt: skip
TOKENS = 48  # of each text, at most
WIDTH = 256  # of the embeddings
HIDDEN = 128
BATCH = 32

Head = dict[str, br.Tensor]

console = Console()


def docstrings() -> tuple[list[str], np.ndarray]:
    """Return the docstrings of functions and classes, and the position of each one's module."""
    library = Path(sysconfig.get_path("stdlib"))
    texts, labels = [], []
    for label, module in enumerate(track(MODULES, description="parsing", console=console)):
        folder = library / module
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [library / f"{module}.py"]:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    text = ast.get_docstring(node) or ""
                    if len(text) > 30:
                        texts.append(text)
                        labels.append(label)
    return texts, np.array(labels)


def wordllama_files() -> tuple[Path, Path]:
    """Return the files of the embeddings and of the tokenizer in the package wordllama."""
    found = importlib.util.find_spec("wordllama")
    if found is None or found.origin is None:
        console.print("The embeddings are in a package: pip install wordllama", style="red")
        raise typer.Exit(1)
    folder = Path(found.origin).parent
    return (
        folder / "weights" / "l2_supercat_256.safetensors",
        folder / "tokenizers" / "l2_supercat_tokenizer_config.json",
    )


def initial_head(device: br.Device) -> Head:
    """Draw the weights of two linear layers."""
    return {
        "hidden": br.init.kaiming_normal((HIDDEN, WIDTH), nonlinearity="relu", device=device),
        "hidden_bias": br.zeros((HIDDEN,), device=device),
        "classes": br.init.xavier_uniform((len(MODULES), HIDDEN), device=device),
        "classes_bias": br.zeros((len(MODULES),), device=device),
    }


def features_of(embeddings: br.Tensor, tokens: br.Tensor) -> br.Tensor:
    """Return the normalized mean embedding ``[n, 256]`` of texts ``[n, 48]``; -1 is no token."""
    exists = (tokens >= 0).astype(br.float32).expand_dims(-1)
    found = F.embedding(tokens.clip(0), embeddings) * exists
    return F.layer_norm(found.sum(axis=1) / exists.sum(axis=1), (WIDTH,))


def logits_of(head: Head, features: br.Tensor) -> br.Tensor:
    """Return the logits ``[n, modules]``."""
    hidden = F.linear(features, head["hidden"], head["hidden_bias"]).relu()
    return F.linear(F.dropout(hidden, 0.2), head["classes"], head["classes_bias"])


optimizer = br.optim.AdamW(lr=2e-3, weight_decay=0.1)


@br.compile
def step(
    head: Head, state: dict[str, Any], embeddings: br.Tensor, tokens: br.Tensor, labels: br.Tensor
) -> tuple[Head, dict[str, Any], br.Tensor]:
    """Take one step; return the new head, the optimizer's new state, and the loss ``[]``."""

    def loss_of(head: Head) -> br.Tensor:
        return F.cross_entropy(logits_of(head, features_of(embeddings, tokens)), labels)

    loss, grads = br.value_and_grad(loss_of)(head)
    return *optimizer.update(head, grads, state), loss


@br.compile
def correct_count(
    head: Head, embeddings: br.Tensor, tokens: br.Tensor, labels: br.Tensor
) -> br.Tensor:
    """Return how many texts the head classifies correctly, ``[]``."""
    hidden = F.linear(features_of(embeddings, tokens), head["hidden"], head["hidden_bias"]).relu()
    logits = F.linear(hidden, head["classes"], head["classes_bias"])
    return (logits.argmax(axis=-1) == labels).sum()


def encoded(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Return the tokens of texts, int64 ``[n, 48]``, with -1 after the end."""
    found = np.full((len(texts), TOKENS), -1)
    for row, one in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        kept = one.ids[:TOKENS]
        found[row, : len(kept)] = kept
    return found


def batches(
    tokenizer: Tokenizer, texts: list[str], labels: np.ndarray, steps: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over tokens ``[32, 48]`` and labels ``[32]``, drawn and tokenized when needed."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        rows = random.integers(0, len(texts), BATCH)
        yield encoded(tokenizer, [texts[row] for row in rows]), labels[rows]


def main(
    address: Annotated[
        str | None,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 800,
    save: Annotated[
        Path | None, typer.Option(help="Save the head here, as a safetensors file.")
    ] = None,
    chart: Annotated[Path, typer.Option(help="Draw the loss here, as SVG.")] = Path(
        "embeddings.svg"
    ),
) -> None:
    """Train the head, and evaluate it on docstrings that the training has not seen.

    The program tokenizes the next batches while the server computes.
    br.load_safetensors sends the embeddings once. Only the head has gradients.
    """
    weights_file, tokenizer_file = wordllama_files()
    from tokenizers import Tokenizer  # wordllama needs it too

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    texts, labels = docstrings()
    order = np.random.default_rng(1).permutation(len(texts))
    texts, labels = [texts[place] for place in order], labels[order]
    held_out = len(texts) // 5
    curve = LossCurve()
    with br.RemoteDevice(address) if address else br.LocalDevice() as device:
        device.seed(0)
        loaded = br.load_safetensors(weights_file, device=device, dtype=br.float32)
        embeddings = loaded["embedding.weight"]
        head = initial_head(device)
        state = optimizer.init(head)
        with Progress(console=console) as bar:
            task = bar.add_task("training", total=steps)
            kept = texts[held_out:], labels[held_out:]
            for tokens, wanted in batches(tokenizer, *kept, steps):
                x, y = br.tensor(tokens, device=device), br.tensor(wanted, device=device)
                head, state, loss = step(head, state, embeddings, x, y)
                curve.add(loss)
                bar.update(task, completed=len(curve.values), description=curve.recent)
            curve.finish()
            bar.update(task, completed=steps, description=curve.recent)
        x = br.tensor(encoded(tokenizer, texts[:held_out]), device=device)
        y = br.tensor(labels[:held_out], device=device)
        accuracy = correct_count(head, embeddings, x, y).item() / held_out
        if save is not None:
            br.save_safetensors(save, head, metadata={"modules": " ".join(MODULES)})
    most = np.bincount(labels).max() / len(labels)
    curve.save(chart, f"Docstrings: test accuracy {accuracy:.1%}")
    console.print(
        f"test accuracy {accuracy:.1%} on {held_out} docstrings of {len(MODULES)} modules (always "
        f"the most frequent one: {most:.1%}); the loss is drawn in {chart}"
    )


if __name__ == "__main__":
    run(main)
