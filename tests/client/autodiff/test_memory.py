"""The server's memory in a training step, computed from the operations and drops of the client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.runners import RecordingDevice

LAYERS, WIDTH, BATCH = 48, 16, 512

# Operations whose result shares the memory of their input on the server.
VIEWS = frozenset({"Reshape", "SwapDims", "Permute", "Expand", "Slice", "Flip"})


class Memory:
    """The bytes of the tensors that a server holds after each event of a recorded session."""

    def __init__(self, device: RecordingDevice) -> None:
        self._specs = device.runner.specs
        self._owner: dict[int, int] = {}  # tensor -> the tensor in whose memory it is
        self._users: dict[int, int] = {}  # owner of memory -> tensors in it
        self.bytes = 0
        self.peak = 0

    def follow(self, events: list[tuple[Any, ...]]) -> None:
        """Apply events in their order."""
        for event in events:
            if event[0] == "upload":
                self._add(event[2], event[2])
            elif event[0] == "drop":
                self._drop(event[1])
            elif event[0] == "operation":
                name, tensors = event[1], event[2]
                new = [one for one in tensors if one not in self._owner]
                assert len({*new}) == len(new)
                for one in new:
                    is_view = name in VIEWS
                    self._add(one, self._owner[tensors[0]] if is_view else one)

    def _add(self, tensor: int, owner: int) -> None:
        self._owner[tensor] = owner
        if owner not in self._users:
            self._users[owner] = 0
            self.bytes += self._specs[owner].nbytes
            self.peak = max(self.peak, self.bytes)
        self._users[owner] += 1

    def _drop(self, tensor: int) -> None:
        owner = self._owner.pop(tensor)
        self._users[owner] -= 1
        if not self._users[owner]:
            del self._users[owner]
            self.bytes -= self._specs[owner].nbytes


@pytest.mark.parametrize("form", ["backward", "value_and_grad"])
def test_a_step_holds_parameters_state_and_saved_tensors_and_five_percent_more(form: str) -> None:
    device = RecordingDevice()
    memory = Memory(device)
    weights = [device.tensor(np.zeros((WIDTH, WIDTH), np.float32)) for _ in range(LAYERS)]
    optimizer = br.optim.AdamW()
    state = optimizer.init(weights)
    x = device.tensor(np.zeros((BATCH, WIDTH), np.float32))
    labels = device.tensor(np.zeros(BATCH, np.int64))
    marks: list[int] = []

    def loss_of(weights: list[br.Tensor]) -> br.Tensor:
        hidden = x
        for weight in weights:
            hidden = F.relu(F.linear(hidden, weight))
        loss = F.cross_entropy(hidden, labels)
        marks.append(len(device.runner.events))
        return loss

    if form == "backward":
        for weight in weights:
            weight.requires_grad_()
        loss_of(weights).backward()
        grads: Any = [weight.grad for weight in weights]
    else:
        _, grads = br.value_and_grad(loss_of)(weights)
    optimizer.update([one.detach() for one in weights], grads, state)
    (mark,) = marks
    memory.follow(device.runner.events[:mark])
    at_loss = memory.bytes
    activation = BATCH * WIDTH * 4
    # One tensor for each layer, which the activation and the next layer share.
    assert at_loss < (LAYERS + 5) * activation + 5 * LAYERS * WIDTH * WIDTH * 4
    memory.follow(device.runner.events[mark:])
    assert memory.peak <= 1.05 * at_loss
