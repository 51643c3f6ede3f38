"""Attributes of a tensor, and the conversions that wait for its elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from burn_remote.arguments.arrays import Array, array_from, numpy_dtype
from burn_remote.arguments.axes import normal_axis
from burn_remote.autodiff.nodes import TrackedHandle
from burn_remote.diagnostics.advice import attribute_advice
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.printing import html_text, plain_text
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.pending import Pending, sent
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    BurnRemoteError,
    DTypeMismatch,
    ShapeMismatch,
    UsageError,
    type_name,
)
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import TensorData

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from typing_extensions import TypeIs

    from burn_remote.functions.device_class import Device
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.dtypes import DType
    from burn_remote_protocol.tensors import Shape

__all__ = [
    "ElementCount",
    "TensorValue",
    "holds_tensors",
    "is_tensor",
    "read",
    "read_array",
    "read_arrays",
    "read_size",
    "wait_array",
]

# DLPack's code for memory of the CPU, ``kDLCPU``.
DLPACK_CPU: Final = 1


_NO_DATA: Final = (
    "Tensor(…) takes a handle; burn_remote.tensor(data) makes a tensor of data, "
    "burn_remote.zeros(shape) one of zeros"
)


class ElementCount(int):
    """The number of elements of a tensor. It can be called, because ``x.size()`` is PyTorch's."""

    shape: Shape

    def __call__(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of axis ``dim``. Raises ``IndexOutOfRange``."""
        return self.shape if dim is None else self.shape[normal_axis(dim, len(self.shape))]

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle and copy as an ordinary integer."""
        return int, (int(self),)


class TensorValue:
    """Base class of ``Tensor``: an immutable array on a device, possibly not yet computed.

    Attributes and ``repr`` never wait for the server. These do: ``numpy``, ``item``, ``tolist``,
    ``f"{x:.3f}"``, ``bool()``, ``int()``, ``float()``, ``complex()``, ``value in x``, use as an
    index, and ``numpy.asarray(x)``. Functions of NumPy compute on the device (``numpy.exp(x)``), or
    raise ``TypeError`` if there is no such function here (``functions/numpy_protocols.py``).
    """

    __slots__ = ("__weakref__", "handle")

    def __init__(self, handle: TensorHandle, *more: object) -> None:
        self.handle = handle
        try:
            handle.spec  # noqa: B018
        except AttributeError:
            raise ArgumentMismatch(_NO_DATA) from None
        if more:
            raise ArgumentMismatch(_NO_DATA)

    @property
    def shape(self) -> Shape:
        """The number of elements along each axis."""
        return self.handle.spec.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.handle.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.handle.spec.shape)

    @property
    def size(self) -> ElementCount:
        """The number of elements, as in NumPy; ``x.size()`` is the shape, as in PyTorch."""
        spec = self.handle.spec
        count = ElementCount(spec.size)
        count.shape = spec.shape
        return count

    @property
    def nbytes(self) -> int:
        """The size of the elements on the wire in bytes, including the scales of quantized ones."""
        return self.handle.spec.nbytes

    @property
    def device(self) -> Device:
        """The device that holds the elements."""
        device: Device = self.handle.client.device
        return device

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device of exported elements, which is always this process's memory."""
        return DLPACK_CPU, 0

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Wait for the elements and export a copy of them (called by ``from_dlpack``).

        Raises ``BufferError`` for ``copy=False``, any device but the memory of this process, and
        dtypes that NumPy does not export.
        """
        if copy is False:
            raise BufferError("copy=False is impossible: the elements are copied from the server")
        if dl_device is not None and dl_device[0] != DLPACK_CPU:
            raise BufferError(f"elements are exported to this process's memory, not {dl_device}")
        if stream is not None:
            raise BufferError(f"memory of this process has no stream, but stream is {stream!r}")
        return self.numpy().__dlpack__(max_version=max_version)

    if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names

        def __getattr__(self, name: str) -> Any:
            if not hasattr(type(self), name):
                raise AttributeError(
                    f"a tensor has no attribute {name!r}{attribute_advice(name, type(self))}",
                    name=name,
                )
            if name == "handle":
                raise AttributeError(_NO_DATA)
            # A property raised AttributeError: re-run it to raise the original exception.
            return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        """Return shape, dtype and device without waiting; see ``set_printoptions`` for elements."""
        return plain_text(self, self._tracked())

    def _repr_html_(self) -> str:
        """Return the text that a notebook shows: the contents of ``repr``, as HTML."""
        return html_text(self, self._tracked())

    def _tracked(self) -> str:
        return ", requires_grad=True" if type(self.handle) is TrackedHandle else ""

    def __format__(self, form: str) -> str:
        """Format the only element (waits for it); without a format spec, return ``repr``."""
        return format(self.item(), form) if form else repr(self)

    def __len__(self) -> int:
        """Return the size of the first axis. Raises ``TypeError`` for a 0-d tensor."""
        if not self.shape:
            raise TypeError("a 0-d tensor has no length")
        return self.shape[0]

    def __contains__(self, value: object) -> bool:
        """Return whether an element equals ``value``, as NumPy does. Waits for one round trip."""
        found: Any = self == value
        return found if isinstance(found, bool) else bool(found.any())

    def __reduce__(self) -> NoReturn:
        raise ArgumentMismatch(
            "a tensor lives on its device and cannot be pickled; pickle x.numpy(), and make a "
            "tensor of the array over there: burn_remote.tensor(array, device=…)"
        )

    if not TYPE_CHECKING:  # hidden from type checkers, which must report ``await x``

        def __await__(self) -> NoReturn:
            raise TypeError(
                "a tensor cannot be awaited; write array = await x.read(), or "
                "await burn_remote.aio.read([x, y]) for several"
            )

    def read(self) -> Pending[Array]:
        """Request the elements without waiting: ``await`` the result, or call its ``result()``.

        The result is a new writable NumPy array of this shape and the corresponding dtype
        (``ml_dtypes.bfloat16`` for bfloat16). Waiting for it raises ``OperationFailed`` if an
        operation that produced this tensor failed, and ``ConnectionLost``.
        """
        return read_array(self.handle)

    def numpy(self) -> Array:
        """Wait for the elements and return them as a NumPy array; see ``read``."""
        return wait_array(self.handle)

    def item(self, *place: int) -> Any:
        """Wait for the only element, or the one at ``place``, and return it as a Python number.

        ``place`` is an index for each axis, or one index into the elements in C order. Raises
        ``ShapeMismatch`` unless this is exactly one element, and ``IndexOutOfRange``.
        """
        if place:
            return self._element(place).item()
        size = self.handle.spec.size
        if size != 1:
            raise ShapeMismatch(
                f"{self.handle.spec} has {size:,} elements, not one; "
                "x.tolist() and x.numpy() return them all"
            )
        return self.numpy().item()

    def _element(self, place: tuple[int, ...]) -> Tensor:
        x: Any = self
        if len(place) == 1 and self.ndim != 1:
            x = x.reshape(-1)
        found: Tensor = x[place]
        return found

    def tolist(self) -> Any:
        """Wait for the elements and return them as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        """Wait for the only element and return its truth value."""
        size = self.handle.spec.size
        if size != 1:
            raise ShapeMismatch(
                f"the truth value of {self.handle.spec} with {size:,} elements is ambiguous; "
                "combine conditions with & | ~, or use x.all() or x.any()"
            )
        return bool(self.item())

    def __int__(self) -> int:
        """Wait for the only element and convert it."""
        return int(self.item())

    def __float__(self) -> float:
        """Wait for the only element and convert it."""
        return float(self.item())

    def __complex__(self) -> complex:
        """Wait for the only element and convert it."""
        return complex(self.item())

    def __index__(self) -> int:
        """Wait for the only element. Raises ``DTypeMismatch`` unless it is an integer."""
        if not self.dtype.is_integer:
            raise DTypeMismatch(
                f"{self.handle.spec} cannot be an index, which is an integer; int(x) truncates the "
                "element"
            )
        return int(self.item())

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        """Wait for the elements and return them as an array (called by ``numpy.asarray``).

        Raises ``ValueError`` for ``copy=False``, because the elements are on the server.
        """
        if copy is False:
            raise ValueError("copy=False is impossible: the elements are copied from the server")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)


def read_size(count: Tensor, result: str, way: str) -> int:
    """Wait for a number that is the size of a result, such as the number of true elements.

    Raises ``UsageError`` in a function that is being compiled, where nothing can be read. Its text
    says that the shape of ``result`` depends on elements, and suggests ``way`` instead.
    """
    try:
        return int(count.item())
    except UsageError as error:
        line = str(error).partition(": the compiled function")[0]
        raise UsageError(
            f"{line}: a compiled function has results of fixed shapes, but the shape of {result} "
            f"depends on elements; {way}, or call it outside of the compiled function"
        ) from None


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Return whether a value is a ``Tensor``."""
    return isinstance(value, TensorValue)


def holds_tensors(data: Any) -> bool:
    """Return whether nested lists contain tensors, each of which NumPy would read separately.

    Below each level, only its first list is examined, because all its lists have one depth.
    """
    while isinstance(data, list | tuple) and data:
        if any(is_tensor(one) for one in data):
            return True
        data = data[0]
    return False


@explained
def read(tensors: Iterable[Tensor]) -> list[Array]:
    """Wait for the elements of several tensors, on any devices, in one round trip.

    Returns one NumPy array for each, as ``Tensor.numpy`` does. All requests are sent before the
    first wait. Raises the error of the first tensor that failed. A coroutine awaits
    ``asyncio.gather(*(x.read() for x in tensors))`` instead.
    """
    return [one.result() for one in sent(read_arrays(tensors, "x.numpy()"))]


def read_arrays(tensors: Iterable[Tensor], for_one: str) -> list[Pending[Array]]:
    """Request elements of tensors; errors name ``for_one``, the call that reads a single one."""
    if is_tensor(tensors):
        raise ArgumentMismatch(
            f"read takes several tensors, and would read this one row by row; write {for_one}"
        )
    members = list(tensors)
    for one in members:
        if not is_tensor(one):
            raise ArgumentMismatch(
                f"read takes tensors, and one element is of type {type_name(one)}; for nested "
                "containers, such as a dictionary, write "
                "read(burn_remote.tree.leaves(containers))"
            )
    return [read_array(one.handle) for one in members]


def read_array(handle: TensorHandle) -> Pending[Array]:
    """Request the elements of a tensor and return the pending NumPy array.

    Raises ``DTypeMismatch`` for a quantized tensor, because NumPy has no such dtype.
    """
    numpy_dtype(handle.spec.dtype)
    return _arriving(handle.client.read_tensor_async(handle))


def wait_array(handle: TensorHandle) -> Array:
    """Request a tensor's elements and wait for them: ``read_array`` with less overhead."""
    numpy_dtype(handle.spec.dtype)
    return array_from(handle.client.read_tensor_async(handle).result())


def _arriving(data: Pending[TensorData]) -> Pending[Array]:
    array: Pending[Array]
    source = _Arriving(data)
    array = source.array = Pending(source)
    data.when_done(source.deliver)
    return array


class _Arriving:
    """Source of a pending array: completes it when its data arrive."""

    def __init__(self, data: Pending[TensorData]) -> None:
        self._data = data
        # ``None`` once it is complete: a reference cycle would keep its elements until a garbage
        # collection.
        self.array: Pending[Array] | None = None

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Wait for the data, at most ``timeout_seconds``; see ``Source``."""
        try:
            self._data.result(timeout_seconds)
        except (BurnRemoteError, MemoryError, TimeoutError) as error:
            pass_on_of_signal_handler(error)
            if not (self._data.done() or isinstance(error, TimeoutError)):
                raise  # it is not the reply's, but the wait's own
        # Another thread may have received the data but not yet called ``deliver``.
        if self._data.done() and not pending.done():
            self.deliver(self._data)

    def send(self) -> None:
        """Send the request of the data; see ``Source``."""
        self._data.send()

    def attend(self) -> None:
        """Have the data received even if no thread waits for them; see ``Source``."""
        self._data.attend()

    def deferred(self, callback: Callable[[Pending[Any]], object]) -> Callable[..., object]:
        """Return a function that queues ``callback`` for the session's thread; see ``Source``."""
        return self._data.deferred(callback)

    def deliver(self, data: Pending[TensorData]) -> None:
        """Complete the array with the data, which have arrived."""
        array = self.array
        if array is None:  # another thread has completed it
            return
        try:
            array.complete(array_from(data.result()))
        except Exception as error:  # also MemoryError: the waiting caller must get it
            pass_on_of_signal_handler(error)
            # Its traceback refers to this frame, and so to the caller's.
            array.fail(error.with_traceback(None))
        self.array = None
