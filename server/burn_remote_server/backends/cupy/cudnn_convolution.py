"""Convolutions on cuDNN, if it and its Python package are installed.

CuPy no longer includes cuDNN; NVIDIA's package ``nvidia-cudnn-frontend`` provides its graphs. Each
operation is a graph of one node, built when the operation is bound and kept in its plan.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import cupy
import numpy as np

from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16
from burn_remote_server.backends.cupy.cudnn_graphs import Graphs
from burn_remote_server.backends.cupy.cudnn_package import PACKAGE, lacks_memory, why_unusable
from burn_remote_server.backends.cupy.cudnn_selection import Direction, Task, task_of
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["Cudnn", "PlannedConvolution", "open_cudnn"]

logger = get_logger(__name__)

# Scratch memory of one call, taken from the device's free memory. With less, the faster engines of
# cuDNN are not available.
WORKSPACE_BYTES: Final = 256 * 2**20

# cuDNN's kernels use vector loads, which need addresses aligned to this. Views may start anywhere.
ALIGNMENT: Final = 16

FLOAT32: Final = np.dtype(np.float32)

# The operands of each direction, among the tensors of the operation: x, weight, and bias or
# output_grad.
_OPERANDS: Final = {
    Direction.FORWARD: (0, 1),
    Direction.TO_INPUT: (2, 1),
    Direction.TO_FILTERS: (0, 2),
}


def open_cudnn(*, tf32: bool = False) -> Cudnn | None:
    """Return cuDNN on the current device, or ``None`` if it is not installed or does not run.

    With ``tf32``, convolutions of ``float32`` may round their operands to TF32.
    """
    try:
        frontend = version(PACKAGE)
    except PackageNotFoundError:
        return None
    reason = why_unusable(frontend)
    if reason is not None:
        logger.warning("cudnn not used", reason=reason)
        return None
    _load_runtime()
    try:
        import cudnn

        opened = Cudnn(cudnn, tf32=tf32)
    except (ImportError, OSError, RuntimeError) as error:  # no library, or none for this GPU
        logger.warning("cudnn not used", reason=str(error))
        return None
    logger.info("cudnn used", version=opened.version, frontend=frontend)
    return opened


def _load_runtime() -> None:
    """Load the CUDA runtime from CuPy's location, because the package looks it up by name alone."""
    with contextlib.suppress(ImportError, RuntimeError):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("cudart")


class Cudnn:
    """cuDNN on one GPU, called through the given Python package.

    Raises ``RuntimeError`` if there is no libcudnn, or none for this GPU.
    """

    def __init__(self, library: Any, *, tf32: bool = False) -> None:
        self._library = library
        self._tf32: Final = tf32
        self.version: Final = str(library.backend_version_string())
        # One handle per stream. A session has one stream and uses it from one thread at a time, so
        # the number of handles is bounded by the highest number of concurrent sessions.
        self._handles: dict[int, Any] = {}
        self._graphs: dict[int, Graphs[PlannedConvolution]] = {}
        self.handle()

    def handle(self) -> Any:
        """Return the cuDNN handle of the current stream."""
        stream = cupy.cuda.get_current_stream().ptr
        handle = self._handles.get(stream)
        if handle is None:
            handle = self._library.create_handle()
            self._library.set_stream(handle=handle, stream=stream)
            self._handles[stream] = handle
        return handle

    def bind(self, signature: Signature) -> PlannedConvolution | None:
        """Return the cuDNN implementation of an operation, or ``None`` for our own kernel."""
        task = task_of(signature)
        if task is None:
            return None
        graphs = self._graphs.setdefault(cupy.cuda.get_current_stream().ptr, Graphs())
        try:
            return graphs.graph_of(task, partial(self._plan, task))
        except (self._library.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
            logger.debug("cudnn declined", operation=signature.describe(), reason=str(error))
            return None

    def _plan(self, task: Task) -> PlannedConvolution:
        return PlannedConvolution(
            self, task, *_built(self._library, self.handle(), task, self._tf32)
        )


class PlannedConvolution:
    """A convolution, or a gradient of one, with the engine that cuDNN chose."""

    __slots__ = (
        "__weakref__", "_cudnn", "_execute", "_operands", "_task", "_uids", "_workspace_bytes",
    )  # fmt: skip

    def __init__(self, cudnn: Cudnn, task: Task, graph: Any, uids: tuple[int, ...]) -> None:
        self._cudnn = cudnn
        self._task = task
        self._execute = graph.execute
        self._uids = uids
        self._operands = _OPERANDS[task.direction]
        self._workspace_bytes = max(0, graph.get_workspace_size())

    def __call__(self, *tensors: Any) -> Any:
        """Return the result for x, weight, and bias or output_grad. Raises ``MemoryError``."""
        arrays = [_laid_out(tensors[position]) for position in self._operands]
        out = cupy.empty(self._task.result, self._task.dtype)
        # The workspace is freed on return, although cuDNN still uses it. This is safe, because the
        # next user of the memory runs later on the same stream.
        workspace = cupy.empty(self._workspace_bytes, np.uint8)
        pointers = [array.data.ptr for array in (*arrays, out)]
        try:
            self._execute(
                dict(zip(self._uids, pointers, strict=True)),
                workspace.data.ptr,
                handle=self._cudnn.handle(),
            )
        except RuntimeError as error:
            if lacks_memory(error):  # the caller retries after freeing cached memory
                raise MemoryError(str(error)) from error
            raise
        if self._task.direction is Direction.FORWARD and tensors[2] is not None:
            _add_bias(out, tensors[2])
        return out


def _laid_out(array: Any) -> Any:
    """Return an array as graphs declare it: in C order, at an aligned address."""
    array = cupy.ascontiguousarray(array)
    return array.copy() if array.data.ptr % ALIGNMENT else array


def _built(library: Any, handle: Any, task: Task, tf32: bool) -> tuple[Any, tuple[int, ...]]:
    """Return a built graph, and the unique ids of its operands and its result.

    Raises the package's own error for a graph that cuDNN does not support.
    """
    elements = _data_type(library, task.dtype)
    graph = library.pygraph(
        io_data_type=elements,
        intermediate_data_type=library.data_type.FLOAT,
        compute_data_type=library.data_type.FLOAT,
        handle=handle,
    )

    def tensor(name: str, shape: Shape) -> Any:
        return graph.tensor(name=name, dim=list(shape), stride=_c_order(shape), data_type=elements)

    geometry = {
        "padding": list(task.padding),
        "stride": list(task.stride),
        "dilation": list(task.dilation),
    }
    if task.direction is Direction.FORWARD:
        operands = tensor("input", task.input), tensor("filters", task.filters)
        result = graph.conv_fprop(image=operands[0], weight=operands[1], **geometry)
        shape = task.output
    elif task.direction is Direction.TO_INPUT:
        operands = tensor("output_grad", task.output), tensor("filters", task.filters)
        result = graph.conv_dgrad(loss=operands[0], filter=operands[1], **geometry)
        shape = task.input
    else:
        operands = tensor("input", task.input), tensor("output_grad", task.output)
        result = graph.conv_wgrad(image=operands[0], loss=operands[1], **geometry)
        shape = task.filters
    result.set_output(True).set_data_type(elements)
    result.set_dim(list(shape)).set_stride(_c_order(shape))

    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
    graph.deselect_numeric_notes(_unwanted(library.numerical_note, task.dtype, tf32))
    graph.deselect_workspace_greater_than(WORKSPACE_BYTES)
    graph.check_support()
    graph.build_plans()
    return graph, tuple(item.get_uid() for item in (*operands, result))


def _data_type(library: Any, dtype: Any) -> Any:
    if dtype == BFLOAT16:
        return library.data_type.BFLOAT16
    return library.data_type.FLOAT if dtype == FLOAT32 else library.data_type.HALF


def _unwanted(notes: Any, dtype: Any, tf32: bool) -> list[Any]:
    """Return the engine properties that give other results than our own kernels."""
    unwanted = [
        # Accumulation in the elements' precision, or elements in a lower precision.
        notes.REDUCED_PRECISION_REDUCTION,
        notes.DOWN_CONVERT_INPUTS,
        # Accumulation in thread order.
        notes.NONDETERMINISTIC,
        # Transforms: one infinity would turn outputs of other windows into NaN.
        notes.FFT,
        notes.WINOGRAD,
        notes.WINOGRAD_TILE_4x4,
        notes.WINOGRAD_TILE_6x6,
        notes.WINOGRAD_TILE_13x13,
    ]
    # Tensor cores compute float32 as TF32, which has a 10-bit mantissa.
    if dtype == FLOAT32 and not tf32:
        return [*unwanted, notes.TENSOR_CORE]
    if dtype == FLOAT32:
        unwanted.remove(notes.DOWN_CONVERT_INPUTS)
    return unwanted


def _c_order(shape: Shape) -> list[int]:
    """Return the stride of each axis in elements, for C order."""
    return list(itertools.accumulate(shape[:0:-1], lambda step, size: step * size, initial=1))[::-1]


# CuPy's sum of bfloat16 arrays is float32. This sum is rounded to bfloat16: to nearest, ties to
# even.
_ADD_BFLOAT16: Final = cupy.ElementwiseKernel(
    "uint16 x, uint16 bias",
    "uint16 y",
    """
    float sum = __uint_as_float((unsigned)x << 16) + __uint_as_float((unsigned)bias << 16);
    unsigned bits = __float_as_uint(sum);
    y = sum != sum ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    """,
    "add_bfloat16",
)


def _add_bias(out: Any, bias: Any) -> None:
    """Add each filter's bias to its outputs, in place."""
    bias = bias.reshape(-1, *(1,) * (out.ndim - 2))
    if out.dtype != BFLOAT16:
        out += bias
        return
    bits = out.view(np.uint16)
    _ADD_BFLOAT16(bits, bias.view(np.uint16), bits)
