"""The programs in the README and in the documents for users work when pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import burn_remote as br
from support.servers import server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def printed_by_the_program_in(text: str) -> str:
    """Return what the text's only Python program prints; a warning would be an error.

    An indented block, as in a list, is an excerpt of a program and is not run.
    """
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    with server() as running:
        pasted = program.replace("ws://127.0.0.1:3000", running.address)
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", pasted],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert run.stderr == ""
    return run.stdout


def test_the_readmes_program_runs_against_a_server() -> None:
    printed = printed_by_the_program_in(README)
    assert printed.startswith("Tensor(shape=(64, 10), dtype=float32")
    assert printed.endswith("(64, 10)\n")


def test_the_readmes_program_finds_what_its_commands_install() -> None:
    """A ``LocalDevice`` contains a server, so the plain package is not enough on a laptop."""
    before, program = README.split("```python\n", 1)
    assert "LocalDevice()" in program.split("```")[0]
    assert 'on both machines, in a virtual environment each: `pip install ".[server]"`' in before


def test_the_program_in_quantization_md_prints_what_its_comments_say() -> None:
    printed = printed_by_the_program_in((ROOT / "docs" / "quantization.md").read_text("utf-8"))
    sizes, error, is_same = printed.splitlines()
    assert sizes == "65536 10240"
    assert 0 < float(error) < 0.5
    assert is_same == "True"


def test_the_program_in_graphs_and_fusion_md_prints_what_its_comments_say() -> None:
    text = (ROOT / "docs" / "graphs-and-fusion.md").read_text("utf-8")
    printed = printed_by_the_program_in(text)
    assert printed.splitlines() == re.findall(r"# (<compiled .*>|0\.000 .*)", text)


def test_the_program_in_training_md_prints_what_its_comments_say() -> None:
    printed = printed_by_the_program_in((ROOT / "docs" / "training.md").read_text("utf-8"))
    assert printed == "<compiled function step: 1 graph> 300 True\n"


def test_every_document_named_in_the_readme_exists() -> None:
    missing = [
        name for name in re.findall(r"\]\(([\w/.-]+)\)", README) if not (ROOT / name).exists()
    ]
    assert missing == []


def test_the_program_in_autodiff_md_prints_what_its_comments_say() -> None:
    document = (ROOT / "docs" / "autodiff.md").read_text("utf-8")
    assert printed_by_the_program_in(document) == "(2, 1) True\nFalse\n"


def test_the_program_in_distributed_md_prints_what_its_comments_say() -> None:
    text = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    assert printed_by_the_program_in(text).splitlines() == re.findall(r"print\(.*# (.*)", text)


def test_distributed_md_names_all_of_the_namespace() -> None:
    text = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    assert [name for name in br.distributed.__all__ if name not in text] == []


def test_the_program_in_asyncio_md_prints_the_sum_and_the_mean() -> None:
    printed = printed_by_the_program_in((ROOT / "docs" / "asyncio.md").read_text("utf-8"))
    assert printed == "1048576.0 1.0\n"
