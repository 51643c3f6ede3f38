"""Random numbers from a ``torch.Generator``: PyTorch draws them on the CPU, and they are uploaded.

So a generator gives the same numbers on a burn device and on the CPU. Without a generator, the
server draws the numbers.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from burn_remote.torch.burn_tensor import BurnTensor, to_cpu, upload, wrap_strided
from burn_remote.torch.device_registry import BACKEND, index_of, wire_device
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.in_place import resize
from burn_remote.torch.value_conversion import Handler, name_of

__all__ = ["Generator", "accept_burn_devices", "drawing", "takes_generator"]

_Original: Final = torch.Generator


class _Class(type(_Original)):  # type: ignore[misc]
    """The metaclass of ``Generator``: ``isinstance`` accepts all of PyTorch's generators."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, _Original) if cls is Generator else super().__instancecheck__(x)

    def __subclasscheck__(cls, other: Any) -> bool:
        return (
            issubclass(other, _Original) if cls is Generator else super().__subclasscheck__(other)
        )


class Generator(_Original, metaclass=_Class):  # type: ignore[misc, valid-type]
    """PyTorch's generator, which also takes a burn device. Its numbers are then the CPU's."""

    _place: Any = None

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != BACKEND:
            return _Original(device) if cls is Generator else _Original.__new__(cls, device)
        wire_device(device)  # raises an error for a device that was not connected
        made = _Original.__new__(cls)
        made._place = torch.device(BACKEND, index_of(device))
        return made

    @property
    def device(self) -> Any:
        """The device that was given."""
        return super().device if self._place is None else self._place


def accept_burn_devices() -> None:
    """Have ``torch.Generator`` take burn devices."""
    torch.Generator = Generator


def takes_generator(func: Any) -> bool:
    """Return whether an overload has an argument for a generator."""
    return any(one.name == "generator" for one in func._schema.arguments)


def drawing(func: Any, without: Handler) -> Handler:
    """Return a handler that draws on the CPU if there is a generator; ``without`` draws if not.

    Operations whose probabilities or means are tensors, such as ``multinomial``, wait for these.
    """
    written = [
        one.name
        for one in func._schema.arguments
        if one.alias_info is not None and one.alias_info.is_write
    ]
    is_out = written == ["out"]
    is_in_place = written == [func._schema.arguments[0].name]
    place_of_generator = [one.name for one in func._schema.arguments].index("generator")
    # The elements of the first argument are not used.
    only_shape = is_in_place or "_like" in name_of(func)

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("generator") is None and (
            len(args) <= place_of_generator or args[place_of_generator] is None
        ):
            return without(args, kwargs)
        if written and not (is_out or is_in_place):
            raise UnsupportedOperation(f"{name_of(func)} takes no generator on burn devices")
        given = [x for x in (*args, *kwargs.values()) if type(x) is BurnTensor]
        lowered = [to_cpu(x) if type(x) is BurnTensor else x for x in args[only_shape:]]
        if only_shape:
            lowered.insert(0, _alike_on_cpu(args[0]))
        named = {name: x for name, x in kwargs.items() if name != "device"}
        if is_out:
            target = kwargs["out"]
            named["out"] = torch.empty(0, dtype=target.dtype)
        drawn = func(*lowered, **named)
        if is_out and target.shape != drawn.shape:
            resize(target, tuple(drawn.shape), drawn.stride())
        if written:
            return (target if is_out else args[0]).copy_(drawn)
        device = kwargs.get("device")
        place = given[0]._place if device is None else torch.device(BACKEND, index_of(device))
        return wrap_strided(upload(drawn, place), drawn.stride(), place)

    return handle


def _alike_on_cpu(x: Any) -> Any:
    """Return a tensor of the CPU whose elements nobody has written, in the order of those of ``x``.

    The CPU draws numbers in the order of memory.
    """
    shown = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return torch.empty_like(shown, device="cpu")
