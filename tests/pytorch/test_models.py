"""Models that nobody changed give the CPU's results on a burn device."""

from __future__ import annotations

import copy
import importlib
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
device_registry = importlib.import_module("burn_remote.torch.device_registry")
nn: Any = torch.nn
functional = torch.nn.functional
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


class RoundTrips:
    """Counts and prints the round trips since it was made."""

    def __init__(self, device: Any) -> None:
        self._device = device_registry.wire_device(device)
        self._before = self._device.traffic

    def shown(self, name: str) -> int:
        """Print and return the number of round trips."""
        count: int = (self._device.traffic - self._before).requests
        sys.stdout.write(f"round trips of {name}: {count}\n")
        return count


def farthest(ours: Any, theirs: Any) -> float:
    return float((ours.detach().cpu() - theirs.detach()).abs().max())


def test_resnet_18_predicts_and_trains_as_on_the_cpu(device: Any) -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18()
    ours = copy.deepcopy(theirs).to(device)
    # In smaller images, the last layers would normalize two elements, which magnifies rounding.
    x, y = torch.randn(2, 3, 64, 64), torch.tensor([1, 5])
    with torch.no_grad():
        round_trips = RoundTrips(device)
        predicted = ours.eval()(x.to(device)).cpu()
        assert round_trips.shown("a prediction of ResNet-18") == 1
        assert farthest(predicted, theirs.eval()(x)) < 1e-4
    for model, place in ((ours.train(), device), (theirs.train(), "cpu")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        functional.cross_entropy(model(x.to(place)), y.to(place)).backward()
        optimizer.step()
    after = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    assert max(farthest(one.float(), other.float()) for one, other in after) < 1e-4


class Attention(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """Causal attention that keeps the keys and values of earlier tokens in buffers."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        for name in ("keys", "values"):
            cache = torch.zeros(1, heads, longest, width // heads)
            self.register_buffer(name, cache, persistent=False)

    def forward(self, x: Any, start: int) -> Any:
        batch, count, width = x.shape
        parts = self.mix(x).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        end = start + count
        self.keys[:, :, start:end] = key
        self.values[:, :, start:end].copy_(value)
        mask = torch.ones(count, end, dtype=torch.bool, device=x.device).tril(start)
        mixed = functional.scaled_dot_product_attention(
            query, self.keys[:, :, :end], self.values[:, :, :end], attn_mask=mask
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, count, width))


class Generator(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """A small GPT."""

    def __init__(self, tokens: int = 23, width: int = 32, longest: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Embedding(longest, width)
        self.layers = nn.ModuleList([Attention(width, 4, longest) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: Any, start: int) -> Any:
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.place(places)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x), start)
        return self.head(x[:, -1])


def generated(model: Any, prompt: Any, count: int) -> tuple[list[int], Any]:
    with torch.no_grad():
        tokens, logits = prompt, model(prompt, 0)
        for _ in range(count):
            chosen = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, chosen], 1)
            logits = model(chosen, tokens.shape[1] - 1)
    return tokens.flatten().tolist(), logits


def test_a_gpt_with_a_key_value_cache_writes_the_same_text(device: Any) -> None:
    torch.manual_seed(1)
    theirs = Generator().eval()
    ours = copy.deepcopy(theirs).to(device)
    prompt = torch.tensor([[3, 1, 4]])
    text, logits = generated(theirs, prompt, 8)
    round_trips = RoundTrips(device)
    our_text, our_logits = generated(ours, prompt.to(device), 8)
    assert round_trips.shown("8 tokens of a GPT") == 1  # the tokens are read at the end
    assert our_text == text
    assert farthest(our_logits, logits) < 1e-4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_gpt_2_of_hugging_face_samples_the_text_of_the_cpu_in_one_round_trip() -> None:
    pytest.importorskip("transformers")
    import torch_gpt

    found, expected, difference, round_trips = torch_gpt.compare(count=12)
    assert torch.equal(found, expected)
    assert len(found.flatten().unique()) > 4
    assert difference < 1e-4
    assert round_trips == 1  # of the tokens, read at the end


class LoRA(nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """A frozen linear layer, and a trained product of two narrow matrices beside it."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def test_a_lora_fine_tuning_trains_the_same_weights(device: Any) -> None:
    torch.manual_seed(2)
    theirs = nn.Sequential(LoRA(nn.Linear(8, 16), 2), nn.GELU(), LoRA(nn.Linear(16, 4), 2))
    ours = copy.deepcopy(theirs).to(device)
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    for model, place in ((ours, device), (theirs, "cpu")):
        trained = [p for p in model.parameters() if p.requires_grad]
        assert len(trained) == 4
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        round_trips = RoundTrips(device)
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(x.to(place)), y.to(place)).backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
        if place is device:
            assert round_trips.shown("three steps of LoRA") == 0  # nothing is read
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    assert max(farthest(one, other) for one, other in pairs) < 1e-4
    assert torch.equal(ours[0].base.weight.cpu(), theirs[0].base.weight)
