"""Gradients of pooling. Each is a row of its own, which is linear in the gradient of the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from burn_remote.autodiff.rule_table import joint
from burn_remote.dispatch.operators import Operator, reshaped
from burn_remote.functions.gathering import gather
from burn_remote.functions.logic import less
from burn_remote.functions.selection import clip, mask_fill
from burn_remote_protocol.operations.families import pooling_rows as rows

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.operations.row import Row

AVERAGE: Final = ("kernel_size", "stride", "padding", "count_include_pad", "ceil_mode")
MAXIMUM: Final = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _parameters(call: PastCall, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([call.parameters[name] for name in names])


def _average_rules(forward_row: Row, backward_row: Row) -> None:
    forward, backward = Operator(forward_row), Operator(backward_row)

    @joint(forward_row, uses=("x",))
    def of_average(call: PastCall) -> dict[str, Tensor]:
        return {"x": backward.apply((call["x"], call.grads[0]), _parameters(call, AVERAGE))}

    @joint(backward_row)
    def of_backward(call: PastCall) -> dict[str, Tensor]:
        return {"grad": forward.apply((call.grads[0],), _parameters(call, AVERAGE))}


def _adaptive_rules(forward_row: Row, backward_row: Row) -> None:
    forward, backward = Operator(forward_row), Operator(backward_row)

    @joint(forward_row, uses=("x",))
    def of_average(call: PastCall) -> dict[str, Tensor]:
        return {"x": backward.apply((call["x"], call.grads[0]))}

    @joint(backward_row)
    def of_backward(call: PastCall) -> dict[str, Tensor]:
        sizes = call.spec("grad").shape[2:]
        return {"grad": forward.apply((call.grads[0],), sizes if len(sizes) == 1 else (sizes,))}


def _maximum_rules(plain_row: Row, indexed_row: Row, backward_row: Row) -> None:
    indexed, backward = Operator(indexed_row), Operator(backward_row)

    @joint(plain_row, uses=("x",))
    def of_plain(call: PastCall) -> dict[str, Tensor]:
        window = _parameters(call, MAXIMUM)
        _, indices = indexed.apply_all((call["x"].detach(),), window)
        return {"x": backward.apply((call["x"], call.grads[0], indices), window)}

    @joint(indexed_row, uses=("x", "out_indices"))
    def of_indexed(call: PastCall) -> dict[str, Tensor]:
        inputs = (call["x"], call.grads[0], call["out_indices"])
        return {"x": backward.apply(inputs, _parameters(call, MAXIMUM))}

    @joint(backward_row, uses=("indices",))
    def of_backward(call: PastCall) -> dict[str, Tensor]:
        (grad,), indices = call.grads, call["indices"]
        batch, channels = grad.shape[:2]
        images = reshaped(grad, (batch, channels, grad.size // (batch * channels or 1)))
        places = reshaped(indices, (batch, channels, indices.size // (batch * channels or 1)))
        # The index of a window of padding only is -1.
        picked = gather(images, 2, clip(places, min=0))
        return {"grad": reshaped(mask_fill(picked, less(places, 0), 0), indices.shape)}


_average_rules(rows.AVG_POOL1D, rows.AVG_POOL1D_BACKWARD)
_average_rules(rows.AVG_POOL2D, rows.AVG_POOL2D_BACKWARD)
_adaptive_rules(rows.ADAPTIVE_AVG_POOL1D, rows.ADAPTIVE_AVG_POOL1D_BACKWARD)
_adaptive_rules(rows.ADAPTIVE_AVG_POOL2D, rows.ADAPTIVE_AVG_POOL2D_BACKWARD)
_adaptive_rules(rows.ADAPTIVE_AVG_POOL3D, rows.ADAPTIVE_AVG_POOL3D_BACKWARD)
_maximum_rules(rows.MAX_POOL1D, rows.MAX_POOL1D_WITH_INDICES, rows.MAX_POOL1D_WITH_INDICES_BACKWARD)
_maximum_rules(rows.MAX_POOL2D, rows.MAX_POOL2D_WITH_INDICES, rows.MAX_POOL2D_WITH_INDICES_BACKWARD)
