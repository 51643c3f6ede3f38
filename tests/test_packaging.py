"""What the distribution promises is in the tree: commands, types, licences, import contracts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = [
    ROOT / path for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_package_is_marked_as_typed(package: Path) -> None:
    assert (package / "py.typed").is_file()
    assert (package / "__init__.py").is_file()


@pytest.mark.parametrize(
    "path", PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
)
def test_every_path_in_the_source_distribution_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_entry_point_can_be_loaded() -> None:
    (local,) = entry_points(group="burn_remote.local")
    (command,) = entry_points(group="console_scripts", name="burn-remote-server")
    assert callable(local.load())
    assert callable(command.load())


def test_the_changelog_has_an_unreleased_section() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_is_documented_exists(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = (ROOT / document).read_text("utf-8")
    lines = re.findall(r"(?:^|`)make ([a-z][a-z -]*?)(?:`|  |$)", text, re.MULTILINE)
    named = {target for line in lines for target in line.split()}
    assert named
    assert named <= targets


def test_every_phony_target_has_a_recipe() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    assert sorted(phony.split()) == sorted(targets)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_document_that_is_linked_exists(document: str) -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", (ROOT / document).read_text("utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_import_contract_covers_the_whole_protocol_core() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = [item for item in contracts if "protocol core" in item["name"]]
    package = ROOT / "protocol" / "burn_remote_protocol"
    modules = {path.stem for path in package.glob("[a-z]*.py")}
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    others = {
        "bounded_threads", "interrupted_finalizers", "latches", "links", "loop_calls",
        "timed_queue", "waiters",
    }  # fmt: skip
    expected = {f"burn_remote_protocol.{name}" for name in (modules | packages) - others}
    assert set(contract["source_modules"]) == expected


def folders_of(package: Path) -> list[str]:
    """Return the dotted names of all folders in a package, at any depth."""
    folders = [path.parent.relative_to(package.parent) for path in package.rglob("*/__init__.py")]
    return sorted(".".join(folder.parts) for folder in folders)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_layer_of_a_contract_has_each_folder(package: Path) -> None:
    layered = {
        f"{container}.{name}"
        for contract in PROJECT["tool"]["importlinter"]["contracts"]
        for container in contract.get("containers", ())
        for layer in contract["layers"]
        for name in re.findall(r"\w+", layer)
    }
    assert set(folders_of(package)) - layered == set()


# Folders with parallel implementations, whose modules may have equal names.
PARALLEL = [
    {"backends/array", "backends/cupy", "backends/numpy"},
    {"fusion/cpu", "fusion/cuda"},
    {"fusion/cpu", "backends/array"},  # the fusers of the array backends
    {"links/iroh", "links/websocket"},
    {"dialects/burn_0_21", "dialects/burn_0_22", "dialects/native"},
    {"torch/aten", "functions", "nn"},  # the same functions, by PyTorch's names and by ours
    {"torch/aten", "arguments"},
]


def are_parallel(paths: list[Path]) -> bool:
    """Return whether modules lie in different folders of one group in ``PARALLEL``."""
    for group in PARALLEL:
        folders = [
            folder for path in paths for folder in group if path.is_relative_to(Path(folder))
        ]
        if len(folders) == len(set(folders)) == len(paths):
            return True
    return False


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_modules_have_equal_or_similar_names_only_in_parallel_folders(package: Path) -> None:
    modules: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("[a-z]*.py")):
        modules.setdefault(path.stem.removesuffix("s"), []).append(path.relative_to(package))
    alike = [paths for paths in modules.values() if len(paths) > 1 and not are_parallel(paths)]
    assert [[str(path) for path in paths] for paths in alike] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_module_outside_a_folder_has_the_folders_name(package: Path) -> None:
    folders = [path.parent for path in package.rglob("*/__init__.py")]
    named = [
        (str(folder.relative_to(package)), str(path.relative_to(package)))
        for folder in folders
        for path in (*package.rglob("[a-z]*.py"), *folders)
        if path.stem.removesuffix("s") == folder.name.removesuffix("s")
        and not path.is_relative_to(folder)
        and not are_parallel([folder.relative_to(package), path.relative_to(package)])
    ]
    assert named == []


def test_no_import_in_a_circle_is_ignored() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (circles,) = [contract for contract in contracts if contract["type"] == "acyclic_siblings"]
    assert set(circles["ancestors"]) == {package.name for package in PACKAGES}
    assert circles["skip_descendants"] == ["burn_remote.functions"]
    ignoring = [contract["name"] for contract in contracts if "ignore_imports" in contract]
    assert ignoring == ["Only the backends know the array libraries"]


def test_the_client_works_without_the_servers_dependencies() -> None:
    extra = {"typer", "rich", "structlog", "pydantic", "prometheus_client", "uvloop"}
    program = "import sys, burn_remote; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    loaded = set(ended.stdout.split())
    assert not extra & loaded
    assert "burn_remote_server" not in loaded
