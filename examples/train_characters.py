"""Train a transformer that writes Python documentation character by character.

The text is the help topics of Python itself, 460,000 characters. The model is a small GPT-2
(Radford et al., 2019): embeddings, then blocks of attention and a perceptron, each with a layer
norm before it. The server runs a compiled step as one task: forward, backward, clipping, and AdamW.

    python examples/train_characters.py                               computes in this process
    python examples/train_characters.py --address ws://gpu-box:3000 --width 256 --layers 4
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

import burn_remote as br
from burn_remote import functional as F
from command_line import run
from loss_curve import LossCurve

console = Console()


@dataclass
class Block:
    """The weights of one block; ``scale`` and ``shift`` are those of its two layer norms."""

    scale: list[br.Tensor]  # two of [width]
    shift: list[br.Tensor]  # two of [width]
    attention: br.Tensor  # [3 * width, width]: queries, keys and values
    joined: br.Tensor  # [width, width]
    wide: br.Tensor  # [4 * width, width]
    narrow: br.Tensor  # [width, 4 * width]


@dataclass
class Model:
    """The weights. Gradients and Adam's moments have this form too, because it is a data class."""

    characters: br.Tensor  # [characters, width], also the last layer
    places: br.Tensor  # [context, width]
    blocks: list[Block]
    scale: br.Tensor  # [width]
    shift: br.Tensor  # [width]


def initial(device: br.Device, characters: int, context: int, width: int, layers: int) -> Model:
    """Draw the weights as GPT-2 does: normal, with a standard deviation of 0.02.

    The deviation is smaller for layers whose results are added to a block's input.
    """

    def normal(*shape: int, std: float = 0.02) -> br.Tensor:
        return br.random.normal(shape, std=std, device=device)

    def ones() -> br.Tensor:
        return br.ones((width,), device=device)

    def zeros() -> br.Tensor:
        return br.zeros((width,), device=device)

    less = 0.02 / (2 * layers) ** 0.5
    blocks = [
        Block(
            [ones(), ones()], [zeros(), zeros()], normal(3 * width, width),
            normal(width, width, std=less), normal(4 * width, width),
            normal(width, 4 * width, std=less),
        )
        for _ in range(layers)
    ]  # fmt: skip
    return Model(normal(characters, width), normal(context, width), blocks, ones(), zeros())


def attended(x: br.Tensor, block: Block, heads: int) -> br.Tensor:
    """Let each place attend to itself and the places before it: ``[batch, n, width]``."""
    batch, count, width = x.shape
    every = F.linear(x, block.attention).reshape((batch, count, 3, heads, width // heads))
    q, k, v = (every[:, :, part].swapaxes(1, 2) for part in range(3))  # [batch, heads, n, part]
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(found.swapaxes(1, 2).reshape((batch, count, width)), block.joined)


def logits_of(model: Model, text: br.Tensor, heads: int) -> br.Tensor:
    """Return the logits of the character after each one, for texts ``[batch, n]``."""
    width = model.characters.shape[1]
    x = F.embedding(text, model.characters) + model.places[: text.shape[1]]
    for block in model.blocks:
        x = x + attended(F.layer_norm(x, (width,), block.scale[0], block.shift[0]), block, heads)
        y = F.layer_norm(x, (width,), block.scale[1], block.shift[1])
        x = x + F.linear(F.gelu(F.linear(y, block.wide), approximate="tanh"), block.narrow)
    return F.linear(F.layer_norm(x, (width,), model.scale, model.shift), model.characters)


def loss_of(model: Model, text: br.Tensor, heads: int) -> br.Tensor:
    """Return the mean cross-entropy ``[]`` of all characters of texts but the first."""
    logits = logits_of(model, text[:, :-1], heads)
    return F.cross_entropy(logits.swapaxes(1, 2), text[:, 1:])


optimizer = br.optim.AdamW(weight_decay=0.1)


@br.compile
def step(
    model: Model, state: dict[str, Any], text: br.Tensor, heads: int, rate: float
) -> tuple[Model, dict[str, Any], br.Tensor]:
    """Take one step of training; return the new weights, the new state, and the loss ``[]``."""
    loss, grads = br.value_and_grad(loss_of)(model, text, heads)
    grads, _ = br.optim.clip_by_norm(grads, 1.0)
    model, state = optimizer.update(model, grads, state, lr=rate)
    return model, state, loss


@br.compile
def written(model: Model, text: br.Tensor, heads: int, temperature: float) -> br.Tensor:
    """Return texts ``[1, n]`` without their first character, and with one more at the end.

    The maximum of logits with Gumbel noise is a draw from their softmax.
    """
    logits = logits_of(model, text, heads)[:, -1] / temperature
    noise = -(-br.random.uniform(logits.shape, low=1e-9, device=text.device).log()).log()
    drawn = (logits + noise).argmax(axis=-1, keepdims=True)
    return br.concat([text[:, 1:], drawn], axis=1)


def main(
    address: Annotated[
        str | None,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 500,
    batch: Annotated[int, typer.Option(min=1, help="Texts in each step.")] = 16,
    context: Annotated[
        int, typer.Option(min=2, help="Characters that the model sees at once.")
    ] = 64,
    width: Annotated[int, typer.Option(min=4, help="Numbers that represent a character.")] = 96,
    heads: Annotated[
        int, typer.Option(min=1, help="Attention heads. The width must be a multiple of them.")
    ] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Transformer blocks.")] = 2,
    rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 3e-3,
    sample: Annotated[int, typer.Option(min=0, help="Characters to write at the end.")] = 400,
    temperature: Annotated[
        float, typer.Option(help="Lower values write more predictable text.")
    ] = 0.8,
    save: Annotated[
        Path | None, typer.Option(help="Save the weights here, as a safetensors file.")
    ] = None,
    chart: Annotated[Path, typer.Option(help="Draw the loss here, as SVG.")] = Path(
        "characters.svg"
    ),
) -> None:
    """Train on Python's help topics, and write some more of them.

    The weights never leave the device. No step waits for the one before: this
    program already draws the texts of the next steps.
    """
    if width % heads:
        raise typer.BadParameter(f"width {width} is no multiple of {heads} heads")
    text = "\n\n".join(topics.values())
    alphabet = sorted({*text})
    codes = np.searchsorted(alphabet, [*text])
    random = np.random.default_rng(0)
    schedule = br.optim.schedules.warm_up(br.optim.schedules.cosine(rate, steps), 20)
    curve = LossCurve()
    with br.RemoteDevice(address) if address else br.LocalDevice() as device:
        device.seed(0)
        model = initial(device, len(alphabet), context, width, layers)
        state = optimizer.init(model)
        count = sum(one.size for one in br.tree.leaves(model))
        console.print(f"{len(text):,} characters, {count:,} weights, on {device}")
        with Progress(console=console) as bar:
            task = bar.add_task("training", total=steps)
            for number in range(steps):
                starts = random.integers(0, len(codes) - context, (batch, 1))
                texts = br.tensor(codes[starts + np.arange(context + 1)], device=device)
                model, state, loss = step(model, state, texts, heads, schedule(number))
                curve.add(loss)
                bar.update(task, completed=len(curve.values), description=curve.recent)
            curve.finish()
            bar.update(task, completed=steps, description=curve.recent)
        window = br.tensor(codes[None, :context], device=device)
        drawn = []
        for _ in range(sample):
            window = written(model, window, heads, temperature)
            drawn.append(window[:, -1])
        if drawn:  # the only wait: all characters at once
            story = "".join(alphabet[code] for code in br.concat(drawn).tolist())
            console.print(story, markup=False, highlight=False, style="italic")
        if save is not None:
            br.save_safetensors(save, model, metadata={"alphabet": "".join(alphabet)})
    curve.save(chart, f"Characters: {curve.recent}")
    console.print(f"{curve.recent}; it is drawn in {chart}")


if __name__ == "__main__":
    run(main)
