"""The tensors that PyTorch sees: shape, strides and dtype for PyTorch, elements on a device."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import torch
from torch.utils import _pytree as pytree

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.device_registry import wire_device
from burn_remote.torch.dtypes import dtype_from_torch, dtype_to_torch
from burn_remote.torch.errors import as_runtime_error
from burn_remote.torch.geometry import (
    Geometry,
    Metadata,
    is_contiguous,
    metadata_of,
    order_of_dense,
    row_major,
)
from burn_remote.torch.storages import Storage

__all__ = [
    "BurnTensor",
    "alias",
    "alias_as",
    "check_cast",
    "contiguous_metadata",
    "geometry_of",
    "same_view",
    "set_dispatcher",
    "to_cpu",
    "unset",
    "upload",
    "value_of",
    "values_of",
    "view_of_storage",
    "without_repetition",
    "wrap",
    "wrap_as",
    "wrap_strided",
    "write",
    "write_all",
]

_make: Final = torch.Tensor._make_wrapper_subclass
_is_inference: Final = torch.is_inference_mode_enabled
_graph_task: Final = torch._C._current_graph_task_id
_dispatcher: list[Any] = []


def set_dispatcher(handlers: dict[Any, Any], resolve: Any) -> None:
    """Set the handlers of operations by overload; ``resolve(overload)`` finds a missing one."""
    _dispatcher[:] = [handlers, resolve]


class _Thread(threading.local):
    """What a thread prepares once: PyTorch runs the backward passes that it starts in itself.

    So errors name the line of the program, and devices may have any index. By default, PyTorch
    uses one worker thread for all devices of a backend in Python.
    """

    is_ready = False

    def prepare(self) -> None:
        torch._C._set_multithreading_enabled(False)
        self.is_ready = True


_this_thread: Final = _Thread()


class _StorageIdentity:
    """A substitute for ``x.storage()``: its address tells libraries which tensors share elements.

    safetensors and transformers compare these addresses before they save tensors.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def data_ptr(self) -> int:
        """Return the number of the storage's first element; see ``BurnTensor.data_ptr``."""
        return -id(self._storage)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the storage of a tensor on a burn device has no {name!r}, because its elements are "
            "on a server; x.cpu().storage() has them"
        )


class BurnTensor(torch.Tensor):
    """A tensor on a burn device. Everything that PyTorch knows of it is set at construction."""

    # PyTorch has the metadata too, but takes longer to return them. The other attributes are the
    # shared elements, the elements that this view shows, the version of the storage that they come
    # from, and the device.
    _metadata: Metadata
    _storage: Storage
    _value: br.Tensor | None
    _version_seen: int
    _place: Any
    # Whether it shows all elements of the storage, in their shape: the common case.
    _is_whole: bool

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _this_thread.is_ready:
            _this_thread.prepare()
        handlers, resolve = _dispatcher
        handler = handlers.get(func)
        try:
            if handler is None:
                handler = resolve(func)
            return handler(args, kwargs or {})
        except Exception as error:  # PyTorch programs expect RuntimeError
            if _graph_task() != -1:
                return _postponed(as_runtime_error(error), func, args, kwargs or {})
            translated = as_runtime_error(error)
            if translated is error:
                raise
            raise translated from error

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        shown = repr(to_cpu(self))
        tail = f", device='{self.device}'"
        if self.requires_grad and self.grad_fn is None:
            tail += ", requires_grad=True"
        elif self.grad_fn is not None:
            tail += f", grad_fn=<{type(self.grad_fn).__name__}>"
        return f"{shown[:-1]}{tail})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "only tensors that the user created (leaves) can be deep-copied; "
                "call detach() first"
            )
        copied = _with_storage(self, _copied_storage(self._storage, memo))
        copied.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the same tensor on the CPU, so that a checkpoint can be loaded anywhere."""
        copied = to_cpu(self.detach())
        if getattr(self, "_is_param", False):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad and self.is_leaf)
        return copied.__reduce_ex__(protocol)

    def __coerce_same_metadata_as_tangent__(self, expected: Any, kind: Any = None) -> Any:
        """Return the tensor as a gradient of a compiled function, which expects its metadata."""
        return self

    def numpy(self, *, force: bool = False) -> Any:
        """Raise ``TypeError`` as PyTorch does for tensors that are not on the CPU."""
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        return to_cpu(self.detach()).numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def storage(self) -> Any:
        """Return an object that tells which tensors share elements, and has none itself."""
        return _StorageIdentity(self._storage)

    def data_ptr(self) -> int:
        """Return a number that tells which elements of a storage a tensor shows.

        It is negative, so it cannot be taken for an address.
        """
        offset: int = self.storage_offset() * self.element_size()
        return self.storage().data_ptr() + offset

    def __dlpack__(self, **_: Any) -> Any:
        """Raise ``BufferError``, because PyTorch would export a null pointer."""
        raise BufferError(
            f"a tensor on {self.device} has no elements in this process that DLPack could share; "
            "call x.cpu() first"
        )

    def __dlpack_device__(self) -> Any:
        """Raise ``BufferError``; see ``__dlpack__``."""
        self.__dlpack__()

    def __format__(self, specification: str) -> str:
        if self.dim() == 0 and not self.is_complex():
            return format(self.item(), specification)
        return object.__format__(self, specification)

    def tolist(self) -> Any:
        """Wait for the elements and return them as nested lists."""
        return to_cpu(self.detach()).tolist()

    @property
    def data(self) -> Any:
        """The same elements, without a history."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, new: Any) -> None:
        if type(new) is not BurnTensor:
            raise RuntimeError(
                f"the data of a tensor on {self.device} must be on a burn device, not on "
                f"{new.device}"
            )
        torch.Tensor.data.__set__(self, new)
        take_over(self, new)


def _postponed(error: Exception, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Raise an error at the end of the backward pass; return results of the expected shapes.

    PyTorch's engine aborts the process if an exception passes through it while the guard of the
    current device is implemented in Python.
    """

    def fail() -> None:
        raise error

    torch.autograd.Variable._execution_engine.queue_callback(fail)

    def placeholder(x: Any) -> Any:
        return unset(x.shape, None, x.dtype, place) if isinstance(x, torch.Tensor) else x

    given = [x for x in pytree.tree_leaves((args, kwargs)) if type(x) is BurnTensor]
    place = given[0]._place
    kwargs = {name: x for name, x in kwargs.items() if name != "device"}
    # Some operations have no kernel for "meta"; the CPU then computes with zeros.
    for device in ("meta", "cpu"):

        def described(x: Any, device: str = device) -> Any:
            return _zeros(x, device) if isinstance(x, torch.Tensor) else x

        given_args, given_kwargs = pytree.tree_map(described, (args, kwargs))
        with torch.no_grad(), contextlib.suppress(Exception):
            return pytree.tree_map(placeholder, func(*given_args, **given_kwargs))
    # The engine would end the process if there were no results.
    count = len(func._schema.returns)
    return given[0] if count == 1 else (given[0],) * count


def _zeros(x: Any, device: str) -> Any:
    if device == "meta":
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return torch.zeros(x.shape, dtype=x.dtype)


def _copied_storage(storage: Storage, memo: dict[int, Any]) -> Storage:
    """Return a copy of a storage, the same one for all tensors of one ``copy.deepcopy``."""
    copied = memo.get(id(storage))
    if copied is None:
        copied = memo[id(storage)] = storage.copied(lambda base: _copied_storage(base, memo))
    return copied


def _with_storage(x: BurnTensor, storage: Storage) -> BurnTensor:
    """Return a tensor with the elements of another storage, which the geometry of ``x`` shows."""
    size, stride, offset = x._metadata.geometry
    with torch.inference_mode(x.is_inference()):
        made: BurnTensor = _make(
            BurnTensor,
            size,
            strides=stride,
            storage_offset=offset,
            dtype=x._metadata.dtype,
            device=x._place,
        )
    made._storage = storage
    made._value, made._version_seen = None, -1
    made._place = x._place
    made._is_whole = x._is_whole
    made._metadata = x._metadata
    return made


def take_over(x: BurnTensor, new: BurnTensor) -> None:
    """Have ``x`` show what ``new`` shows; PyTorch's metadata are not touched."""
    x._storage, x._value, x._version_seen = new._storage, new._value, new._version_seen
    x._place = new._place
    x._is_whole = new._is_whole
    x._metadata = new._metadata


def wrap(value: br.Tensor, place: Any) -> BurnTensor:
    """Return a new tensor with these elements on a ``torch.device``."""
    # This repeats ``contiguous_metadata`` and ``wrap_as``: calling them would take a tenth of the
    # time.
    found = _contiguous.get(id(value.handle.spec))
    metadata = contiguous_metadata(value) if found is None else found[1]
    made: BurnTensor = _make(BurnTensor, metadata.geometry.size, dtype=metadata.dtype, device=place)
    made._storage = Storage(value)
    made._value = value
    made._version_seen = 0
    made._place = place
    made._is_whole = True
    made._metadata = metadata
    return made


# Metadata of contiguous tensors by the ``id`` of their spec. An entry also refers to the spec, so
# that no other object gets its id.
_LIMIT: Final = 65_536
_contiguous: Final[dict[int, tuple[Any, Metadata]]] = {}


def contiguous_metadata(value: br.Tensor) -> Metadata:
    """Return the metadata of a contiguous tensor with these elements."""
    spec = value.handle.spec
    found = _contiguous.get(id(spec))
    if found is None:
        if len(_contiguous) >= _LIMIT:
            _contiguous.clear()
        geometry = Geometry(spec.shape, row_major(spec.shape), 0)
        found = _contiguous[id(spec)] = spec, metadata_of(geometry, dtype_to_torch(spec.dtype))
    return found[1]


def wrap_as(value: br.Tensor, metadata: Metadata, place: Any) -> BurnTensor:
    """Return a new tensor with these elements and metadata; its offset is 0."""
    if not metadata.is_contiguous:
        return wrap_strided(value, metadata.geometry.stride, place)
    made: BurnTensor = _make(BurnTensor, metadata.geometry.size, dtype=metadata.dtype, device=place)
    made._storage = Storage(value)
    made._value = value
    made._version_seen = 0
    made._place = place
    made._is_whole = True
    made._metadata = metadata
    return made


def wrap_strided(value: br.Tensor, stride: Any, place: Any) -> BurnTensor:
    """Return a new tensor with these elements and strides on a ``torch.device``.

    Repeated elements (a stride of 0) are not possible: the tensor is then contiguous.
    """
    spec = value.handle.spec
    shape, stride = spec.shape, tuple(stride)
    metadata, order = _order_in_memory(shape, stride, dtype_to_torch(spec.dtype))
    if metadata is None:
        return wrap(value, place)
    if order is None:
        made = unset(shape, stride, metadata.dtype, place)
        made._storage.write(metadata.geometry, value)
        made._value, made._version_seen = value, made._storage.version
        return made
    made = _make(BurnTensor, shape, strides=stride, dtype=metadata.dtype, device=place)
    storage = made._storage = Storage(None)
    storage.unordered = value, order
    made._value, made._version_seen = value, 0
    made._place = place
    made._is_whole = False
    made._metadata = metadata
    return made


@functools.lru_cache(maxsize=4096)
def _order_in_memory(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any
) -> tuple[Metadata | None, tuple[int, ...] | None]:
    """Return the metadata of a tensor with these strides, and its axes in the order of memory.

    The metadata are ``None`` if the tensor is to be contiguous; the order is ``None`` if there are
    gaps in memory, or no elements.
    """
    if is_contiguous(shape, stride) or 0 in stride:
        return None, None
    order = order_of_dense(shape, stride) if math.prod(shape) else None
    return metadata_of(Geometry(shape, stride, 0), dtype), order


def unset(size: Any, stride: Any, dtype: Any, place: Any) -> BurnTensor:
    """Return a tensor whose elements nobody has written: zeros, made when they are needed."""
    size = tuple(size)
    stride = None if stride is None or is_contiguous(size, stride) else tuple(stride)
    made: BurnTensor = _make(BurnTensor, size, strides=stride, dtype=dtype, device=place)
    length = size
    if stride is not None:
        order = order_of_dense(size, stride)
        if order is None:
            last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
            length = (last + 1 if math.prod(size) else 0,)
        else:
            length = tuple([size[axis] for axis in order])
    made._storage = Storage(None, (length, dtype_from_torch(dtype), wire_device(place)))
    made._value = None
    made._version_seen = -1
    made._place = place
    made._is_whole = stride is None
    made._metadata = metadata_of(
        Geometry(size, row_major(size) if stride is None else stride, 0), dtype
    )
    return made


def alias(x: BurnTensor, geometry: Geometry, value: br.Tensor | None) -> BurnTensor:
    """Return a view of ``x``; without a value, it is read from the storage when needed."""
    own = x._metadata
    return alias_as(x, metadata_of(geometry, own.dtype), value)


def without_repetition(x: BurnTensor) -> BurnTensor:
    """Return a view of the same elements, without the axes that repeat them (``expand``)."""
    size, stride, offset = geometry_of(x)
    if 0 not in stride:
        return x
    size = tuple([1 if step == 0 and n else n for n, step in zip(size, stride, strict=True)])
    return alias(x, Geometry(size, stride, offset), None)


def alias_as(x: BurnTensor, metadata: Metadata, value: br.Tensor | None) -> BurnTensor:
    """Return a view of ``x`` with known metadata; see ``alias``."""
    size, stride, offset = metadata.geometry
    if _is_inference() is not x.is_inference():
        # A view of an inference tensor is an inference tensor; a view of an ordinary tensor is not.
        with torch.inference_mode(x.is_inference()):
            return alias_as(x, metadata, value)
    made: BurnTensor = _make(
        BurnTensor,
        size,
        strides=stride,
        storage_offset=offset,
        dtype=metadata.dtype,
        device=x._place,
    )
    storage = x._storage
    made._storage = storage
    made._value = value
    made._version_seen = -1 if value is None else storage.version
    made._place = x._place
    made._is_whole = x._is_whole and metadata is x._metadata and offset == 0
    made._metadata = metadata
    return made


def same_view(x: BurnTensor) -> BurnTensor:
    """Return another tensor that shows the same elements (``detach``).

    PyTorch detaches each gradient that it stores, so this repeats ``alias_as`` in less time.
    """
    if _is_inference() is not x.is_inference():
        return alias_as(x, x._metadata, None)
    metadata, storage = x._metadata, x._storage
    size, stride, offset = metadata.geometry
    made: BurnTensor
    if offset or not metadata.is_contiguous:
        made = _make(
            BurnTensor,
            size,
            strides=stride,
            storage_offset=offset,
            dtype=metadata.dtype,
            device=x._place,
        )
    else:
        made = _make(BurnTensor, size, dtype=metadata.dtype, device=x._place)
    made._storage = storage
    made._value, made._version_seen = x._value, x._version_seen
    made._place = x._place
    made._is_whole = x._is_whole
    made._metadata = metadata
    return made


def view_of_storage(
    storage: Storage, geometry: Geometry, value: br.Tensor | None, dtype: Any, place: Any
) -> BurnTensor:
    """Return a view of elements of a storage."""
    size, stride, offset = geometry
    made: BurnTensor = _make(
        BurnTensor, size, strides=stride, storage_offset=offset, dtype=dtype, device=place
    )
    made._storage = storage
    made._value = value
    made._version_seen = -1 if value is None else storage.version
    made._place = place
    made._is_whole = False
    made._metadata = metadata_of(geometry, dtype)
    return made


def geometry_of(x: BurnTensor) -> Geometry:
    """Return which elements of its storage a tensor shows."""
    return x._metadata.geometry


def value_of(x: BurnTensor) -> br.Tensor:
    """Return the elements that a tensor shows now."""
    storage = x._storage
    if x._version_seen == storage.version and x._value is not None:
        return x._value
    value = storage.read(geometry_of(x))
    x._value, x._version_seen = value, storage.version
    return value


def values_of(tensors: Sequence[BurnTensor]) -> list[br.Tensor]:
    """Return ``value_of`` of each tensor, in less time if most are unchanged since the last use."""
    return [
        value
        if x._version_seen == x._storage.version and (value := x._value) is not None
        else value_of(x)
        for x in tensors
    ]


def check_cast(value: br.Tensor, target: Any) -> None:
    """Raise ``RuntimeError`` if a result is of a higher kind than the target of a write.

    The kinds are those of ``torch.can_cast``: bools, integers, floats and complex numbers.
    """
    found, wanted = dtype_to_torch(value.dtype), target.dtype
    if found is not wanted and not torch.can_cast(found, wanted):
        raise RuntimeError(f"result type {found} can't be cast to the desired output type {wanted}")


def write(x: BurnTensor, value: br.Tensor) -> None:
    """Change the elements of a tensor, and so of all tensors that share them.

    The dtype is converted. Raises ``RuntimeError`` for another shape, as PyTorch does.
    """
    spec = value.handle.spec
    storage = x._storage
    if x._is_whole and storage.value is not None and storage.value.handle.spec is spec:
        # A training step writes to each parameter; the checks below would double the time.
        storage.value = x._value = value
        storage.version += 1
        x._version_seen = storage.version
        return
    if spec.shape != x._metadata.geometry.size:
        raise RuntimeError(
            f"output with shape {list(x.shape)} doesn't match the broadcast shape "
            f"{list(value.shape)}"
        )
    dtype = dtype_from_torch(x.dtype)
    if value.dtype is not dtype:
        if value.dtype.is_complex and not dtype.is_complex:
            value = br.real(value)
        value = converted_to(value, dtype)
    # ``resize_`` of another tensor may have enlarged the storage.
    if x._is_whole and storage.value is not None and storage.value.shape == spec.shape:
        storage.value = value
        storage.version += 1
    else:
        storage.write(geometry_of(x), value)
    x._value, x._version_seen = value, storage.version


def write_all(tensors: Sequence[BurnTensor], values: Sequence[br.Tensor]) -> None:
    """``write`` to each tensor, in less time if most have a storage of their own."""
    for x, value in zip(tensors, values, strict=True):
        storage = x._storage
        before = storage.value
        if x._is_whole and before is not None and before.handle.spec is value.handle.spec:
            storage.value = x._value = value
            storage.version += 1
            x._version_seen = storage.version
        else:
            write(x, value)


def upload(x: Any, place: Any) -> br.Tensor:
    """Return the elements of a CPU tensor on the device behind a ``torch.device``."""
    device = wire_device(place)
    x = x.detach().resolve_conj().resolve_neg()
    if x.dtype is torch.bfloat16:
        bits = br.tensor(x.contiguous().view(torch.int16).numpy().view(_bfloat16()), device=device)
        return bits
    return br.tensor(x.contiguous().numpy(), dtype=dtype_from_torch(x.dtype), device=device)


def to_cpu(x: BurnTensor) -> Any:
    """Wait for the elements and return them as a CPU tensor."""
    array = value_of(x).numpy()
    if x.dtype is torch.bfloat16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16
