"""An error's text says what to do, and a program that does it works.

``tests/support/advice.py`` describes the files of programs in ``advice/``.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

import burn_remote as br
from support.access import ALICE
from support.advice import Mistake, error_of, names_of, read_mistakes
from support.servers import RunningServer, server

FOLDER: Final = Path(__file__).parent / "advice"
MISTAKES: Final = [
    mistake for path in sorted(FOLDER.glob("*.txt")) for mistake in read_mistakes(path)
]
IDS: Final = [f"{mistake.subject}-{number}" for number, mistake in enumerate(MISTAKES)]
WITH_SERVERS: Final = "servers"

Outcome = Callable[[str, str], Exception | None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def file_server(data: Path) -> Iterator[RunningServer]:
    with server("--data-dir", str(data)) as running:
        yield running


@pytest.fixture
def outcome(
    tmp_path: Path,
    data: Path,
    file_server: RunningServer,
    second_server: RunningServer,
    guarded: RunningServer,
) -> Outcome:
    """A function that runs a program on a subject, and returns its error."""

    def run(subject: str, program: str) -> Exception | None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ))
            stack.callback(br.set_default_device, None)
            device = stack.enter_context(br.LocalDevice())
            names = names_of(device, stack.enter_context(br.LocalDevice()), tmp_path)
            if subject == WITH_SERVERS:
                address = file_server.address
                opened = {
                    "r": br.RemoteDevice(address),
                    "r2": br.RemoteDevice(second_server.address),
                    "b22": br.RemoteDevice(address, dialect="burn-0.22"),
                }
                for one in opened.values():
                    stack.enter_context(one)
                places = {"address": address, "guarded": guarded.address, "token": ALICE}
                names |= {**opened, **places, "data": data, "os": os}
            return error_of(program, names)

    return run


@pytest.mark.parametrize("mistake", MISTAKES, ids=IDS)
def test_an_error_gives_its_advice(mistake: Mistake, outcome: Outcome) -> None:
    error = outcome(mistake.subject, mistake.program)
    assert error is not None
    assert not isinstance(error, NameError | SyntaxError), error
    assert mistake.text in str(error)


@pytest.mark.parametrize("mistake", MISTAKES, ids=IDS)
def test_a_program_that_takes_the_advice_works(mistake: Mistake, outcome: Outcome) -> None:
    error = outcome(mistake.subject, mistake.advised)
    if error is not None:
        raise error


# Texts with advice that no program here can provoke.
ELSEWHERE: Final = frozenset(
    {
        # A rule table or a runner that only this project or an extension of it can write.
        "the gradient rule of {} names {}; it may name {}",
        "a tensor whose operations a {} receives cannot be tracked; assign that runner to",
        # ``Group`` refuses such tensors before its engine does.
        "{} has no gradient; pass x.detach(), or call it under no_grad()",
        "Burn's protocol has no groups of servers; connect with the native dialect",
        # An installation without the server's packages.
        "a LocalDevice contains a server, whose package {} is not installed; run pip install ",
        # Servers of Burn: tests/integration/test_burn_0_21_defects.py and tests/interop.
        "{} speaks version {} of Burn's protocol; this client speaks {}, that of Burn 0.22",
        "a server of {} takes a tensor in one message, of at most {} bytes, and ends the",
        "{} opened a session but does not respond; a Burn 0.21 server stays in this state",
    }
)


def texts_with_advice() -> Iterator[tuple[str, ast.expr]]:
    """Iterate over the texts of ``raise`` statements in the client, with their places."""
    package = Path(br.__file__).parent
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        if place.parts[0] in ("torch", "ray.py"):  # packages that these tests do not need
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield from ((f"{place}:{node.lineno}", one) for one in node.exc.args)


def parts_of(text: ast.expr) -> list[str | None]:
    """Return the parts of a text in a program, with ``None`` for what is computed."""
    values = text.values if isinstance(text, ast.JoinedStr) else [text]
    return [
        value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
        for value in values
    ]


def test_all_advice_of_the_client_is_tried(outcome: Outcome) -> None:
    said = [str(outcome(mistake.subject, mistake.program)) for mistake in MISTAKES]
    untried = []
    for place, text in texts_with_advice():
        parts = parts_of(text)
        template = "".join("{}" if part is None else part for part in parts)
        pattern = "".join("(?s:.*)" if part is None else re.escape(part) for part in parts)
        is_known = any(map(template.startswith, ELSEWHERE))
        if "; " in template and not is_known and not any(re.search(pattern, one) for one in said):
            untried.append(f"{place}: {template}")
    assert not untried, "\n".join(untried)
