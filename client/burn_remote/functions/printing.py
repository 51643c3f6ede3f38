"""The text of a tensor: what ``repr``, ``print`` and notebooks show.

By default, no text waits for the server: it shows the shape, dtype and device. A program can ask
for the elements of small tensors with ``set_printoptions``; each text then costs one read. No text
raises: a tensor that failed, or whose device was closed, is shown with the reason.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

if TYPE_CHECKING:
    from burn_remote.functions.tensor_value import TensorValue

__all__ = ["html_text", "plain_text", "set_printoptions"]

# The most elements of a tensor that a text shows.
_threshold = 0


@explained
def set_printoptions(*, threshold: int = 0) -> None:
    """Have ``repr``, ``print`` and notebooks show the elements of small tensors.

    Tensors of at most ``threshold`` elements are shown with their elements, as NumPy formats them,
    which waits for one read each. With 0, the default, no text waits.
    """
    global _threshold
    _threshold = whole_number("threshold", threshold, 0, 10**6)


def plain_text(tensor: TensorValue, tracked: str) -> str:
    """Return ``Tensor(shape=…, dtype=…, device=…)``, with the elements first if they are wanted."""
    facts = f"shape={tensor.shape}, dtype={tensor.dtype}, device={tensor.device}{tracked}"
    array, problem = _shown(tensor)
    if array is not None:
        elements = np.array2string(array, separator=", ", prefix="Tensor(", threshold=_threshold)
        facts = f"{elements}, {facts}"
    return f"Tensor({facts}{problem and f', {problem}'})"


def html_text(tensor: TensorValue, tracked: str) -> str:
    """Return the text for a notebook as HTML: a line of facts, and the elements below if wanted."""
    facts = [
        f"<b>Tensor</b> {html.escape(str(tensor.shape))}",
        f"<code>{html.escape(str(tensor.dtype))}</code>",
        f"on {html.escape(str(tensor.device))}",
        html.escape(tracked.removeprefix(", ")),
    ]
    array, problem = _shown(tensor)
    facts.append(html.escape(problem))
    text = " · ".join(filter(None, facts))
    if array is None:
        return f"<div>{text}</div>"
    elements = html.escape(np.array2string(array, separator=", ", threshold=_threshold))
    return f"<div>{text}<pre>{elements}</pre></div>"


def _shown(tensor: TensorValue) -> tuple[np.ndarray[Any, Any] | None, str]:
    """Return the elements if they are wanted, and why they cannot be shown, or ``""``."""
    if tensor.handle.client.session.closed:
        return None, "closed"
    if tensor.size > _threshold or not _threshold:
        return None, ""
    try:
        return tensor.numpy(), ""
    except Exception as error:  # a debugger or a log must be able to show any tensor
        pass_on_of_signal_handler(error)
        return None, f"{type(error).__name__}: {error}"
