"""Random programs give the reference's results on every kind of device."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import burn_remote as br
from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.array.kernels.indexing import BaseMasking
from burn_remote_server.hosting import local as local_sessions
from differential.compiled import execute_compiled
from differential.drawing import ANY, BOOLS, EVERY
from differential.extension_operations import EXTENSION_ROWS
from differential.operations import ROWS
from differential.program import Mismatch, Program, execute, generated, shrunk
from differential.reusing_server import reusing_memory, server
from support.kernels import Array
from support.subnormals import has_flushable

LOCAL_PROGRAMS = 600
REMOTE_PROGRAMS = 100
EXTENDED_PROGRAMS = 300
BATCH = 50


@pytest.fixture(scope="module")
def local() -> Iterator[list[br.Device]]:
    with reusing_memory(), br.LocalDevice() as a, br.LocalDevice() as b:
        yield [a, b]


@pytest.fixture(scope="module", params=["native", "burn-0.21"])
def remote(request: pytest.FixtureRequest) -> Iterator[list[br.Device]]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server()) for _ in range(2)]
        yield [
            stack.enter_context(br.RemoteDevice(one.address, dialect=request.param))
            for one in servers
        ]


def check(seeds: range, devices: list[br.Device], *, extended: bool = False) -> None:
    for seed in seeds:
        try:
            execute(generated(seed, len(devices), extended=extended), devices)
        except Mismatch as mismatch:
            pytest.fail(f"the program of seed {seed}: {shrunk(mismatch, devices)}")


@pytest.mark.parametrize("first", range(0, LOCAL_PROGRAMS, BATCH))
def test_programs_on_local_devices_match_the_reference(local: list[br.Device], first: int) -> None:
    check(range(first, first + BATCH), local)


@pytest.mark.parametrize("first", range(0, REMOTE_PROGRAMS, BATCH))
def test_programs_on_two_servers_match_the_reference(remote: list[br.Device], first: int) -> None:
    check(range(first, first + BATCH), remote)


@pytest.mark.parametrize("first", range(0, EXTENDED_PROGRAMS, BATCH))
def test_programs_of_extension_rows_match_the_reference(local: list[br.Device], first: int) -> None:
    check(range(first, first + BATCH), local, extended=True)


def test_programs_of_extension_rows_on_two_servers_match_the_reference() -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server()) for _ in range(2)]
        devices: list[br.Device] = [
            stack.enter_context(br.RemoteDevice(one.address)) for one in servers
        ]
        check(range(500, 500 + BATCH), devices, extended=True)


def test_compiled_programs_of_extension_rows_give_the_bits_of_eager_ones(
    local: list[br.Device],
) -> None:
    programs = ((generated(seed, 1, extended=True), seed) for seed in range(60))
    assert sum(execute_compiled(program, local[0], seed) for program, seed in programs) > 2000


def test_compiled_programs_on_a_local_device_give_the_bits_of_eager_ones(
    local: list[br.Device],
) -> None:
    assert sum(execute_compiled(generated(seed, 1), local[0], seed) for seed in range(60)) > 2000


def test_compiled_programs_on_a_server_give_the_bits_of_eager_ones(
    remote: list[br.Device],
) -> None:
    assert sum(execute_compiled(generated(seed, 1), remote[0], seed) for seed in range(60, 90))


def test_a_seed_always_gives_the_same_program() -> None:
    assert [*map(str, generated(7, 2))] == [*map(str, generated(7, 2))]
    assert [*map(str, generated(7, 2))] != [*map(str, generated(8, 2))]


def test_programs_for_devices_that_flush_subnormals_have_none() -> None:
    found = {True: 0, False: 0}
    for subnormals in found:
        for seed in range(150):
            program = generated(seed, 2, (np.dtype(np.float32),), subnormals=subnormals)
            elements = reference_elements(program)
            found[subnormals] += any(map(has_flushable, elements))

    assert found[True]
    assert not found[False]


def reference_elements(program: Program) -> list[Array]:
    """Return the reference's elements of every tensor of a program."""
    known: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for step in program:
            if step.operation == "upload":
                known[step.out] = step.parameters[0]
            elif step.operation == "move":
                known[step.out] = known[step.inputs[0]]
            else:
                given = [known[name] for name in step.inputs]
                row = ROWS[step.operation]
                known[step.out] = np.asarray(row.reference(*given, *step.parameters))
    return [*known.values()]


def test_programs_of_the_bounded_run_have_every_operation_dtype_and_shape() -> None:
    operations: Counter[str] = Counter()
    dtypes, ranks, sizes, deaths, reads = set(), set(), set(), 0, 0
    for seed in range(LOCAL_PROGRAMS):
        program = generated(seed, 2)
        assert len(program) <= 45
        for step in program:
            operations[step.operation] += 1
            deaths += bool(step.dies)
            reads += step.reads
            if step.operation == "upload":
                array = step.parameters[0]
                dtypes.add(array.dtype)
                ranks.add(array.ndim)
                sizes.add(array.size)

    assert operations.keys() == {*ROWS, "upload", "move"}
    assert dtypes == {*ANY}
    assert {0, 1, 2, 3, 4} <= ranks
    assert 0 in sizes
    assert max(sizes) > 2000
    assert min(deaths, reads) > LOCAL_PROGRAMS


def test_programs_of_extension_rows_have_every_operation_and_complex_numbers() -> None:
    operations: Counter[str] = Counter()
    dtypes: Counter[Any] = Counter()
    for seed in range(1500):
        for step in generated(seed, 2, extended=True):
            operations[step.operation] += 1
            if step.operation == "upload":
                dtypes[step.parameters[0].dtype] += 1

    assert operations.keys() == {*ROWS, *EXTENSION_ROWS, "upload", "move"}
    assert not ROWS.keys() & EXTENSION_ROWS.keys()
    assert dtypes.keys() == {*EVERY}


def first_mismatch(
    devices: list[br.Device], programs: int, dtypes: Sequence[Any] = ANY
) -> Mismatch | None:
    for seed in range(programs):
        try:
            execute(generated(seed, len(devices), dtypes), devices)
        except Mismatch as mismatch:
            return shrunk(mismatch, devices)
    return None


def test_a_kernel_that_overwrites_an_input_before_reading_it_is_found() -> None:
    def prepare(family: Any, first: Any, out: Any, parameters: Any) -> Any:
        number = scalar_array(np, parameters["value"], first.dtype)
        if first.shape != out.shape:
            return None

        def run(tensor: Any, mask: Any, *, out: Any) -> Any:
            np.copyto(out, tensor)
            np.copyto(out, number, where=mask)
            return out

        return run

    names = ("mask_fill", "where_number", "tril", "logical_xor", "equal_any")
    rows = {name: ROWS[name] for name in names}
    with (
        patch.object(BaseMasking, "prepare_mask_fill_into", prepare),
        # The backend that local sessions share has cached the correct kernel.
        patch.object(local_sessions, "_backends", {}),
        patch.dict(ROWS, rows, clear=True),
        reusing_memory(),
        br.LocalDevice() as device,
    ):
        # Usually found within 500 programs. Whether a mask's memory is reused depends on when its
        # drop arrives.
        found = first_mismatch([device], 20_000, BOOLS)

    assert found is not None
    assert {step.operation for step in found.program} & {"mask_fill", "where_number", "tril"}


def test_a_mismatch_is_reported_with_the_shortest_program(local: list[br.Device]) -> None:
    def wrong(x: Any, y: Any) -> Any:
        return np.add(x, y) + x.dtype.type(1)

    row = ROWS["add"]
    with patch.dict(ROWS, {"add": type(row)(row.name, row.draw, row.run, wrong)}):
        found = first_mismatch(local, 200)

    assert found is not None
    operations = [step.operation for step in found.program]
    assert operations[-1] == "add"
    assert len(operations) <= 3
    assert "v" in str(found)
    assert "expected" in str(found)
