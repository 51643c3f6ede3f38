"""Kernels of the array backend that are made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from burn_remote_protocol.operations.row import Signature
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.interface import ElementwiseCall, Run

__all__ = ["FailingKernel"]


class FailingKernel:
    """Makes the kernels of operations that equal ``target`` raise while ``is_armed``.

    They raise before they write or, with ``after``, after they have written everything.
    """

    def __init__(self, target: Signature, error: Callable[[], Exception], *, after: bool) -> None:
        self.target = target
        self.error = error
        self.after = after
        self.is_armed = False
        self.raised = 0

    def _failing(self, run: Run) -> Run:
        def failing(*tensors: Any, **options: Any) -> Any:
            if self.is_armed and not self.after:
                self.raised += 1
                raise self.error()
            results = run(*tensors, **options)
            if self.is_armed:
                self.raised += 1
                raise self.error()
            return results

        return failing

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Affect the operations that sessions in this process prepare inside the context."""
        bind, bind_into = ArraySession.bind, ArraySession.bind_into
        bind_elementwise = ArraySession.bind_elementwise

        def bound(session: ArraySession, signature: Signature) -> Run:
            run = bind(session, signature)
            return self._failing(run) if signature == self.target else run

        def bound_into(session: ArraySession, signature: Signature) -> Run | None:
            run = bind_into(session, signature)
            return self._failing(run) if run and signature == self.target else run

        def calls_of(
            session: ArraySession, signature: Signature, numbers: Mapping[str, float] | None = None
        ) -> tuple[ElementwiseCall, ...]:
            calls = bind_elementwise(session, signature, numbers)
            if signature != self.target:
                return calls
            found = []
            for call in calls:
                function = self._failing(call.function)
                # A ufunc is marked by the same object in ``function`` and ``into``.
                into = function if call.into is call.function else call.into
                if into not in (None, function):
                    into = self._failing(into)
                found.append(ElementwiseCall(function, call.constants, into))
            return tuple(found)

        with (
            patch.object(ArraySession, "bind", bound),
            patch.object(ArraySession, "bind_into", bound_into),
            patch.object(ArraySession, "bind_elementwise", calls_of),
        ):
            yield
