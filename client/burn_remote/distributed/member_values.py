"""The values that a program gives a collective: one for each member, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burn_remote.arguments.containers import leaves, mapped, named_leaves
from burn_remote.autodiff.grad_mode import is_recording
from burn_remote.autodiff.nodes import TrackedHandle, plain
from burn_remote.diagnostics.invalid_calls import no_tensor
from burn_remote.distributed.collective_engine import Bucket
from burn_remote.functions.device_class import Device
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.runner.interface import distinction
from burn_remote_protocol.dtypes import Category
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DeviceMismatch,
    DTypeMismatch,
    ShapeMismatch,
    UsageError,
    shown,
)

__all__ = [
    "MemberValues",
    "check_place",
    "check_tensor",
    "member_values",
    "rebuilt",
    "untracked",
    "with_axis",
]


class MemberValues:
    """The values of all members, and their tensors."""

    def __init__(self, name: str, values: Sequence[Any], buckets: list[Bucket]) -> None:
        self.buckets = buckets
        self._name = name
        self._values = values

    def check_alike(self, *, except_axis: bool = False) -> list[Any]:
        """Check that members have equal shapes and dtypes; return the dtypes.

        ``except_axis``: sizes along axis 0 may differ.
        """
        names = [name for name, _ in named_leaves(self._values[0])]
        for member, bucket in enumerate(self.buckets[1:], 1):
            for place, first, x in zip(names, self.buckets[0], bucket, strict=True):
                what = f"{self._name}: the tensor{_at(place)} of member {member} is {x.handle.spec}"
                other = f"but that of member 0 is {first.handle.spec}"
                if x.dtype != first.dtype:
                    raise DTypeMismatch(f"{what}, {other}; convert it with x.astype(dtype)")
                skipped = 1 if except_axis else 0
                if x.ndim != first.ndim or x.shape[skipped:] != first.shape[skipped:]:
                    allowed = "; they may differ along axis 0 only" if except_axis else ""
                    raise ShapeMismatch(f"{what}, {other}{allowed}")
        return [x.dtype for x in self.buckets[0]]

    def check_have_axis(self) -> None:
        """Raise ``ShapeMismatch`` for 0-d tensors, which have no parts."""
        for place, x in named_leaves(self._values[0]):
            if not x.ndim:
                raise ShapeMismatch(
                    f"{self._name}: the tensor{_at(place)} is {x.handle.spec}, which has no axis "
                    "to cut into parts; all_reduce and all_gather take 0-d tensors"
                )

    def check_movable(self) -> None:
        """Raise ``DTypeMismatch`` for quantized tensors, which cannot be cut or joined."""
        for place, x in named_leaves(self._values[0]):
            if x.dtype.category is Category.QUANTIZED:
                raise DTypeMismatch(
                    f"{self._name}: the tensor{_at(place)} is {x.handle.spec}, which cannot be cut "
                    "or joined; broadcast takes it, and x.dequantize() converts it"
                )

    def like(self, buckets: Sequence[Bucket]) -> list[Any]:
        """Return buckets as values, with the containers of the given ones.

        A member whose bucket is empty, such as one that is not the root, has its given value.
        """
        return [
            rebuilt(value, bucket) if bucket else value
            for value, bucket in zip(self._values, buckets, strict=True)
        ]


def member_values(
    name: str, values: Any, devices: Sequence[Device], group_name: str
) -> MemberValues:
    """Return the values of the members of a group, for the collective ``name``.

    Raises an error that names what does not fit.
    """
    wanted = f"{name} takes a list with one value for each of the {len(devices)} members"
    if is_tensor(values):
        raise ArgumentMismatch(f"{wanted}, not one tensor, {values!r}")
    if not isinstance(values, list | tuple):
        raise ArgumentMismatch(f"{wanted}, not {shown(values)}")
    if len(values) != len(devices):
        raise ArgumentMismatch(
            f"{wanted}, not {len(values)}; they are in the order of group.devices: "
            f"{', '.join(map(str, devices))}"
        )
    for member, value in enumerate(values):
        for place, x in named_leaves(value):
            check_tensor(name, f"the value of member {member}", place, x)
            check_place(name, place, x, member, devices, group_name)
    for value in values[1:]:
        mapped(lambda *_: None, values[0], value)  # raises for other containers
    buckets = [[untracked(name, x) for x in leaves(value)] for value in values]
    return MemberValues(name, values, buckets)


def check_tensor(name: str, what: str, place: str, x: Any) -> None:
    """Raise ``ArgumentMismatch`` unless ``x``, at a place in ``what``, is a tensor."""
    if not is_tensor(x):
        raise ArgumentMismatch(no_tensor(f"{name}: {what}{_at(place)}", x))


def check_place(
    name: str, place: str, x: Tensor, member: int, devices: Sequence[Device], group_name: str
) -> None:
    """Raise ``DeviceMismatch`` unless a tensor is on the device of its member."""
    device = devices[member]
    if x.handle.client.session is device.session:
        return
    raise DeviceMismatch(
        f"{name}: the tensor{_at(place)} of member {member}, {x.handle.spec}, is on "
        f"{x.device}, but member {member} of the group {group_name!r} is {device}"
        f"{distinction(x.device, device)}; give the tensors in the order of group.devices, or "
        f"write x.to(group.devices[{member}])"
    )


def untracked(name: str, x: Tensor) -> Tensor:
    """Return ``x.detach()``. Raises ``UsageError`` if ``x`` is tracked and this thread records."""
    if isinstance(x.handle, TrackedHandle) and is_recording():
        raise UsageError(
            f"{name}: {x.handle.spec} is tracked, and gradients do not pass through collectives; "
            "pass x.detach(), or call this inside burn_remote.no_grad()"
        )
    return Tensor(plain(x.handle))


def with_axis(x: Tensor) -> Tensor:
    """Return a tensor with at least one axis."""
    return x if x.ndim else x.reshape((1,))


def rebuilt(value: Any, bucket: Bucket) -> Any:
    """Return containers with the tensors of a bucket in place of their leaves."""
    following = iter(bucket)
    return mapped(lambda _: next(following), value)


def _at(place: str) -> str:
    return f" at {place}" if place else ""
