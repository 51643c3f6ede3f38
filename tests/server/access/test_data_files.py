"""The files that clients may load: what lies in the directory, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import FileUnavailable, UsageError
from burn_remote_server.access.data_files import NO_FILES, DataFiles

SECRET = b"a secret outside"
INSIDE = b"inside 0123456789"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a file, beside a secret that must never be read."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "data" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "data" / "x.bin").write_bytes(INSIDE)
    (tmp_path / "data" / "deep" / "er" / "y.bin").write_bytes(INSIDE)
    return tmp_path / "data"


def content(files: DataFiles, name: str) -> bytes:
    """Return all bytes of a file."""
    facts = files.find(name)
    memory = bytearray(facts.size)
    with files.opened(name, facts.version, 0, facts.size) as file:
        file.read_into(memoryview(memory))
        file.check_unchanged()
    return bytes(memory)


def test_a_file_below_the_directory_is_read(root: Path) -> None:
    files = DataFiles([root])
    assert content(files, "x.bin") == content(files, "deep/er/y.bin") == INSIDE


def test_a_range_of_a_file_is_read(root: Path) -> None:
    files = DataFiles([root])
    facts = files.find("x.bin")
    memory = bytearray(3)
    with files.opened("x.bin", facts.version, 7, 3) as file:
        file.read_into(memoryview(memory))
    assert bytes(memory) == INSIDE[7:10]


def test_the_first_directory_that_has_the_name_counts(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.bin").write_bytes(b"other")
    (tmp_path / "other" / "z.bin").write_bytes(b"z")
    files = DataFiles([root, tmp_path / "other"])
    assert content(files, "x.bin") == INSIDE
    assert content(files, "z.bin") == b"z"


@pytest.mark.parametrize(
    "name",
    [
        "", "/", ".", "..", "../secret", "deep/../../secret", "deep/./er/y.bin", "/x.bin", "x.bin/",
        "deep//er/y.bin", "x.bin\0", "\ud800", "/etc/passwd", "a/" * 64 + "b",
    ],
)  # fmt: skip
def test_a_name_that_is_no_path_below_the_directory_is_refused(root: Path, name: str) -> None:
    with pytest.raises(FileUnavailable, match="is not the name of a file"):
        DataFiles([root]).find(name)


PARTS = st.sampled_from(
    ["..", ".", "", "x.bin", "secret", "deep", "er", "y.bin", "data", "~", "\\", "..\\secret"]
)


@given(name=st.text(max_size=30) | st.lists(PARTS, max_size=8).map("/".join))
@example(name="../secret")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_reads_anything_outside(root: Path, name: str) -> None:
    with contextlib.suppress(FileUnavailable):
        assert content(DataFiles([root]), name) == INSIDE


@pytest.mark.parametrize("target", ["../secret", "x.bin", "/etc/hostname", "nothing"])
def test_a_symbolic_link_to_a_file_is_not_followed(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    with pytest.raises(FileUnavailable, match="link, which is not followed"):
        DataFiles([root]).find("link")


@pytest.mark.parametrize("target", ["..", "deep"])
def test_a_symbolic_link_to_a_directory_is_not_followed(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    with pytest.raises(FileUnavailable, match="link, which is not followed"):
        DataFiles([root]).find("link/secret")


def test_the_directory_itself_may_be_a_link_of_the_operator(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert content(DataFiles([tmp_path / "link"]), "x.bin") == INSIDE


def test_special_files_and_directories_are_refused_without_waiting(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
        for name in ("pipe", "socket", "deep"):
            with pytest.raises(FileUnavailable, match="not a regular file"):
                DataFiles([root]).find(name)


def test_a_pipe_that_takes_the_place_of_a_checked_file_is_refused_without_waiting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat
    replaced: list[str] = []

    def stat_then_replace(path: str, **options: object) -> os.stat_result:
        found = stat(path, **options)  # type: ignore[arg-type]
        if path == "x.bin" and not replaced:
            replaced.append(path)
            (root / "x.bin").unlink()
            os.mkfifo(root / "x.bin")
        return found

    monkeypatch.setattr(os, "stat", stat_then_replace)
    with pytest.raises(FileUnavailable, match="not a regular file"):
        DataFiles([root]).find("x.bin")


def test_a_tree_that_changes_meanwhile_never_leads_outside(root: Path, tmp_path: Path) -> None:
    """Another process swaps a directory for a link to the parent of the secret, and back."""
    (tmp_path / "er").mkdir()
    (tmp_path / "er" / "y.bin").write_bytes(SECRET)
    is_done = threading.Event()

    def swap() -> None:
        while not is_done.is_set():
            (root / "deep").rename(root / "away")
            (root / "deep").symlink_to(tmp_path)
            (root / "deep").unlink()
            (root / "away").rename(root / "deep")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    try:
        for _ in range(2000):
            with contextlib.suppress(FileUnavailable):
                seen.add(content(DataFiles([root]), "deep/er/y.bin"))
    finally:
        is_done.set()
        swapping.join()
    assert seen <= {INSIDE}


@pytest.mark.parametrize("change", ["replaced", "appended", "rewritten"])
def test_a_changed_file_has_another_version(root: Path, change: str) -> None:
    files, path = DataFiles([root]), root / "x.bin"
    facts = files.find("x.bin")
    if change == "replaced":
        (root / "new").write_bytes(INSIDE)
        (root / "new").rename(path)
    elif change == "appended":
        path.write_bytes(INSIDE + b"!")
    else:
        path.write_bytes(INSIDE[::-1])
        os.utime(path, ns=(0, 1))
    with (
        pytest.raises(FileUnavailable, match="has changed since it was found"),
        files.opened("x.bin", facts.version, 0, 1),
    ):
        raise AssertionError("a file of another version was opened")


def test_a_file_that_changes_while_it_is_read_is_noticed(root: Path) -> None:
    files = DataFiles([root])
    facts = files.find("x.bin")
    with files.opened("x.bin", facts.version, 0, facts.size) as file:
        file.read_into(memoryview(bytearray(4)))
        (root / "x.bin").write_bytes(INSIDE * 2)
        with pytest.raises(FileUnavailable, match="changed while it was read"):
            file.check_unchanged()


def test_a_file_that_becomes_shorter_is_an_error_and_no_endless_loop(root: Path) -> None:
    files = DataFiles([root])
    facts = files.find("x.bin")
    with files.opened("x.bin", facts.version, 0, facts.size) as file:
        (root / "x.bin").write_bytes(b"")
        with pytest.raises(FileUnavailable, match="became shorter"):
            file.read_into(memoryview(bytearray(4)))


@pytest.mark.parametrize(("offset", "size"), [(0, 18), (17, 1), (2**63, 1), (1, 2**63)])
def test_a_range_beyond_the_end_is_refused(root: Path, offset: int, size: int) -> None:
    files = DataFiles([root])
    with (
        pytest.raises(FileUnavailable, match="but the file has 17"),
        files.opened("x.bin", files.find("x.bin").version, offset, size),
    ):
        raise AssertionError("a range beyond the end was opened")


def test_without_directories_no_file_is_given() -> None:
    with pytest.raises(FileUnavailable, match="--data-dir PATH"):
        NO_FILES.find("x.bin")


@pytest.mark.parametrize("missing", ["none", "x.bin"])
def test_a_directory_that_cannot_be_read_is_refused_at_the_start(root: Path, missing: str) -> None:
    with pytest.raises(UsageError, match=f"--data-dir .*{missing} cannot be read"):
        DataFiles([root / missing])


def test_errors_do_not_name_the_directory(root: Path) -> None:
    (root / "link").symlink_to("..")
    files = DataFiles([root])
    for name in ("none", "link", "deep", "x.bin/y", "../x"):
        with pytest.raises(FileUnavailable) as caught:
            files.find(name)
        assert str(root) not in str(caught.value)


def opened_below(directory: Path) -> list[str]:
    """Return the directory and what lies below it, as often as this process has it open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            found.append(os.readlink(descriptor))
    return [path for path in found if Path(path).is_relative_to(directory)]


def test_no_descriptor_stays_open(root: Path) -> None:
    files = DataFiles([root])
    content(files, "deep/er/y.bin")
    for name in ("deep/none", "deep/er", "../x"):
        with pytest.raises(FileUnavailable):
            files.find(name)
    with files.opened("x.bin", files.find("x.bin").version, 0, 1):
        assert sorted(opened_below(root)) == [str(root), str(root / "x.bin")]
    assert opened_below(root) == []


def test_a_disk_that_fails_after_a_file_was_opened_gives_an_error_without_its_path(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/secret")

    files = DataFiles([root])
    facts = files.find("x.bin")
    with files.opened("x.bin", facts.version, 0, 1) as file:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", lambda _: os.stat(root))  # a directory
            with pytest.raises(FileUnavailable, match="not a regular file"):
                files.find("x.bin")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", fail)
            with pytest.raises(FileUnavailable, match="cannot be read") as caught:
                file.check_unchanged()
            with pytest.raises(FileUnavailable, match="cannot be read"):
                files.find("x.bin")
        assert "secret" not in str(caught.value)
