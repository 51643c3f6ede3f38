"""Storages: the elements that several views share.

Tensors of ``burn_remote`` never change, so a storage refers to another tensor after each write. A
view remembers the version of the storage that it was read from. If the storage has a newer version,
the view is read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import burn_remote as br
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.shapes import strided_positions
from burn_remote.torch.errors import UnsupportedOperation
from burn_remote.torch.geometry import Geometry, is_contiguous, order_of_dense, selection_of
from burn_remote_protocol.dtypes import DType

__all__ = ["ReinterpretedStorage", "Storage", "read"]

Tensor = br.Tensor


class Storage:
    """The elements of one tensor and of all its views, in row-major order of some shape.

    ``unset`` has shape, dtype and device of elements that nobody has written yet: they are zeros,
    and made when they are first read. ``unordered`` has elements and the order that their axes have
    in the storage: they are permuted when another view reads them.
    """

    __slots__ = ("unordered", "unset", "value", "version")

    def __init__(
        self,
        value: Tensor | None,
        unset: tuple[tuple[int, ...], DType, br.Device] | None = None,
    ) -> None:
        self.value = value
        self.unset = unset
        self.unordered: tuple[Tensor, tuple[int, ...]] | None = None
        self.version = 0

    def copied(self, copy: Callable[[Storage], Storage]) -> Storage:
        """Return an independent storage with the same elements.

        ``copy`` copies the storage that this one converts, if it is a ``ReinterpretedStorage``.
        """
        # Both may refer to one tensor: it never changes.
        made = Storage(self.value, self.unset)
        made.unordered = self.unordered
        return made

    @property
    def root(self) -> Storage:
        """The storage that has the elements."""
        return self

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        if self.value is not None:
            return self.value.shape
        if self.unordered is not None:
            new, order = self.unordered
            return tuple([new.shape[axis] for axis in order])
        assert self.unset is not None  # one of value, unordered and unset is not None
        return self.unset[0]

    def whole(self) -> Tensor:
        """Return all elements."""
        if self.value is None and self.unordered is not None:
            self._become(br.permute_dims(*self.unordered))
        if self.value is None:
            assert self.unset is not None  # one of value, unordered and unset is not None
            shape, dtype, device = self.unset
            self._become(br.zeros(shape, dtype=dtype, device=device))
        assert self.value is not None
        return self.value

    def _become(self, value: Tensor) -> None:
        self.value, self.unset, self.unordered = value, None, None

    def _become_unordered(self, new: Tensor, order: tuple[int, ...]) -> None:
        self.value, self.unset, self.unordered = None, None, (new, order)

    def grow(self, count: int) -> None:
        """Append zeros so that there are ``count`` elements, if there are fewer."""
        if count <= self.count:
            return
        if self.value is None and self.unordered is None:
            assert self.unset is not None  # one of value, unordered and unset is not None
            self.unset = ((count,), *self.unset[1:])
        else:
            whole = self.whole()
            added = br.zeros((count - whole.size,), dtype=whole.dtype, device=whole.device)
            self._become(br.concat([br.flatten(whole), added]))
        self.version += 1

    def read(self, geometry: Geometry) -> Tensor:
        """Return the elements that a geometry shows."""
        return read(self.whole(), geometry)

    def write(self, geometry: Geometry, new: Tensor) -> None:
        """Change the elements that a geometry shows; ``new`` has its size.

        Raises ``RuntimeError`` if several elements of the view are one element of the storage.
        """
        size, stride, offset = geometry
        count = math.prod(size)
        if not count:
            return
        if any(n > 1 and step == 0 for n, step in zip(size, stride, strict=True)):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )
        if offset == 0 and count == self.count and is_contiguous(size, stride):
            shape = self._shape
            self._become(new if new.shape == shape else reshaped(new, shape))
            self.version += 1
            return
        order = order_of_dense(size, stride) if offset == 0 and count == self.count else None
        if order is not None:
            self._become_unordered(new, order)
            self.version += 1
            return
        value = self.whole()
        new = converted_to(new, value.dtype)
        selection = selection_of(value.shape, geometry)
        if selection is None:
            places = strided_positions(value, size, stride, offset)
            flat = reshaped(value, (value.size,))
            changed = br.update_along(flat, 0, places, reshaped(new, (count,)))
            self._become(reshaped(changed, value.shape))
        else:
            split, index, _, order = selection
            placed = reshaped(new, tuple([n for n in size if n > 1]))
            back = [order.index(axis) for axis in range(len(order))]
            placed = br.permute_dims(placed, back) if back else placed
            axes = zip(index, split, strict=True)
            lengths = tuple([len(range(*one.indices(n))) for one, n in axes])
            changed = reshaped(value, split).set(index, reshaped(placed, lengths))
            self._become(reshaped(changed, value.shape))
        self.version += 1


def read(value: Tensor, geometry: Geometry) -> Tensor:
    """Return the elements that a geometry shows of a storage with the elements ``value``."""
    size, stride, offset = geometry
    count = math.prod(size)
    if not count:
        return br.zeros(size, dtype=value.dtype, device=value.device)
    if offset == 0 and count == value.size and is_contiguous(size, stride):
        return reshaped(value, size)
    # Repeated elements are read once.
    once = tuple([1 if step == 0 else n for n, step in zip(size, stride, strict=True)])
    selection = selection_of(value.shape, Geometry(once, stride, offset))
    if selection is None:
        places = strided_positions(value, once, stride, offset)
        picked = reshaped(br.take(reshaped(value, (value.size,)), places, axis=0), once)
    else:
        split, index, kept, order = selection
        sliced = reshaped(value, split)
        if any(one != slice(0, n, 1) for one, n in zip(index, split, strict=True)):
            sliced = sliced[index]
        sliced = reshaped(sliced, kept)
        if order != tuple(range(len(order))):
            sliced = br.permute_dims(sliced, order)
        picked = reshaped(sliced, once)
    return picked if once == size else br.broadcast_to(picked, size)


class ReinterpretedStorage(Storage):
    """The elements of another storage, flattened and converted: conjugates, or pairs of reals.

    It has no elements of its own. A write is converted back and changes the other storage, and so
    the views of both.
    """

    __slots__ = ("_back", "_base", "_converted", "_seen", "_there")

    def __init__(
        self,
        base: Storage,
        there: Callable[[Tensor], Tensor],
        back: Callable[[Tensor], Tensor],
    ) -> None:
        self.value = None
        self._base = base
        self._there, self._back = there, back
        self._converted: Tensor | None = None
        self._seen = -1

    def copied(self, copy: Callable[[Storage], Storage]) -> Storage:
        return ReinterpretedStorage(copy(self._base), self._there, self._back)

    @property
    def root(self) -> Storage:
        """The storage that has the elements."""
        return self._base.root

    @property
    def version(self) -> int:
        return self._base.version

    @version.setter
    def version(self, new: int) -> None:
        self._base.version = new

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.whole().shape

    def grow(self, count: int) -> None:
        """Refuse: the other storage may have elements of another size."""
        if count > self.count:
            raise UnsupportedOperation(
                "resize_ cannot enlarge a view of the parts, or the conjugate, of a tensor on burn "
                "devices; clone() it first"
            )

    def whole(self) -> Tensor:
        """Return all elements."""
        if self._converted is None or self._seen != self._base.version:
            flat = br.flatten(self._base.whole())
            self._converted = br.flatten(self._there(flat))
            self._seen = self._base.version
        return self._converted

    def _become(self, value: Tensor) -> None:
        self._base._become(reshaped(self._back(value), self._base._shape))

    def _become_unordered(self, new: Tensor, order: tuple[int, ...]) -> None:
        self._become(br.flatten(br.permute_dims(new, order)))
