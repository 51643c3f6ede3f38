"""Execution of the tasks of Burn 0.22 that Burn 0.21 does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from burn_remote_protocol.dialects.burn_0_21 import EXPIRES_SECONDS
from burn_remote_protocol.dialects.burn_0_22 import (
    Alias,
    AllReduce,
    ExposeLocally,
    FetchLocally,
    FetchUnsupported,
    Profile,
    RunGraph,
)
from burn_remote_protocol.dialects.burn_0_22_recognition import KnownFrame
from burn_remote_protocol.dialects.native import INLINE_BYTES
from burn_remote_protocol.errors import OperationFailed, TransferFailed, UsageError
from burn_remote_protocol.messages import Expose, Fetch, Read
from burn_remote_server.dialects.burn_0_21.task_runner import TaskRunner
from burn_remote_server.dialects.burn_0_22.local_groups import SessionCollectives
from burn_remote_server.dialects.burn_0_22.local_transfers import LocalClient
from burn_remote_server.dialects.burn_0_22.outbox import LOCAL, Burn22Outbox
from burn_remote_server.dialects.burn_0_22.repeated_frames import (
    FrameProgram,
    FramePrograms,
    Make,
    Step,
)
from burn_remote_server.dialects.burn_0_22.repeated_parts import FoundPart, RepeatedParts
from burn_remote_server.execution.costs import TASK_COST
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.joined_operations import JoinedOperations
from burn_remote_server.execution.registered_graphs import EarlyRead, RegisteredGraphs
from burn_remote_server.programs.graph_runner import Stopped

__all__ = ["MAX_EARLY_BYTES", "Burn22Runner"]

# The longest tensor that is read while its graph runs; its reply is a copy.
MAX_EARLY_BYTES: Final = INLINE_BYTES


class Burn22Runner(TaskRunner):
    """Executes the tasks of a session of Burn 0.22."""

    def __init__(
        self,
        engine: Engine,
        interpreter: Interpreter,
        outbox: Burn22Outbox,
        client: LocalClient,
        collectives: SessionCollectives,
    ) -> None:
        super().__init__(engine, interpreter, outbox)
        self._own_outbox: Final = outbox
        self._client: Final = client
        self._collectives: Final = collectives
        self.graphs: Final = RegisteredGraphs(
            interpreter, lambda tensor, error: engine.fail_tensor(tensor, error, "Graph")
        )
        self._handlers: Final[dict[type[Any], Callable[[Any], None]]] = {
            Alias: lambda task: engine.alias(task.tensor, task.source),
            RunGraph: self._run_graph,
            AllReduce: self._all_reduce,
            ExposeLocally: self._expose_locally,
            FetchLocally: self._fetch_locally,
            FetchUnsupported: lambda task: engine.fail_tensor(
                task.tensor, task.error, "RegisterTensorRemote"
            ),
            Profile: lambda task: outbox.profile(task.request, task.answer),
            KnownFrame: self._run_frame,
        }
        self._answered: Read | None = None  # a read that was answered before its turn
        self._programs: Final = FramePrograms(interpreter)
        self._joined: Final = JoinedOperations(interpreter)
        self._parts: Final = RepeatedParts(self._joined) if self._joined.are_useful else None

    def run(self, tasks: Sequence[Any]) -> None:
        """Execute tasks in order; execute a ``KnownFrame`` by its program, if it has one."""
        frames: list[KnownFrame] = []
        programs: list[FrameProgram] = []
        if self.failure is None:
            for frame in tasks:
                if type(frame) is not KnownFrame:
                    break
                program = self._programs.program(frame)
                if program is None or program.opens_windows:
                    break
                frames.append(frame)
                programs.append(program)
        done = self._run_frames(frames, programs) if frames else 0
        if done < len(tasks):
            super().run(self._divided(tasks[done:]))

    def _run_frames(self, frames: Sequence[KnownFrame], programs: Sequence[FrameProgram]) -> int:
        """Run frames until the session fails; return how many. Compiled parts run as graphs."""
        if len(frames) == 1:  # the usual case of a program that waits for replies, in less time
            if self._parts is not None:
                self._parts.skip(programs[0])
            self._engine.tasks = frames[0]
            self._run_program(frames[0], programs[0])
            return 1
        at = (0, 0)
        for part, begin, end, numbers in self._found_parts(frames, programs):
            at = self._run_until(begin, at, frames, programs)
            if at != begin:
                return at[0]
            # If an operation of the part does not return, the graph is the lost one.
            self._engine.tasks, self._engine.place = (part.plan,), 0
            try:
                if self._joined.run(part, numbers):
                    at = end
            except Stopped:
                return at[0]
            except Exception as error:  # its results could not be stored
                place, step = begin
                steps = programs[place].steps  # none if the frame only ends uploads
                self._give_up(frames[place][steps[step][0] if steps else 0], error)
                at = end
        return self._run_until((len(frames), 0), at, frames, programs)[0]

    def _found_parts(
        self, frames: Sequence[KnownFrame], programs: Sequence[FrameProgram]
    ) -> Iterator[FoundPart]:
        """Yield the compiled parts in frames, as far as memory suffices to find them."""
        try:
            if self._parts is not None:
                yield from self._parts.found(frames, programs)
        except MemoryError:
            return  # the rest runs as messages, each of which fails for itself

    def _run_until(
        self,
        end: tuple[int, int],
        begin: tuple[int, int],
        frames: Sequence[KnownFrame],
        programs: Sequence[FrameProgram],
    ) -> tuple[int, int]:
        """Run the steps between two places, a frame and a step of it each.

        Returns the place up to which they ran: the beginning of a frame, if the session has failed
        or its device is lost.
        """
        place, step = begin
        last, stop_at = end
        tensors = self._interpreter.tensors
        while (place, step) < end:
            if not step and (self.failure is not None or tensors.lost is not None):
                break
            frame, program = frames[place], programs[place]
            if not step:
                self._engine.turn.spend(program.cost)
            count = len(program.steps)
            stop = stop_at if place == last else count
            self._engine.tasks = frame
            if not step and stop == count:
                self._run_program(frame, program)
            else:
                self._run_steps(frame, program.steps[step:stop])
            place, step = (place, stop) if stop < count else (place + 1, 0)
        return place, step

    @property
    def runs_graphs(self) -> bool:
        return len(self.graphs) > 0

    def handle(self, task: Any) -> None:
        """Execute a task other than an operation."""
        handler = self._handlers.get(type(task))
        if handler is not None:
            handler(task)
        elif task is self._answered:
            self._answered = None
        else:
            super().handle(task)

    def cost_of(self, task: Any) -> int | None:
        """Estimate the cost of a task other than an operation; return ``None`` if it is unknown."""
        if type(task) is KnownFrame:
            program = self._programs.program(task)
            if program is None:
                return super().estimate(task.messages())
            return program.cost - TASK_COST  # ``estimate`` adds it for the frame as a whole
        if isinstance(task, RunGraph):
            return self.graphs.estimate(task)
        # The first such task of a session searches for the client's process.
        if isinstance(task, ExposeLocally | FetchLocally | AllReduce):
            return None
        return super().cost_of(task)

    def answer_refused(self, task: Any, failure: OperationFailed) -> None:
        """Reply to a request of a session that has failed."""
        if type(task) is KnownFrame:
            for message in task.messages():
                self.answer_refused(message, failure)
        elif isinstance(task, Profile):
            self._own_outbox.profile(task.request, task.answer)
        elif task is not self._answered:
            super().answer_refused(task, failure)

    def _divided(self, tasks: Sequence[Any]) -> Sequence[Any]:
        """Replace some frames by their messages, which run one by one; return all tasks.

        These are frames without a program, and frames whose operations may be fused with others.
        """
        divided: list[Any] = []
        # Whether the task before may be an operation that can be fused with those of the frame.
        follows_operations = False
        for task in tasks:
            if type(task) is KnownFrame:
                program = None if self.failure is not None else self._programs.program(task)
                if (
                    program is not None
                    and not program.opens_windows
                    and not (program.joins_windows and follows_operations)
                ):
                    divided.append(task)
                    follows_operations = False
                    continue
                divided += task.messages()
            else:
                divided.append(task)
            follows_operations = True
        return divided

    def _run_frame(self, frame: KnownFrame) -> None:
        program = self._programs.program(frame)
        engine = self._engine
        outer = engine.tasks, engine.place
        engine.place = 0
        engine.tasks = frame
        try:
            if program is None:  # an earlier task of the batch found the device lost
                super().run(frame.messages())
            else:
                self._run_program(frame, program)
        finally:
            engine.tasks, engine.place = outer

    def _run_program(self, frame: KnownFrame, program: FrameProgram) -> None:
        engine, invoke_sequence = self._engine, self._interpreter.invoke_sequence
        at = 0
        for sequence, count in program.parts:
            done = 0
            if sequence is not None and self.failure is None:
                try:
                    done = invoke_sequence(sequence, frame.numbers, engine)
                except Exception as error:
                    self._give_up(frame[engine.place], error)
                    done = sequence.done_until(engine.place)
            if done < count:
                self._run_steps(frame, program.steps[at + done : at + count])
            at += count

    def _run_steps(self, frame: KnownFrame, steps: Sequence[tuple[int, Step]]) -> None:
        engine, interpreter = self._engine, self._interpreter
        invoke, invoke_simple = interpreter.invoke, interpreter.invoke_simple
        numbers = frame.numbers
        for engine.place, (plan, is_simple, make, start, stop) in steps:
            if engine.is_stopped:
                return
            tensors = numbers[start:stop]
            try:
                if self.failure is not None:
                    raise self.failure
                if plan is None:
                    self._run_other(make, tensors)
                elif is_simple:
                    invoke_simple(plan, tensors, 0)
                else:
                    invoke(plan, tensors)
            except Exception as error:
                self._give_up(frame[engine.place], error)

    def _run_other(self, make: Make | None, numbers: tuple[int, ...]) -> None:
        if make is None:
            self._interpreter.tensors.drop(numbers)
            return
        for task in make(numbers):
            super().handle(task)

    def _run_graph(self, task: RunGraph) -> None:
        self._answered = None
        try:
            self.graphs.run(task, self._early_read())
        except Stopped:
            return

    def _early_read(self) -> EarlyRead | None:
        """Return the next task if it is a read that a graph may answer while it runs.

        Fusion clients send a whole training step as one graph, and the read of the loss after it.
        """
        send, engine = self.send_replies, self._engine
        tasks, place = engine.tasks, engine.place + 1
        if send is None or place >= len(tasks):
            return None
        read = tasks[place]
        if type(read) is not Read or read.spec.nbytes > MAX_EARLY_BYTES:
            return None

        def give(array: Any) -> None:
            try:
                engine.answer_read(read, array)
            except MemoryError:
                return  # the read may succeed in its turn
            self._answered = read
            send()

        return EarlyRead(read.tensor, read.spec, give)

    def _all_reduce(self, task: AllReduce) -> None:
        try:
            for each in self._collectives.tasks(task):
                super().handle(each)
        except (OperationFailed, UsageError) as error:
            failure = error if isinstance(error, OperationFailed) else OperationFailed(str(error))
            self._engine.fail_tensor(task.output, failure, "AllReduce")
        if task.is_last:
            self._interpreter.tensors.drop((task.tensor,))

    def _expose_locally(self, task: ExposeLocally) -> None:
        expose = Expose(task.tensor, task.spec, 1, task.transfer, EXPIRES_SECONDS)
        try:
            key = self._client.key(task.transfer)
        except TransferFailed as error:
            self._own_outbox.failed((task.tensor,), error)
        else:
            self._engine.expose(expose, key, is_secret=False)
        if task.is_last:
            self._interpreter.tensors.drop((task.tensor,))

    def _fetch_locally(self, task: FetchLocally) -> None:
        try:
            self._own_outbox.local_keys[task.tensor] = self._client.key(task.transfer)
        except TransferFailed as error:
            self._engine.fail_tensor(task.tensor, error, "RegisterTensorLocal")
            return
        super().handle(Fetch(task.transfer, LOCAL, task.tensor, None))
