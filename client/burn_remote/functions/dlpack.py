"""Exchange of elements with other libraries of this process by DLPack.

The elements of a tensor are on its device, so exporting them waits for a copy, and importing them
uploads a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.casting import distinct
from burn_remote.functions.creation import asarray
from burn_remote.functions.tensor_value import DLPACK_CPU, is_tensor
from burn_remote_protocol.errors import ArgumentMismatch, type_name

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.functions.tensor import Tensor

__all__ = ["from_dlpack"]


@explained
def from_dlpack(x: Any, /, *, device: AnyDevice | None = None, copy: bool | None = None) -> Tensor:
    """Make a tensor of an array of another library, through DLPack.

    The elements are copied to ``device``; an array on a GPU is copied to this process first, if its
    library can do that. A tensor is returned as another object, on its own device or on ``device``,
    without any copy in this process. Raises ``ArgumentMismatch`` for an object without
    ``__dlpack__``, ``ValueError`` for ``copy=False`` and an array of another library, and
    ``DTypeMismatch`` for elements that tensors cannot hold.
    """
    if is_tensor(x):
        return distinct(x if device is None else x.to_device(device))
    if not hasattr(x, "__dlpack__"):
        raise ArgumentMismatch(
            f"{type_name(x)} has no __dlpack__; burn_remote.tensor(data) makes a tensor of it"
        )
    if copy is False:
        raise ValueError("copy=False is impossible: the elements are copied to the device")
    is_here = x.__dlpack_device__()[0] == DLPACK_CPU
    return asarray(np.from_dlpack(x) if is_here else np.from_dlpack(x, device="cpu"), device=device)
