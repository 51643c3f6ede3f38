"""The parts of the documentation site that are made from the code's tables."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from site_hooks import OTHERS, libraries_of, on_page_markdown

import burn_remote as br
from burn_remote.diagnostics import foreign_names

DOCS = Path(__file__).parents[1] / "docs"


def rendered(name: str) -> str:
    """Return a page's Markdown as the site has it."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
    return on_page_markdown((DOCS / name).read_text("utf-8"), page=page)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def test_each_foreign_name_is_on_the_page_of_its_library() -> None:
    numpy, torch, jax, burn = (names_in(rendered(f"coming-from/{name}.md")) for name in LIBRARIES)
    known = {*foreign_names.FUNCTIONS, *foreign_names.METHODS, *foreign_names.DISTRIBUTED}

    assert numpy | torch | jax | burn == {*known - OTHERS, "DistributedBackend"}
    assert {"arccos", "power", "fft2"} <= numpy
    assert {"CrossEntropyLoss", "masked_fill_"} <= torch - numpy
    assert {"jit", "PRNGKey"} <= jax - torch
    assert {"inner", "is_require_grad", "require_grad"} <= burn


def test_a_name_is_on_no_page_of_a_library_that_lacks_it() -> None:
    assert libraries_of("det", "method") == {"pytorch"}
    assert libraries_of("inner", "function") == {"numpy", "pytorch"}
    assert libraries_of("inner", "method") == {"burn"}
    assert libraries_of("broadcast", "function") == {"pytorch"}
    assert libraries_of("apply_along_axis", "function") == {"numpy"}
    assert libraries_of("all_gather", "function") == {"jax", "pytorch"}


LIBRARIES = ("numpy", "pytorch", "jax", "burn")


def test_the_reference_has_every_public_name_once() -> None:
    pages = [rendered(f"reference/{page.name}") for page in (DOCS / "reference").glob("*.md")]
    found = re.findall(r"^::: burn_remote\.([\w.]+)$", "\n".join(pages), re.MULTILINE)
    described_by_their_members = {
        name for name in br.__all__ if any(entry.startswith(f"{name}.") for entry in found)
    }
    constants = br.DType | float | None
    public = {name for name in br.__all__ if not isinstance(getattr(br, name), constants)}

    assert len(found) == len(set(found))
    assert public - set(found) - described_by_their_members == {"gradients"}


@pytest.mark.parametrize(
    "page", ["security.md", "conformance.md", "coming-from/burn.md", "performance/gpu.md"]
)
def test_links_of_a_page_stay_inside_the_site(page: str) -> None:
    depth = page.count("/")
    links = re.findall(r"\]\(((?:\.\./)*)[^)]*\)", rendered(page))

    assert [link for link in links if link.count("../") > depth] == []
