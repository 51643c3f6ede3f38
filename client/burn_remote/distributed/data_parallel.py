"""``DataParallel``: training with the rows of each batch split over several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from burn_remote.arguments.containers import leaves, mapped, named_leaves
from burn_remote.arguments.numbers import whole_number
from burn_remote.autodiff.backward_pass import BackwardPass
from burn_remote.autodiff.grad_mode import enable_grad, no_grad
from burn_remote.autodiff.nodes import Leaf, TrackedHandle, plain
from burn_remote.autodiff.tracking import track
from burn_remote.autodiff.uniform_gradients import Uniform
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.distributed.batch_splitting import SplitBatch, split_batch
from burn_remote.distributed.collective_engine import Bucket
from burn_remote.distributed.gradient_buckets import GradientExchange, bucket_plans
from burn_remote.distributed.group import Group, end_open_reductions, gradient_exchange
from burn_remote.distributed.reduce_operations import ReduceOperation
from burn_remote.distributed.replicated_updates import (
    ReplicatedUpdate,
    ShardedUpdate,
    Update,
    gradients_of,
    with_leaves,
)
from burn_remote.function_transforms import value_and_grad
from burn_remote.functions.creation import tensor, zeros
from burn_remote.functions.device_class import Device
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.graphs.compiled import compile as compiled
from burn_remote.optimizers.optimizer_class import Optimizer
from burn_remote.runner.interface import distinction
from burn_remote.runner.pending import sent
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DTypeMismatch,
    UsageError,
    shown,
    type_name,
)

__all__ = ["DataParallel", "Snapshot"]

SUM: Final = ReduceOperation.SUM

# With larger buckets there are fewer reductions; with smaller ones, the first is sent earlier in
# the backward pass.
BUCKET_BYTES: Final = 4 * 1024 * 1024

Gradients = dict[int, Tensor]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The parameters and the state of the optimizer on each member, for ``regroup``."""

    devices: tuple[Device, ...]
    replicas: tuple[Any, ...]
    states: tuple[Mapping[str, Any], ...]


class DataParallel:
    """Trains equal parameters on each member of a group, each with its part of every batch::

        trainer = br.DataParallel(loss_of, weights, devices, optimizer=br.optim.Adam(lr=1e-3))
        for x, y in batches:
            loss = trainer.step(x, y)
        weights = trainer.params

    ``loss_of(params, *batch)`` returns a floating-point tensor of one element. It is called for
    each member with the parameters and rows on the member's device. ``params`` are nested
    containers of floating-point tensors or arrays. ``devices`` are devices or a ``Group``.

    ``reduction`` says whether the loss is the ``"mean"`` or the ``"sum"`` over the rows of a batch.
    Parts of different sizes are weighted accordingly, so that loss and gradients equal those of one
    device with the whole batch, up to rounding. The replicas of the parameters stay bit-identical,
    because all members get the same bits of the gradients and apply the same update.

    The gradients of the last parameters are reduced while the backward pass goes on, in buckets of
    up to ``bucket_bytes``. ``compiles`` records loss and gradients and issues them as one task for
    each member; then buckets are sent after the backward pass. With ``shards_state``, each member
    keeps and updates only one part of the optimizer's state (ZeRO, stage 1). No call waits.

    ``state`` is a state of the optimizer, such as ``trainer.state`` of an earlier training. A
    ``with`` block, or ``close()``, ends the group that was made of ``devices``.
    """

    @explained
    def __init__(
        self,
        loss_of: Callable[..., Tensor],
        params: Any,
        devices: Group | Iterable[Device],
        *,
        optimizer: Optimizer | None = None,
        state: Mapping[str, Any] | None = None,
        reduction: str = "mean",
        shards_state: bool = False,
        compiles: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        if not callable(loss_of):
            raise ArgumentMismatch(
                f"DataParallel takes a loss function of the parameters and a batch, not "
                f"{shown(loss_of)}"
            )
        if reduction not in ("mean", "sum"):
            raise ArgumentMismatch(f"reduction must be 'mean' or 'sum', not {shown(reduction)}")
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise ArgumentMismatch(
                f"optimizer must be one of burn_remote.optim without parameters, such as "
                f"Adam(lr=1e-3), not {shown(optimizer)}"
            )
        if optimizer is not None and optimizer.param_groups:
            raise UsageError(
                "this optimizer updates parameters of its own; pass one without parameters, such "
                "as Adam(lr=1e-3), because the trainer has a copy of the parameters for each member"
            )
        if optimizer is None and (shards_state or state is not None):
            raise UsageError("a state needs an optimizer; pass optimizer=Adam(lr=1e-3), or another")
        limit_bytes = whole_number("bucket_bytes", bucket_bytes, 1, 2**62)
        self._owns_group = not isinstance(devices, Group)
        self.group = devices if isinstance(devices, Group) else Group(devices)
        self._loss_of = loss_of
        self._is_mean = reduction == "mean"
        _check_parameters(params)
        self._replicas = [
            mapped(lambda leaf, device=device: _copied(leaf, device), params)
            for device in self.group.devices
        ]
        specs = [x.handle.spec for x in leaves(self._replicas[0])]
        self._plans = bucket_plans(specs, limit_bytes, self.group.size if shards_state else 0)
        self._is_sharded = shards_state
        self._update: Update | None = None
        if optimizer is not None:
            kind = ShardedUpdate if shards_state else ReplicatedUpdate
            self._update = kind(self.group, self._plans, optimizer, self._replicas, state)
        self._value_and_grad = compiled(value_and_grad(self._weighted_loss)) if compiles else None
        self._is_exchanging = True
        # The sums of gradients since the last update: those that were reduced over the members, and
        # those of each member that were not.
        self._reduced: list[list[Bucket]] | None = None
        self._waiting: list[Gradients] = [{} for _ in self.group.devices]

    def __repr__(self) -> str:
        count = len(leaves(self._replicas[0]))
        return f"<DataParallel of {count} parameter{'s' * (count != 1)} on {self.group!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the group if it was made of ``devices``. Parameters and state can still be read."""
        if self._owns_group:
            self.group.close()

    # -- what the program reads ---------------------------------------------------------------

    @property
    def replicas(self) -> list[Any]:
        """The parameters on each member; assign a list of others to continue with those.

        A program without ``optimizer=`` assigns what it computed from ``gradients``.
        """
        return [*self._replicas]

    @replicas.setter
    def replicas(self, replicas: Sequence[Any]) -> None:
        if self._is_sharded:
            raise UsageError(
                "the replicas cannot be assigned with shards_state=True, because each member keeps "
                "the part that it updates; make another DataParallel with params and "
                "state=trainer.state"
            )
        self._check_replacements("replicas", replicas)
        self._replicas = [mapped(lambda x: Tensor(plain(x.handle)), one) for one in replicas]

    @property
    def params(self) -> Any:
        """The parameters on the first member."""
        return self._replicas[0]

    @property
    def state(self) -> Mapping[str, Any]:
        """The state of the optimizer on the first member, as ``optimizer.init`` returns it.

        A sharded state is gathered. Does not wait.
        """
        if self._update is None:
            raise UsageError("there is no state without an optimizer; pass optimizer=")
        with no_grad():
            return self._update.state()

    @property
    def gradients(self) -> list[Any]:
        """The reduced gradients since the last update, as containers for each member.

        Assign a list of others, such as clipped ones, to replace them.
        """
        buckets = self._held("gradients")
        return [
            gradients_of(self._plans, replica, own)
            for replica, own in zip(self._replicas, buckets, strict=True)
        ]

    @gradients.setter
    def gradients(self, gradients: Sequence[Any]) -> None:
        self._held("gradients")
        self._check_replacements("gradients", gradients)
        self._reduced = [[plan.chosen(leaves(one)) for plan in self._plans] for one in gradients]

    # -- training -----------------------------------------------------------------------------

    def split(self, *batch: Any) -> SplitBatch:
        """Send the rows of a batch to the members; pass the result to ``step`` or ``backward``.

        Batches may be split ahead, while the members compute. Arrays and tensors are split along
        axis 0; those without axes are copied to each member. Other values are passed as they are.
        """
        return split_batch(batch, self.group.devices)

    @explained
    def step(self, *batch: Any, lr: float | None = None) -> Tensor:
        """Update the parameters by the gradients of a batch; return the loss ``[]``.

        The loss is that of the whole batch, on the first member. ``lr`` is the learning rate of
        this step, in place of the optimizer's. See ``backward`` and ``update``.
        """
        if not self._is_exchanging:
            raise UsageError(
                "step() cannot update inside no_sync(), where gradients are not exchanged; call "
                "backward(…) inside, and step(…) for the last batch after it"
            )
        self._updater()
        loss = self.backward(*batch)
        self.update(lr=lr)
        return loss

    @explained
    def backward(self, *batch: Any) -> Tensor:
        """Add the gradients of a batch to those since the last update; return the loss ``[]``.

        The gradients are reduced over the members, also those that ``no_sync`` accumulated. The
        loss is that of the whole batch, on the first member. If this raises, nothing has changed.
        """
        split = self._split(batch)
        total = sum(split.rows)
        weights = [rows / total if self._is_mean else 1.0 for rows in split.rows]
        with gradient_exchange(self.group):
            return self._backward(split, weights)

    def _backward(self, split: SplitBatch, weights: Sequence[float]) -> Tensor:
        exchange = self._exchange() if self._is_exchanging else None
        own: list[Gradients] = []
        end_open_reductions(self.group)
        losses = self.group.reduce_buckets(root=0)
        try:
            for member, (part, rows) in enumerate(zip(split.parts, split.rows, strict=True)):
                waiting = {**self._waiting[member]}
                if exchange is not None:
                    exchange.start(member)
                if rows:  # true for the first member, so ``found`` exists in the ``else`` branch
                    found = self._member_backward(member, part, weights[member], waiting, exchange)
                else:
                    found = zeros((), dtype=found.dtype, device=self.group.devices[member])
                if exchange is not None:
                    exchange.finish_all(waiting)
                # Given after the gradients, because ``abandon`` below issues missing inputs in this
                # order.
                losses.give(member, [found])
                own.append(waiting)
            reduced = None if exchange is None else exchange.results()
            (loss,) = losses.results()[0]
        except BaseException:  # also Ctrl-C: all members have to issue the same collectives
            if exchange is not None:
                exchange.abandon()
            losses.abandon()
            raise
        if reduced is None:
            self._waiting = own
        else:
            self._waiting = [{} for _ in self.group.devices]
            self._reduced = reduced if self._reduced is None else _sums(self._reduced, reduced)
        return loss

    @explained
    def update(self, *, lr: float | None = None) -> None:
        """Update the parameters of all members by the gradients since the last update.

        Raises ``UsageError`` without gradients or an optimizer.
        """
        updater = self._updater()
        reduced = self._held("update()", may_be_sharded=True)
        with no_grad():
            self._replicas = updater.updated(self._replicas, reduced, lr)
        self._reduced = None

    def zero_grad(self) -> None:
        """Discard the gradients since the last update."""
        self._reduced = None
        self._waiting = [{} for _ in self.group.devices]

    # -- failures -----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the parameters and the optimizer's state as they are now, for ``regroup``.

        It refers to the tensors of each member, so nothing is copied. Does not wait.
        """
        if self._is_sharded:
            raise UsageError(
                "a snapshot keeps what each member has, and with shards_state=True a part of the "
                "state is lost with its member; save trainer.params and trainer.state instead, and "
                "make another DataParallel of them"
            )
        states = () if self._update is None else self._update.states()
        return Snapshot(self.group.devices, tuple(self._replicas), tuple(states))

    def regroup(self, snapshot: Snapshot, *, without: Iterable[int | Device] = ()) -> None:
        """Continue from a snapshot after a member failed, without some of the members.

        ``without`` are members or their positions. By default, all members stay: use this after a
        failed operation, or if the failed member works again. ``trainer.group`` becomes a group of
        the members that stay, and the former group is closed. Gradients since the last update are
        discarded. Waits until these members have executed what was issued before, and discards the
        failures of that work.
        """
        lost = {self.group.rank(member) for member in without}
        kept = [one for rank, one in enumerate(self.group.devices) if rank not in lost]
        missing = [one for one in kept if one not in snapshot.devices]
        if missing:
            raise UsageError(
                f"the snapshot has no parameters on {missing[0]}; take a snapshot of this trainer"
            )
        self.group = self.group.without(lost)
        self._owns_group = True
        fences = sent([device.session.fence() for device in kept])
        for device, one in zip(kept, fences, strict=True):
            one.result()
            device.session.take_failures()
        ranks = [snapshot.devices.index(device) for device in kept]
        self._replicas = [snapshot.replicas[rank] for rank in ranks]
        if self._update is not None:
            self._update.restore([snapshot.states[rank] for rank in ranks])
        self.zero_grad()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Have ``backward`` accumulate gradients on each member, without sending them.

        The first ``backward`` after the block sends the sums.
        """
        before = self._is_exchanging
        self._is_exchanging = False
        try:
            yield
        finally:
            self._is_exchanging = before

    # -- parts --------------------------------------------------------------------------------

    def _split(self, batch: Sequence[Any]) -> SplitBatch:
        if len(batch) == 1 and isinstance(batch[0], SplitBatch):
            if len(batch[0].parts) != len(self.group):
                raise ArgumentMismatch(
                    f"the batch was split over {len(batch[0].parts)} devices, but {self.group!r} "
                    f"has {len(self.group)}; use trainer.split of this DataParallel"
                )
            return batch[0]
        return self.split(*batch)

    def _exchange(self) -> GradientExchange:
        begin = self.group.reduce_scatter_buckets if self._is_sharded else self.group.reduce_buckets
        return GradientExchange(self._plans, self.group.devices, begin)

    def _member_backward(
        self,
        member: int,
        part: Sequence[Any],
        weight: float,
        waiting: Gradients,
        exchange: GradientExchange | None,
    ) -> Tensor:
        """Compute the gradients of a member; return its weighted loss.

        Each gradient is added to the one in ``waiting``. If there is an exchange, it gets the sum,
        which is then removed from ``waiting``.
        """

        def finish(place: int, gradient: Tensor) -> None:
            before = waiting.pop(place, None)
            total = gradient if before is None else before + gradient
            if exchange is None:
                waiting[place] = total
            else:
                exchange.finish(place, total)

        if self._value_and_grad is not None:
            weighted: Tensor
            weighted, grads = self._value_and_grad(self._replicas[member], weight, *part)
            for place, gradient in reversed([*enumerate(leaves(grads))]):
                finish(place, gradient)
            return weighted
        tracked = [track(x.handle) for x in leaves(self._replicas[member])]
        with enable_grad():
            params = with_leaves(self._replicas[member], [*map(Tensor, tracked)])
            loss = self._loss_of(params, *part)
        _check_loss(loss)
        handle = loss.handle
        places = {handle.source: place for place, handle in enumerate(tracked)}

        def finish_leaf(leaf: Leaf, gradient: Tensor) -> Tensor:
            finish(places[leaf], gradient)
            return gradient

        if isinstance(handle, TrackedHandle):
            backward_pass = BackwardPass([handle], wanted=[*places], finish_leaf=finish_leaf)
            if any(leaf in places for leaf in backward_pass.leaves):
                backward_pass.run([Uniform(Tensor, handle.client, handle.spec, weight)])
        with no_grad():
            return Tensor(plain(loss.handle)).reshape(()) * weight

    def _weighted_loss(self, params: Any, weight: float, *part: Any) -> Tensor:
        loss = self._loss_of(params, *part)
        _check_loss(loss)
        return loss.reshape(()) * weight

    def _updater(self) -> Update:
        if self._update is None:
            raise UsageError(
                "there is no optimizer; pass optimizer= to DataParallel, or update the replicas "
                "by trainer.gradients and assign trainer.replicas"
            )
        return self._update

    def _check_replacements(self, what: str, values: object) -> None:
        """Raise ``ArgumentMismatch`` unless values of all members can replace parameters."""
        if not isinstance(values, list | tuple) or len(values) != len(self.group):
            raise ArgumentMismatch(
                f"{what} takes a list with one value for each of the {len(self.group)} members, "
                f"not {shown(values)}"
            )
        for device, mine, new in zip(self.group.devices, self._replicas, values, strict=True):
            mapped(lambda old, one, device=device: _check_replacement(old, one, device), mine, new)

    def _held(self, what: str, *, may_be_sharded: bool = False) -> list[list[Bucket]]:
        if self._is_sharded and not may_be_sharded:
            raise UsageError(
                f"{what} cannot be read or assigned with shards_state=True, because each member "
                "has one part of them only"
            )
        if self._reduced is None:
            advice = (
                "; the next backward() outside no_sync() sends those that no_sync() accumulated"
            )
            raise UsageError(
                "no gradients were reduced since the last update; call backward(*batch) first"
                f"{advice if any(self._waiting) else ''}"
            )
        return self._reduced


def _check_parameters(params: Any) -> None:
    found = [*named_leaves(params)]
    if not found:
        raise UsageError("there are no parameters; pass containers of tensors or arrays")
    for name, leaf in found:
        where = f"the parameter {name}" if name else "the parameter"
        if not is_tensor(leaf) and not isinstance(leaf, np.ndarray | np.generic):
            raise ArgumentMismatch(
                f"{where} is of type {type_name(leaf)}, not a tensor or an array"
            )
        if is_tensor(leaf) and not leaf.dtype.is_floating:
            raise DTypeMismatch(
                f"{where} is {leaf.handle.spec}, and only floating-point tensors have gradients; "
                "leave it out, or convert it with x.astype(burn_remote.float32)"
            )
        if not is_tensor(leaf) and leaf.dtype.kind in "iub":
            raise DTypeMismatch(
                f"{where} is an array of {leaf.dtype}, and only floating-point parameters have "
                "gradients; leave it out, or convert it with array.astype('float32')"
            )


def _copied(leaf: Any, device: Device) -> Tensor:
    if is_tensor(leaf):
        return Tensor(plain(leaf.handle)).to(device)
    return tensor(leaf, device=device)


def _check_replacement(old: Tensor, new: Any, device: Device) -> None:
    if not is_tensor(new):
        raise ArgumentMismatch(f"each value must be a tensor, not {shown(new)}")
    if new.handle.spec != old.handle.spec or new.handle.client.session is not device.session:
        raise ArgumentMismatch(
            f"each value must be like the one that it replaces, {old.handle.spec} on {device}, not "
            f"{new.handle.spec} on {new.device}{distinction(device, new.device)}"
        )


def _check_loss(loss: Any) -> None:
    if not is_tensor(loss):
        raise ArgumentMismatch(f"the loss function must return a tensor, not {shown(loss)}")
    if loss.size != 1 or not loss.dtype.is_floating:
        raise UsageError(
            f"the loss function must return one floating-point number, not {loss.handle.spec}; "
            "return a mean or a sum"
        )


def _sums(held: Sequence[Sequence[Bucket]], new: Sequence[Sequence[Bucket]]) -> list[list[Bucket]]:
    return [
        [
            [one + other for one, other in zip(bucket, more, strict=True)]
            for bucket, more in zip(own, others, strict=True)
        ]
        for own, others in zip(held, new, strict=True)
    ]
