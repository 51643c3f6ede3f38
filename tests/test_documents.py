"""Programs in the pages for users print what their comments say; the architecture is the tree's."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.servers import server

DOCS = Path(__file__).parents[1] / "docs"

# Pages whose programs are complete: all blocks of a page, in order, are one program, and each
# `print` line ends with a comment that has the printed text.
PAGES = sorted(
    [
        DOCS / "index.md",
        *(DOCS / "tutorial").glob("*.md"),
        *(DOCS / "coming-from").glob("*.md"),
        *(DOCS / "how-to").glob("*.md"),
        DOCS / "limits.md",
    ]
)
ADDRESSES = ["ws://127.0.0.1:3000", "ws://127.0.0.1:3001"]


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Yield the addresses of two servers, which all pages use."""
    with server() as first, server() as second:
        yield [first.address, second.address]


def program_of(page: Path) -> str:
    """Return the program of a page: its Python blocks, joined."""
    text = page.read_text("utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def expected_of(program: str) -> list[str]:
    """Return what the comments after ``print`` say, in order."""
    prints = [line for line in program.splitlines() if re.match(r"\s*print\(", line)]
    found = [re.search(r"\)\s+# (.*)$", line) for line in prints]
    assert all(found), "a print has no comment with its output"
    return [each[1] for each in found if each]


def test_the_pages_for_users_have_programs() -> None:
    assert [page.name for page in PAGES if "```python" in page.read_text("utf-8")] != []
    assert {page.parent.name for page in PAGES} == {"docs", "tutorial", "coming-from", "how-to"}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if program_of(page)],
    ids=lambda page: str(page.relative_to(DOCS)),
)
def test_the_programs_of_a_page_print_what_their_comments_say(
    page: Path, addresses: list[str], tmp_path: Path
) -> None:
    program = program_of(page)
    pasted = program
    for written, running in zip(ADDRESSES, addresses, strict=True):
        pasted = pasted.replace(written, running)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", pasted],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == expected_of(program)


def test_every_option_of_the_server_in_the_documents_exists() -> None:
    command = Path(sys.executable).with_name("burn-remote-server")
    shown = subprocess.run(
        [command, "--help"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    options = set(re.findall(r"--[a-z][a-z-]+", shown))
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    used = {
        (page.name, option)
        for page in pages
        for line in re.findall(r"^burn-remote-server .*$", page.read_text("utf-8"), re.MULTILINE)
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", line)
    }
    assert used, "no document starts a server with an option"
    assert {(page, option) for page, option in used if option not in options} == set()


ROOT = DOCS.parent
PACKAGES = {
    path.name: path
    for path in (
        ROOT / "protocol" / "burn_remote_protocol",
        ROOT / "client" / "burn_remote",
        ROOT / "server" / "burn_remote_server",
    )
}


def rows_of_architecture(package: str) -> list[tuple[list[str], str]]:
    """Return the rows of a package's table: the names in the first column, and the whole row."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    (table,) = re.findall(rf"^### .*/{package}`\n\n\|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = table.splitlines()
    return [(re.findall(r"`([^`]+)`", row.split("|")[1]), row) for row in rows]


def folders_in(package: Path) -> list[Path]:
    """Return the folders directly inside a package."""
    return sorted(path.parent for path in package.glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_has_a_row_for_every_folder_and_module(package: str) -> None:
    folders = {f"{path.name}/" for path in folders_in(PACKAGES[package])}
    modules = {path.stem for path in PACKAGES[package].glob("*.py")} - {"__init__"}
    named = [name for names, _ in rows_of_architecture(package) for name in names]
    assert sorted(named) == sorted(folders | modules)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_names_every_inner_folder_in_the_row_of_its_folder(package: str) -> None:
    rows = {name: row for names, row in rows_of_architecture(package) for name in names}
    missing = [
        str(inner.parent.relative_to(PACKAGES[package]))
        for outer in folders_in(PACKAGES[package])
        for inner in outer.glob("*/**/__init__.py")
        if f"`{inner.parent.name}/`" not in rows[f"{outer.name}/"]
    ]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rows_of_the_architecture_are_in_the_order_of_the_layers(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = [
        each
        for each in project["tool"]["importlinter"]["contracts"]
        if each.get("containers") == [package]
    ]
    layer_of = {
        name: place
        for place, layer in enumerate(contract["layers"])
        for name in re.findall(r"\w+", layer)
    }
    rows = [
        [layer_of[name.rstrip("/")] for name in names] for names, _ in rows_of_architecture(package)
    ]
    for upper, lower in pairwise(rows):
        assert max(upper) <= min(lower), (upper, lower)


def files_named_in(page: Path) -> set[str]:
    """Return the files with a folder that a page names, and the scripts of its commands."""
    text = page.read_text("utf-8")
    in_code = re.findall(r"`([\w-]+(?:/[\w.-]+)+\.(?:py|sh|md|yaml))`", text)
    in_commands = re.findall(r"\b((?:benchmarks|examples|tests)/[\w./-]+\.(?:py|sh))\b", text)
    return {*in_code, *in_commands}


def test_every_file_that_a_document_names_exists() -> None:
    folders = (*(path.parent for path in PACKAGES.values()), DOCS, ROOT / "tests")
    folders = (*folders, *(ROOT / name for name in ("benchmarks", "docker", "examples")))
    paths = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.*")]
    # A page may leave out the first folders of a path.
    endings = {"/".join(path.parts[start:]) for path in paths for start in range(8)}
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")]
    missing = {
        (str(page.relative_to(ROOT)), name)
        for page in pages
        for name in files_named_in(page)
        if name not in endings and not name.startswith("B/")
    }
    assert missing == set()


def test_every_page_of_measurements_is_linked_from_its_summary() -> None:
    for summary, folder in (("performance.md", "performance"), ("security.md", "security")):
        text = (DOCS / summary).read_text("utf-8")
        unlinked = [
            page.name
            for page in (DOCS / folder).glob("*.md")
            if f"({folder}/{page.name}" not in text
        ]
        assert unlinked == []


def test_links_to_sections_from_outside_the_site_name_sections_that_exist() -> None:
    """``make docs`` checks the links between pages of the site."""

    def anchors_of(page: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    pages = [*ROOT.glob("*.md"), ROOT / "docker" / "README.md"]
    missing = {
        (page.name, target, anchor)
        for page in pages
        for target, anchor in re.findall(r"\]\(([\w./-]+\.md)#([\w-]+)\)", page.read_text("utf-8"))
        if anchor not in anchors_of(page.parent / target)
    }
    assert missing == set()
