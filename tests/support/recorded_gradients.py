"""Gradients that real Burn computed and read, in the sessions recorded from its autodiff tests.

A session has Burn's forward pass, then its backward pass, as operations. The backward pass starts
with ``Ones`` of the shape of its root. This module repeats the forward pass on tracked tensors of
``burn_remote``, differentiates the root, and looks for the elements that Burn read.

Which tensor was the root, and to which tensor a gradient belongs, is not recorded. Roots are the
latest tensors of the right shape and dtype; the one that explains most reads is taken. A read may
also be a view of a gradient, such as a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

import burn_remote as br
from burn_remote.runner.stack import outermost
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.encoding import decode_operation, decode_tensor_data
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse, decode_tensor
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from support.replay import TOLERANCES, elements

__all__ = ["Reads", "compare_gradients"]

Array = np.ndarray[Any, Any]

# How many of the latest tensors are tried as the root.
MAX_ROOTS: Final = 12

# Rows that only select or rearrange elements, and how many of them may follow on a gradient.
VIEWS: Final = ("Reshape", "SwapDims", "Permute", "Flip", "Slice", "Expand")
MAX_VIEWS: Final = 3


class Upload(NamedTuple):
    tensor: int
    data: TensorData


class Read(NamedTuple):
    tensor: int
    data: TensorData


Step = Operation | Upload | Read


class Reads(NamedTuple):
    """How many gradients Burn read in a session, and how many of them ours agree with."""

    agreeing: int
    read: int
    # The reason if a root could not be differentiated.
    refusal: str | None


class GradientRead(NamedTuple):
    """The elements that Burn read, and the views just before: from a tensor to the one it read."""

    data: TensorData
    views: tuple[Signature, ...]


class _Backward(NamedTuple):
    """A possible backward pass: the place of its ``Ones``, and the reads that may belong to it."""

    start: int
    seed: Signature
    reads: list[int]


def steps_of(frames: Sequence[dict[str, Any]]) -> list[Step]:
    """Return the operations, uploads and successful reads of a session in their order."""
    steps: list[Step] = []
    waiting: dict[str, int] = {}
    for frame in frames:
        if frame["route"] == "/data":
            continue
        message = msgpack.unpackb(frame["payload"], use_list=False, object_pairs_hook=FrozenMap)
        if frame["dir"] == "s2c":
            ((kind, answer),), identity = message
            if kind == "ReadTensor" and str(identity) in waiting:
                result = dict(answer)
                if "Ok" in result:
                    tensor = waiting[str(identity)]
                    steps.append(Read(tensor, decode_tensor_data(result["Ok"])))
        elif message[0][0] == "Compute":
            task, identity = message[0][1]
            name: str
            body: Any
            name, body = (task, None) if type(task) is str else task[0]
            if name == "RegisterOperation":
                steps.append(decode_operation(body))
            elif name == "RegisterTensor":
                steps.append(Upload(body[0][0], decode_tensor_data(body[1])))
            elif name == "ReadTensor":
                waiting[str(identity)] = decode_tensor(body)[0]
    return steps


def compare_gradients(frames: Sequence[dict[str, Any]], device: br.Device) -> Reads:
    """Compare the gradients that Burn read in one session with those of ``burn_remote``."""
    steps = steps_of(frames)
    reads, passes = _backward_passes(steps)
    agreeing: set[int] = set()
    refusal = None
    forward = _Forward(device)
    place = 0
    for one in passes:
        while place < one.start:
            forward.repeat(steps[place])
            place += 1
        specs = {spec for read in one.reads for spec in _possible_specs(reads[read])}
        best: set[int] = set()
        for root in forward.roots(one.seed.outputs[0]):
            try:
                found = forward.gradients(root, specs)
            except br.UsageError as error:
                refusal = refusal or str(error)
                continue
            equal = {read for read in one.reads if _is_found(reads[read], found, forward)}
            best = max(best, equal, key=len)
            if len(best) == len(one.reads):
                break
        agreeing |= best
    return Reads(len(agreeing), len(reads), refusal)


def _backward_passes(steps: Sequence[Step]) -> tuple[list[GradientRead], list[_Backward]]:
    """Return the reads of tensors that were computed from a ``Ones``, and the possible passes.

    ``Ones`` may also be data of the forward pass, so a read may belong to one of several passes.
    """
    origins: dict[int, frozenset[int]] = {}
    passes: dict[int, _Backward] = {}
    reads: list[GradientRead] = []
    views: dict[int, tuple[Signature, ...]] = {}
    for place, step in enumerate(steps):
        if isinstance(step, Upload):
            origins.pop(step.tensor, None)
        elif isinstance(step, Read):
            starts = origins.get(step.tensor, frozenset())
            if starts and step.data.dtype.is_floating:
                for start in starts:
                    passes[start].reads.append(len(reads))
                reads.append(GradientRead(step.data, views.get(step.tensor, ())))
        elif step.signature.row.name not in ("Init", "Drop"):
            count = len(step.signature.input_uses)
            known = [origins.get(one, frozenset()) for one in step.tensors[:count]]
            starts = frozenset().union(*known)
            if step.signature.row.name == "Ones" and step.signature.outputs[0].dtype.is_floating:
                starts = frozenset({place})
                passes[place] = _Backward(place, step.signature, [])
            for tensor in step.tensors[count:]:
                origins[tensor] = starts
                views[tensor] = ()
                if step.signature.row.name in VIEWS:
                    earlier = views.get(step.tensors[0], ())
                    views[tensor] = (*earlier, step.signature)[-MAX_VIEWS:]
    return reads, [one for _, one in sorted(passes.items()) if one.reads]


class _Forward:
    """The operations of a session so far, repeated on tracked tensors."""

    def __init__(self, device: br.Device) -> None:
        self._device = device
        self._tensors: dict[int, br.Tensor] = {}
        self._results: list[br.Tensor] = []

    def repeat(self, step: Step) -> None:
        """Repeat an operation or an upload."""
        if isinstance(step, Read):
            return
        if isinstance(step, Upload):
            handle = self._device.runners.register_tensor_data(step.data)
            self._keep(step.tensor, br.Tensor(handle), is_source=True)
            return
        signature, tensors = step
        if signature.row.name in ("Init", "Drop"):
            return
        count = len(signature.input_uses)
        inputs = [self._tensors[one].handle for one in tensors[:count]]
        runner = outermost(inputs) if inputs else self._device.runners
        assert runner is not None
        outputs = runner.register_op(_keeping_inputs(signature), inputs)
        for tensor, handle in zip(tensors[count:], outputs, strict=True):
            self._keep(tensor, br.Tensor(handle), is_source=not inputs)

    def _keep(self, identifier: int, tensor: br.Tensor, *, is_source: bool) -> None:
        if is_source and tensor.dtype.is_floating:
            tensor.requires_grad_()
        elif tensor.requires_grad:
            self._results.append(tensor)
        self._tensors[identifier] = tensor

    def roots(self, spec: TensorSpec) -> list[br.Tensor]:
        """Return the latest results with a shape and dtype, the last one first."""
        return [x for x in reversed(self._results) if x.handle.spec == spec][:MAX_ROOTS]

    def view(self, array: Array, views: Sequence[Signature]) -> Array:
        """Apply views to an array."""
        x = br.tensor(array, device=self._device)
        for signature in views:
            spec = TensorSpec(signature.outputs[0].shape, x.dtype)
            use = TensorUse(x.handle.spec, TensorStatus.READ_ONLY)
            (handle,) = self._device.runners.register_op(_on(signature, use, spec), [x.handle])
            x = br.Tensor(handle)
        return x.numpy()

    def gradients(self, root: br.Tensor, specs: set[TensorSpec]) -> list[Array]:
        """Return the gradients of a root for all tensors with one of these shapes and dtypes."""
        wanted = {id(x): x for x in (*self._tensors.values(), *self._results)}
        tensors = [x for x in wanted.values() if x.requires_grad and x.handle.spec in specs]
        if not tensors:
            return []
        found = br.autograd.grad(
            root, tensors, br.ones_like(root), retain_graph=True, allow_unused=True
        )
        return [
            np.zeros(x.shape) if one is None else one.astype(br.float64).numpy()
            for one, x in zip(found, tensors, strict=True)
        ]


def _possible_specs(read: GradientRead) -> list[TensorSpec]:
    """Return the shapes and dtypes of the tensors of which a read may be the gradient."""
    return [read.data.spec, *[view.input_uses[0].spec for view in read.views]]


def _is_found(read: GradientRead, gradients: Sequence[Array], forward: _Forward) -> bool:
    if any(_is_close(one, read.data) for one in gradients):
        return True
    for count in range(len(read.views)):
        views = read.views[count:]
        shape = views[0].input_uses[0].spec.shape
        for one in gradients:
            if one.shape == shape and _is_close(forward.view(one, views), read.data):
                return True
    return False


def _on(signature: Signature, use: TensorUse, out: TensorSpec) -> Signature:
    """Return the signature of a view of a tensor of another dtype."""
    arguments = []
    for field, argument in zip(signature.row.fields, signature.arguments, strict=True):
        if field.role is Role.INPUT:
            arguments.append(use)
        elif field.role is Role.OUTPUT:
            arguments.append(TensorUse(out, TensorStatus.NOT_INIT))
        else:
            arguments.append(argument)
    return sign(signature.row, *arguments)


def _keeping_inputs(signature: Signature) -> Signature:
    """Return a signature that frees none of its inputs."""

    def kept(use: Any) -> Any:
        if type(use) is tuple:
            return tuple(map(kept, use))
        return None if use is None else TensorUse(use.spec, TensorStatus.READ_ONLY)

    arguments = [
        kept(argument) if field.role is Role.INPUT else argument
        for field, argument in zip(signature.row.fields, signature.arguments, strict=True)
    ]
    return sign(signature.row, *arguments)


def _is_close(found: Array, data: TensorData) -> bool:
    relative, absolute = TOLERANCES[data.dtype.name]
    expected = elements(data).astype(np.float64).reshape(data.shape)
    return found.shape == expected.shape and bool(
        np.isclose(found, expected, rtol=relative, atol=absolute, equal_nan=True).all()
    )
