"""What is a tensor before it can compute: a handle, its attributes, and the ways to wait for it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from burn_remote.diagnostics.foreign_names import attribute_advice
from burn_remote.runner import TensorHandle
from burn_remote.tensors import reading
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from typing_extensions import TypeIs

    from burn_remote.device import Device
    from burn_remote.sessions.pending import Pending
    from burn_remote.tensor import Tensor
    from burn_remote.tensors.arrays import Array
    from burn_remote_protocol.dtypes import DType
    from burn_remote_protocol.tensors import Shape

__all__ = ["TensorValue", "is_tensor"]


class TensorValue:
    """An immutable array on a device, or the promise of one.

    Attributes and ``repr`` never ask the server. What waits for it: ``numpy``, ``item``,
    ``tolist``, ``f"{x:.3f}"``, ``bool()``, ``int()``, ``float()``, ``complex()``, a use as an
    index, and NumPy's conversions (``numpy.asarray(x)``). Nothing else does.
    """

    __slots__ = ("__weakref__", "handle")

    # NumPy must leave ``array * tensor`` to us: it would read the tensor without being asked to.
    __array_ufunc__ = None

    def __init__(self, handle: TensorHandle) -> None:
        self.handle = handle

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
    def size(self) -> int:
        """The number of elements: no method, as NumPy has it; ``shape[0]`` is that of an axis."""
        return self.handle.spec.size

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take on the wire, with the scales of quantized ones."""
        return self.handle.spec.nbytes

    @property
    def device(self) -> Device:
        """Where the elements are."""
        return self.handle.client.device

    if not TYPE_CHECKING:  # a type checker must keep finding what is missing

        def __getattr__(self, name: str) -> Any:
            if not hasattr(type(self), name):
                raise AttributeError(
                    f"a tensor has no attribute {name!r}{attribute_advice(name)}",
                    name=name,
                    obj=self,
                )
            if name == "handle" or not isinstance(self.handle, TensorHandle):
                raise AttributeError(
                    "Tensor(…) is made of a handle; burn_remote.tensor(data) makes one of data"
                )
            # A property failed, and Python has forgotten with what: it says it again.
            return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def __format__(self, form: str) -> str:
        """Wait for the only element where there is a format: ``f"{loss:.3f}"``."""
        return format(self.item(), form) if form else repr(self)

    def __len__(self) -> int:
        """Return the size of the first axis. Raises ``ShapeMismatch`` for a 0-d tensor."""
        if not self.shape:
            raise ShapeMismatch("a 0-d tensor has no length")
        return self.shape[0]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # A second handle of the same tensor would free it twice.
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tensor is on its device and cannot be pickled; pickle x.numpy() instead")

    def read(self) -> Pending[Array]:
        """Ask for the elements without waiting: ``await`` the result, or call its ``result()``.

        Returns a pending NumPy array of this shape, writable and its holder's own, with
        ``ml_dtypes.bfloat16`` for bfloat16. Waiting for it raises ``OperationFailed`` when an
        operation that it came from failed, and ``ConnectionLost``.
        """
        return reading.read_array(self.handle)

    def numpy(self) -> Array:
        """Wait for the elements, as a NumPy array; see ``read``."""
        return reading.wait_array(self.handle)

    def item(self) -> Any:
        """Wait for the only element, as a Python number. Raises ``ShapeMismatch`` for more."""
        if self.size != 1:
            raise ShapeMismatch(f"{self.handle.spec} has {self.size:,} elements, not one")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Wait for the elements, as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError("a tensor never changes; y = x.set(index, value) makes another")

    def __bool__(self) -> bool:
        """Wait for the only element and return whether it is true."""
        if self.size != 1:
            raise ShapeMismatch(
                f"{self.handle.spec} has {self.size:,} elements, and is neither true nor false; "
                "join truths with & | ~, or write x.all() or x.any()"
            )
        return bool(self.item())

    def __int__(self) -> int:
        """Wait for the only element."""
        return int(self.item())

    def __float__(self) -> float:
        """Wait for the only element."""
        return float(self.item())

    def __complex__(self) -> complex:
        """Wait for the only element."""
        return complex(self.item())

    def __index__(self) -> int:
        """Wait for the only element. Raises ``DTypeMismatch`` unless it is an integer."""
        if not self.dtype.is_integer:
            raise DTypeMismatch(f"{self.handle.spec} cannot be an index; only integers can")
        return int(self.item())

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        """Wait for the elements: this is what ``numpy.asarray`` calls.

        Raises ``ValueError`` for ``copy=False``: the elements are on the server.
        """
        if copy is False:
            raise ValueError("the elements must be copied from the server: copy=False cannot be")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: object,
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> Any:
        """Let NumPy's functions read tensors, but for those that the tensor has itself."""
        name = function.__name__
        if hasattr(self, name):
            raise TypeError(
                f"numpy.{name} computes in this program, not on the device; write x.{name}(…), "
                f"or numpy.{name}(x.numpy(), …)"
            )
        return function(*map(_read, arguments), **{key: _read(one) for key, one in options.items()})


def _read(argument: Any) -> Any:
    """Return an argument of a NumPy function with arrays for tensors, in lists and tuples too."""
    if isinstance(argument, TensorValue):
        return argument.numpy()
    if isinstance(argument, list | tuple):
        return type(argument)(map(_read, argument))
    return argument


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Whether a value is a ``Tensor`` (the class itself is a layer above)."""
    return isinstance(value, TensorValue)
