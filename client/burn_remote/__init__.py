"""Tensors on remote devices: computation on them, and transfers between devices.

Open a device with ``RemoteDevice(address)`` or ``LocalDevice()``, make tensors with ``tensor``,
``zeros`` and similar functions, and read them with ``x.numpy()``. Function names are those of the
Python array API standard; ``burn_remote.functional``, ``init`` and ``random`` have more.

Gradients: ``grad`` and ``value_and_grad`` differentiate functions, as in JAX; ``autograd`` and the
methods ``requires_grad_`` and ``backward`` of tensors are those of PyTorch.
"""

from importlib.metadata import version
from math import e, inf, nan, pi
from typing import TYPE_CHECKING

import burn_remote.gradient_rules  # noqa: F401 - fills the table of gradient rules
from burn_remote import (
    aio,
    autograd,
    distributed,
    fft,
    functional,
    gradients,
    init,
    linalg,
    optim,
    random,
    tree,
)
from burn_remote.autodiff.checkpointing import checkpoint
from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.autodiff.grad_mode import enable_grad, no_grad
from burn_remote.devices.addresses import (
    DeviceId,
    address_to_id,
    id_to_address,
)
from burn_remote.devices.local import LocalDevice
from burn_remote.devices.named_devices import device
from burn_remote.devices.remote import RemoteDevice
from burn_remote.diagnostics.advice import missing_from
from burn_remote.distributed.data_parallel import DataParallel
from burn_remote.function_transforms import grad, jvp, value_and_grad, vjp
from burn_remote.functions.arithmetic import (
    add,
    atan2,
    copysign,
    divide,
    floor_divide,
    hypot,
    logaddexp,
    multiply,
    negative,
    nextafter,
    pow,
    reciprocal,
    remainder,
    subtract,
    trunc_divide,
)
from burn_remote.functions.casting import (
    astype,
    dequantize,
)
from burn_remote.functions.complex_numbers import (
    angle,
    complex,
    conj,
    imag,
    real,
)
from burn_remote.functions.correlations import corrcoef, cov
from burn_remote.functions.counting import bincount, histogram, isin, searchsorted
from burn_remote.functions.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from burn_remote.functions.custom_operations import custom
from burn_remote.functions.default_device import default_device, set_default_device
from burn_remote.functions.device_class import Device
from burn_remote.functions.distinct import (
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from burn_remote.functions.dlpack import from_dlpack
from burn_remote.functions.dtype_information import (
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from burn_remote.functions.einsum import einsum
from burn_remote.functions.elementwise import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    positive,
    round,
    rsqrt,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)
from burn_remote.functions.gathering import (
    gather,
    gather_nd,
    scatter,
    scatter_nd,
    take,
    take_along_axis,
    update_along,
)
from burn_remote.functions.interpolation_and_polynomials import interp, polyfit, polyval
from burn_remote.functions.joining import (
    array_split,
    column_stack,
    dsplit,
    dstack,
    fliplr,
    flipud,
    hsplit,
    hstack,
    rot90,
    vsplit,
    vstack,
)
from burn_remote.functions.linear_algebra import (
    cross,
    kron,
    matmul,
    outer,
    tensordot,
    vecdot,
    vector_norm,
)
from burn_remote.functions.logic import (
    bitwise_and,
    bitwise_invert,
    bitwise_or,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from burn_remote.functions.manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flatten,
    flip,
    matrix_transpose,
    moveaxis,
    permute_dims,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    transpose,
    unfold,
    unstack,
)
from burn_remote.functions.manipulation import concat as cat
from burn_remote.functions.manipulation import expand_dims as unsqueeze
from burn_remote.functions.manipulation import permute_dims as permute
from burn_remote.functions.matrix_parts import diag, tril, triu
from burn_remote.functions.namespace_information import API_VERSION
from burn_remote.functions.namespace_information import namespace_info as __array_namespace_info__
from burn_remote.functions.nan_statistics import (
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
)
from burn_remote.functions.nonzero_elements import argwhere, boolean_mask, nonzero, where
from burn_remote.functions.order_statistics import median, percentile, quantile
from burn_remote.functions.padding import pad
from burn_remote.functions.printing import set_printoptions
from burn_remote.functions.quantization import (
    fake_quantize,
    quant_scheme,
    quantize,
)
from burn_remote.functions.quantized_data import (
    QuantizedArray,
    quantized_tensor,
    read_quantized,
)
from burn_remote.functions.repetition import (
    diff,
    repeat,
    roll,
    tile,
)
from burn_remote.functions.searching import (
    argmax,
    argmin,
    argsort,
    argtopk,
    max_with_indices,
    min_with_indices,
    sort,
    sort_with_indices,
    topk,
)
from burn_remote.functions.selection import (
    clip,
    mask_fill,
    maximum,
    minimum,
)
from burn_remote.functions.selection import clip as clamp
from burn_remote.functions.shifts import bitwise_left_shift, bitwise_right_shift
from burn_remote.functions.similarity import allclose, array_equal, isclose
from burn_remote.functions.statistics import (
    all,
    any,
    count_nonzero,
    cummax,
    cummin,
    cumulative_prod,
    cumulative_sum,
    max,
    max_abs,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from burn_remote.functions.tensor import (
    Tensor,
)
from burn_remote.functions.tensor_value import (
    read,
)
from burn_remote.graphs.compiled import (
    compile,
)
from burn_remote.runner.interface import (
    RunnerClient,
    TensorHandle,
)
from burn_remote.runner.pending import (
    Pending,
)
from burn_remote.sessions.traffic import (
    Traffic,
)
from burn_remote.tensor_files.load_and_save import load, save
from burn_remote.tensor_files.safetensors_files import (
    load_safetensors,
    safetensors_metadata,
    save_safetensors,
)
from burn_remote.tensor_files.safetensors_header import InvalidCheckpoint
from burn_remote_protocol.dtypes import (
    BF16 as bfloat16,
)
from burn_remote_protocol.dtypes import (
    BOOL as bool,
)
from burn_remote_protocol.dtypes import (
    C64 as complex64,
)
from burn_remote_protocol.dtypes import (
    C128 as complex128,
)
from burn_remote_protocol.dtypes import (
    F16 as float16,
)
from burn_remote_protocol.dtypes import (
    F32 as float32,
)
from burn_remote_protocol.dtypes import (
    F64 as float64,
)
from burn_remote_protocol.dtypes import (
    FLEX32 as flex32,
)
from burn_remote_protocol.dtypes import (
    I8 as int8,
)
from burn_remote_protocol.dtypes import (
    I16 as int16,
)
from burn_remote_protocol.dtypes import (
    I32 as int32,
)
from burn_remote_protocol.dtypes import (
    I64 as int64,
)
from burn_remote_protocol.dtypes import (
    U8 as uint8,
)
from burn_remote_protocol.dtypes import (
    U16 as uint16,
)
from burn_remote_protocol.dtypes import (
    U32 as uint32,
)
from burn_remote_protocol.dtypes import (
    U64 as uint64,
)
from burn_remote_protocol.dtypes import DType, DTypeUsage, QuantScheme
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    BurnRemoteError,
    ClosedDevice,
    CollectiveFailed,
    ConnectionFailed,
    ConnectionLost,
    DeviceLost,
    DeviceMismatch,
    DTypeMismatch,
    FileUnavailable,
    HandshakeRefused,
    IndexOutOfRange,
    LimitExceeded,
    OperationFailed,
    OperationLost,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
    SessionLost,
    ShapeMismatch,
    TransferFailed,
    UnknownTensor,
    Unsupported,
    UsageError,
    VersionMismatch,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = [
    "ArgumentMismatch",
    "BurnRemoteError",
    "ClosedDevice",
    "CollectiveFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "DType",
    "DTypeMismatch",
    "DTypeUsage",
    "DataParallel",
    "Device",
    "DeviceId",
    "DeviceLost",
    "DeviceMismatch",
    "FileUnavailable",
    "HandshakeRefused",
    "IndexOutOfRange",
    "InvalidCheckpoint",
    "LimitExceeded",
    "LocalDevice",
    "OperationFailed",
    "OperationLost",
    "OutOfMemory",
    "Pending",
    "ProtocolViolation",
    "QuantScheme",
    "QuantizedArray",
    "QuotaExceeded",
    "RemoteDevice",
    "RunnerClient",
    "SessionLost",
    "ShapeMismatch",
    "Tensor",
    "TensorData",
    "TensorHandle",
    "TensorSpec",
    "Traffic",
    "TransferFailed",
    "UnknownTensor",
    "Unsupported",
    "UsageError",
    "VersionMismatch",
    "__array_namespace_info__",
    "abs",
    "acos",
    "acosh",
    "add",
    "address_to_id",
    "aio",
    "all",
    "allclose",
    "angle",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "argtopk",
    "argwhere",
    "array_equal",
    "array_split",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "autograd",
    "bfloat16",
    "bincount",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "boolean_mask",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "cat",
    "ceil",
    "checkpoint",
    "clamp",
    "clip",
    "column_stack",
    "compile",
    "complex",
    "complex64",
    "complex128",
    "concat",
    "conj",
    "copysign",
    "corrcoef",
    "cos",
    "cosh",
    "count_nonzero",
    "cov",
    "cross",
    "cummax",
    "cummin",
    "cumulative_prod",
    "cumulative_sum",
    "custom",
    "custom_vjp",
    "default_device",
    "dequantize",
    "device",
    "diag",
    "diff",
    "distributed",
    "divide",
    "dsplit",
    "dstack",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "fake_quantize",
    "fft",
    "finfo",
    "flatten",
    "flex32",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "functional",
    "gather",
    "gather_nd",
    "grad",
    "gradients",
    "greater",
    "greater_equal",
    "histogram",
    "hsplit",
    "hstack",
    "hypot",
    "id_to_address",
    "iinfo",
    "imag",
    "inf",
    "init",
    "int8",
    "int16",
    "int32",
    "int64",
    "interp",
    "isclose",
    "isdtype",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "jvp",
    "kron",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "load",
    "load_safetensors",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "mask_fill",
    "matmul",
    "matrix_transpose",
    "max",
    "max_abs",
    "max_with_indices",
    "maximum",
    "mean",
    "median",
    "meshgrid",
    "min",
    "min_with_indices",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "negative",
    "newaxis",
    "nextafter",
    "no_grad",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "optim",
    "outer",
    "pad",
    "percentile",
    "permute",
    "permute_dims",
    "pi",
    "polyfit",
    "polyval",
    "positive",
    "pow",
    "prod",
    "quant_scheme",
    "quantile",
    "quantize",
    "quantized_tensor",
    "random",
    "read",
    "read_quantized",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "rot90",
    "round",
    "rsqrt",
    "safetensors_metadata",
    "save",
    "save_safetensors",
    "scatter",
    "scatter_nd",
    "searchsorted",
    "set_default_device",
    "set_printoptions",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "sort_with_indices",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensor",
    "tensordot",
    "tile",
    "topk",
    "transpose",
    "tree",
    "tril",
    "triu",
    "trunc",
    "trunc_divide",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unfold",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unsqueeze",
    "unstack",
    "update_along",
    "value_and_grad",
    "var",
    "vecdot",
    "vector_norm",
    "vjp",
    "vsplit",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]  # fmt: skip

__version__ = version("burn-remote")

# The version of the array API standard that this namespace follows.
__array_api_version__ = API_VERSION
# ``x[newaxis]`` inserts an axis, as in NumPy.
newaxis = None

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)
