"""The ``Tensor`` class: operators and methods, each implemented in a module of this package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np

from burn_remote.arguments.numbers import is_number, refuse_elements
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.diagnostics.pytorch_pairs import check_unpacking
from burn_remote.diagnostics.tracebacks import shortened
from burn_remote.dispatch.operators import operator_method
from burn_remote.functions import (
    activations,
    arithmetic,
    assignment,
    casting,
    complex_numbers,
    elementwise,
    gathering,
    indexing,
    linear_algebra,
    logic,
    manipulation,
    namespace_information,
    numpy_protocols,
    quantization,
    repetition,
    searching,
    selection,
    shifts,
    statistics,
    tracked_tensors,
)
from burn_remote.functions.attribute_errors import NoTranspose
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.iteration import iterated
from burn_remote.functions.tensor_value import TensorValue, is_tensor
from burn_remote_protocol.errors import UsageError

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice

__all__ = ["Tensor"]


def _check_matrices(x: TensorValue) -> None:
    """Raise ``NoTranspose`` for a tensor of fewer than two axes."""
    if x.ndim < 2:
        way = "write x[:, None] for a column, x[None, :] for a row" if x.ndim else "use it as it is"
        raise NoTranspose(f"{x.handle.spec} is not a matrix, so it has no transpose; {way}")


@final
class Tensor(TensorValue):
    """An array on a device, whose elements never change: ``x[i] = v`` makes ``x`` another array.

    Operators and methods issue operations and return at once; shape and dtype of the result are
    known without waiting. Only these wait for the server: conversions to Python and NumPy
    (``numpy``, ``item``, ``tolist``, ``bool(x)``, ``int(x)``, ``float(x)``, ``complex(x)``,
    ``f"{x:.3f}"``, use as an index), ``value in x``, ``x[mask]`` and other methods whose result has
    a size that depends on elements, and ``to`` between a local device and a server.

    ``requires_grad_`` tracks a tensor: operations on it are recorded, and ``backward`` on a result
    computes its gradient, ``grad``. ``burn_remote.grad`` differentiates functions.

    Shapes broadcast as in NumPy. Operands of different dtypes are converted to their common dtype.
    A number is converted to the tensor's dtype. If its kind is higher, such as that of a float
    beside integers, the tensor is converted (``arguments/promotion.py`` has the rules). A NumPy
    array of up to 64 KiB is sent to the tensor's device; a larger one raises ``ArgumentMismatch``.
    Tensors of different devices raise ``DeviceMismatch``, dtypes without a common one
    ``DTypeMismatch``, and incompatible shapes ``ShapeMismatch``.
    """

    __slots__ = ()

    # ``==`` compares elements, so the hash is by identity, as in PyTorch.
    __hash__ = object.__hash__

    @shortened
    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if is_tensor(other) or is_number(other) or isinstance(other, np.ndarray):
            return logic.equal(self, other)
        refuse_elements(other)
        return NotImplemented

    @shortened
    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if is_tensor(other) or is_number(other) or isinstance(other, np.ndarray):
            return logic.not_equal(self, other)
        refuse_elements(other)
        return NotImplemented

    __lt__ = logic.LOWER.method(logic.less)
    __le__ = logic.LOWER_EQUAL.method(logic.less_equal)
    __gt__ = logic.GREATER.method(logic.greater)
    __ge__ = logic.GREATER_EQUAL.method(logic.greater_equal)

    __add__ = arithmetic.ADD.method(arithmetic.add)
    __radd__ = __add__
    __sub__ = arithmetic.SUB.method(arithmetic.subtract)
    __rsub__ = shortened(arithmetic.reflected_subtract)
    __mul__ = arithmetic.MUL.method(arithmetic.multiply)
    __rmul__ = __mul__
    __truediv__ = arithmetic.FLOAT_DIV.method(arithmetic.divide)
    __rtruediv__ = shortened(arithmetic.reflected_divide)
    __floordiv__ = shortened(arithmetic.floor_divide)
    __rfloordiv__ = shortened(arithmetic.reflected_floor_divide)
    __mod__ = shortened(arithmetic.remainder)
    __rmod__ = shortened(arithmetic.reflected_remainder)
    __divmod__ = shortened(arithmetic.divide_with_remainder)
    __pow__ = shortened(arithmetic.pow)
    __rpow__ = shortened(arithmetic.reflected_pow)
    __matmul__ = operator_method(linear_algebra.matmul, linear_algebra.MATMUL)
    __rmatmul__ = shortened(linear_algebra.reflected_matmul)
    __neg__ = arithmetic.negative
    __pos__ = elementwise.positive
    __abs__ = elementwise.abs

    __iadd__ = shortened(tracked_tensors.add_in_place)
    __isub__ = shortened(tracked_tensors.subtract_in_place)
    __imul__ = shortened(tracked_tensors.multiply_in_place)
    __itruediv__ = shortened(tracked_tensors.divide_in_place)
    __ifloordiv__ = shortened(tracked_tensors.floor_divide_in_place)
    __imod__ = shortened(tracked_tensors.remainder_in_place)
    __ipow__ = shortened(tracked_tensors.power_in_place)

    __and__ = shortened(logic.bitwise_and)
    __rand__ = shortened(logic.bitwise_and)
    __or__ = shortened(logic.bitwise_or)
    __ror__ = shortened(logic.bitwise_or)
    __xor__ = shortened(logic.bitwise_xor)
    __rxor__ = shortened(logic.bitwise_xor)
    __lshift__ = shortened(shifts.bitwise_left_shift)
    __rlshift__ = shortened(shifts.reflected_left_shift)
    __rshift__ = shortened(shifts.bitwise_right_shift)
    __rrshift__ = shortened(shifts.reflected_right_shift)
    __invert__ = logic.bitwise_invert

    __getitem__ = indexing.get_item
    __setitem__ = assignment.assign_item
    set = indexing.set_item

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix. Raises ``ShapeMismatch`` unless there are two axes."""
        if self.ndim > 2:
            raise NoTranspose(
                f"T is for matrices, and {self.handle.spec} has {self.ndim} axes; x.mT swaps the "
                "last two, and x.permute_dims(axes) puts all in another order"
            )
        _check_matrices(self)
        return manipulation.swapaxes(self, 0, 1)

    real = property(complex_numbers.real)
    imag = property(complex_numbers.imag)

    @property
    def mH(self) -> Tensor:
        """The conjugate transpose of matrices: ``conj`` of ``mT``."""
        return self.mT.conj()

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two axes swapped. Raises ``ShapeMismatch`` for fewer axes."""
        _check_matrices(self)
        return manipulation.matrix_transpose(self)

    def __round__(self, digits: int | None = None) -> Tensor:
        """Return ``x.round(digits)``. Refuse ``round(x)``: Python's function gives an integer."""
        if digits is None:
            raise TypeError("round(x) is for numbers; for a tensor, write x.round()")
        return elementwise.round(self, digits)

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over the first axis without waiting.

        A program that reads the elements one by one is warned once that each costs a round trip.
        Raises ``TypeError`` for a 0-d tensor, and ``ShapeMismatch`` where ``values, indices =
        x.max(1)`` expects PyTorch's pair.
        """
        check_unpacking(self.handle.spec)
        if not self.shape:
            raise TypeError("a 0-d tensor cannot be iterated over; item() returns its element")
        return iterated(self)

    @explained
    def to(self, device: AnyDevice) -> Tensor:
        """Move the tensor to another device; return ``self`` if it is already there.

        Between servers, the elements are transferred directly, and this call does not wait. Between
        a local device and a server, they pass through this process, and the call waits for them.
        """
        runners = checked_device(device).runners
        handle = self.handle
        if handle.client.session is runners.session:
            return self
        return Tensor(handle.client.move(handle, runners))

    def to_device(self, device: AnyDevice, /, *, stream: None = None) -> Tensor:
        """Move the tensor to another device (the array API's name for ``to``).

        ``stream`` must be ``None``, because a server manages its own streams.
        """
        if stream is not None:
            raise UsageError(f"stream must be None, not {stream!r}: servers manage streams")
        return self.to(device)

    __array_namespace__ = namespace_information.array_namespace
    __array_ufunc__ = numpy_protocols.array_ufunc
    __array_function__ = numpy_protocols.array_function

    astype = casting.astype
    dequantize = casting.dequantize
    quantize = quantization.quantize

    requires_grad = property(tracked_tensors.requires_grad, tracked_tensors.set_requires_grad)
    is_leaf = property(tracked_tensors.is_leaf)
    grad = property(tracked_tensors.gradient, tracked_tensors.set_gradient)
    data = property(tracked_tensors.detached_elements, tracked_tensors.set_elements)
    requires_grad_ = tracked_tensors.requires_grad_
    backward = tracked_tensors.backward
    clone = tracked_tensors.clone
    detach = tracked_tensors.detach
    __copy__ = tracked_tensors.copied
    register_hook = tracked_tensors.register_hook
    retain_grad = tracked_tensors.retain_grad

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return tracked_tensors.copied(self)

    abs = elementwise.abs
    angle = complex_numbers.angle
    conj = complex_numbers.conj
    acos = elementwise.acos
    acosh = elementwise.acosh
    asin = elementwise.asin
    asinh = elementwise.asinh
    atan = elementwise.atan
    atanh = elementwise.atanh
    ceil = elementwise.ceil
    cos = elementwise.cos
    cosh = elementwise.cosh
    erf = elementwise.erf
    exp = elementwise.exp
    expm1 = elementwise.expm1
    floor = elementwise.floor
    isfinite = elementwise.isfinite
    isinf = elementwise.isinf
    isnan = elementwise.isnan
    log = elementwise.log
    log1p = elementwise.log1p
    log2 = elementwise.log2
    log10 = elementwise.log10
    reciprocal = arithmetic.reciprocal
    round = elementwise.round
    rsqrt = elementwise.rsqrt
    sign = elementwise.sign
    sin = elementwise.sin
    sinh = elementwise.sinh
    sqrt = elementwise.sqrt
    square = elementwise.square
    tan = elementwise.tan
    tanh = elementwise.tanh
    trunc = elementwise.trunc

    clip = selection.clip
    mask_fill = selection.mask_fill

    broadcast_to = manipulation.broadcast_to
    expand_dims = manipulation.expand_dims
    flatten = manipulation.flatten
    flip = manipulation.flip
    moveaxis = manipulation.moveaxis
    permute_dims = manipulation.permute_dims
    repeat = repetition.repeat
    reshape = manipulation.reshape
    roll = repetition.roll
    split = manipulation.split
    squeeze = manipulation.squeeze
    swapaxes = manipulation.swapaxes
    tile = repetition.tile
    transpose = manipulation.transpose
    unfold = manipulation.unfold

    # Names of PyTorch for functions that mean the same.
    clamp = selection.clip
    masked_fill = selection.mask_fill
    permute = manipulation.permute_dims
    unsqueeze = manipulation.expand_dims
    view = manipulation.reshape

    gather = gathering.gather
    gather_nd = gathering.gather_nd
    scatter = gathering.scatter
    scatter_nd = gathering.scatter_nd
    take = gathering.take
    take_along_axis = gathering.take_along_axis
    update_along = gathering.update_along

    all = statistics.all
    any = statistics.any
    count_nonzero = statistics.count_nonzero
    max = statistics.max
    max_abs = statistics.max_abs
    mean = statistics.mean
    min = statistics.min
    prod = statistics.prod
    std = statistics.std
    sum = statistics.sum
    var = statistics.var

    cummax = statistics.cummax
    cummin = statistics.cummin
    cumulative_prod = statistics.cumulative_prod
    cumulative_sum = statistics.cumulative_sum

    argmax = searching.argmax
    argmin = searching.argmin
    argsort = searching.argsort
    argtopk = searching.argtopk
    max_with_indices = searching.max_with_indices
    min_with_indices = searching.min_with_indices
    sort = searching.sort
    sort_with_indices = searching.sort_with_indices
    topk = searching.topk

    elu = activations.elu
    gelu = activations.gelu
    leaky_relu = activations.leaky_relu
    log_softmax = activations.log_softmax
    relu = activations.relu
    sigmoid = activations.sigmoid
    silu = activations.silu
    softmax = activations.softmax
    softplus = activations.softplus
