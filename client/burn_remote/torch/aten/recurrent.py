"""Cells of recurrent layers, which PyTorch computes as one operation on accelerators.

The formulas are those of Hochreiter and Schmidhuber (1997) with a forget gate, and of Cho et al.
(2014) with the reset gate after the product. Gates lie side by side: ``[batch, gates * hidden]``.
"""

from __future__ import annotations

from typing import Any

import burn_remote as br
import burn_remote.functional as F
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor


def _parts(x: Tensor, count: int) -> list[Tensor]:
    """Split the last axis into ``count`` equal parts."""
    width = x.shape[-1] // count
    return [x[..., at * width : (at + 1) * width] for at in range(count)]


def _joined(*parts: Tensor) -> Tensor:
    return br.concat(parts, axis=parts[0].ndim - 1)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


@aten("_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the hidden state, the cell state, and for the gradient the four gates."""
    gates = _plus(input_gates, input_bias) + _plus(hidden_gates, hidden_bias)
    enter, forget, candidate, leave = _parts(gates, 4)
    enter, forget, leave = F.sigmoid(enter), F.sigmoid(forget), F.sigmoid(leave)
    candidate = br.tanh(candidate)
    new = forget * cell + enter * candidate
    return leave * br.tanh(new), new, _joined(enter, forget, candidate, leave)


@aten("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    cell: Tensor,
    new: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    enter, forget, candidate, leave = _parts(gates, 4)
    shown = br.tanh(new)
    to_new = br.zeros_like(new) if grad_cell is None else grad_cell
    to_leave = br.zeros_like(new)
    if grad_hidden is not None:
        to_new = to_new + grad_hidden * leave * (1 - shown * shown)
        to_leave = grad_hidden * shown
    to_gates = _joined(
        to_new * candidate * enter * (1 - enter),
        to_new * cell * forget * (1 - forget),
        to_new * enter * (1 - candidate * candidate),
        to_leave * leave * (1 - leave),
    )
    return to_gates, to_new * forget, br.sum(to_gates, axis=0) if has_bias else None


@aten("_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden state, and a workspace for the gradient.

    The workspace has the gates, the old state, and the old state's product before the reset gate.
    """
    from_input = _parts(_plus(input_gates, input_bias), 3)
    from_hidden = _parts(_plus(hidden_gates, hidden_bias), 3)
    reset = F.sigmoid(from_input[0] + from_hidden[0])
    keep = F.sigmoid(from_input[1] + from_hidden[1])
    candidate = br.tanh(from_input[2] + reset * from_hidden[2])
    new = candidate + keep * (hidden - candidate)
    return new, _joined(reset, keep, candidate, hidden, from_hidden[2])


@aten("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    reset, keep, candidate, hidden, product = _parts(workspace, 5)
    to_candidate = grad * (1 - keep) * (1 - candidate * candidate)
    to_keep = grad * (hidden - candidate) * keep * (1 - keep)
    to_reset = to_candidate * product * reset * (1 - reset)
    to_input = _joined(to_reset, to_keep, to_candidate)
    to_hidden = _joined(to_reset, to_keep, to_candidate * reset)
    biases = [br.sum(x, axis=0) if has_bias else None for x in (to_input, to_hidden)]
    return to_input, to_hidden, grad * keep, biases[0], biases[1]
