"""Sample text from Hugging Face's `GPT2LMHeadModel`, unchanged, on a burn device of PyTorch.

The model keeps the keys and values of earlier tokens, so each step computes one token. Its weights
are random numbers. The program compares the tokens and the last logits with PyTorch's on the CPU
and prints the number of round trips: the tokens stay on the server until the end.

    pip install ".[torch]" transformers
    python examples/torch_gpt.py
    python examples/torch_gpt.py --address ws://gpu-box:3000 --count 64
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import typer
from rich.console import Console

from command_line import run
from optional_packages import check_packages

console = Console()


def drawn_model() -> Any:
    """Return a small GPT-2 with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=96,
        n_positions=128,
        n_embd=64,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def sample(model: Any, prompt: Any, uniform: Any, temperature: float = 0.8) -> tuple[Any, Any]:
    """Continue a prompt ``[1, n]`` by one token for each number in ``uniform``.

    A token is the first whose cumulative probability exceeds its number. Returns all tokens, and
    the logits of the last one.
    """
    import torch

    tokens, chosen, cache = prompt, prompt, None
    with torch.no_grad():
        for number in uniform:
            output = model(chosen, past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits[:, -1]
            reached = torch.softmax(logits / temperature, -1).cumsum(-1)
            chosen = (reached < number).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
            tokens = torch.cat([tokens, chosen], 1)
    return tokens, logits


def compare(address: str = "", count: int = 24) -> tuple[Any, Any, float, int]:
    """Return the tokens of both devices, the difference of the last logits, and round trips."""
    check_packages("torch", "transformers", install='pip install ".[torch]" transformers')
    import torch

    import burn_remote as br
    import burn_remote.torch as brt

    theirs = drawn_model()
    server = br.RemoteDevice(address) if address else br.LocalDevice()
    device = brt.add(server)
    ours = copy.deepcopy(theirs).to(device)
    prompt = torch.tensor([[7, 3, 11]])
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(1)).tolist()
    before = server.traffic.requests
    tokens, logits = sample(ours, prompt.to(device), uniform)
    found = tokens.cpu()
    round_trips = server.traffic.requests - before
    expected, their_logits = sample(theirs, prompt, uniform)
    return found, expected, float((logits.cpu() - their_logits).abs().max()), round_trips


def main(
    address: Annotated[
        str,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = "",
    count: Annotated[int, typer.Option(min=1, help="Tokens to sample.")] = 24,
) -> None:
    """Sample tokens, and compare them with those of the CPU."""
    found, expected, difference, round_trips = compare(address, count)
    console.print(f"tokens: {found.flatten().tolist()}")
    console.print(f"the same as on the CPU: {bool((found == expected).all())}")
    console.print(f"round trips: {round_trips}; largest difference of the logits: {difference:.1e}")


if __name__ == "__main__":
    run(main)
