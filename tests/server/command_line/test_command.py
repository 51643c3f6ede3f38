"""Every setting is a documented flag; an error is one sentence and exit code 2."""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from burn_remote_protocol.dialects.native import UPLOAD_CHUNK_BYTES
from burn_remote_server.command_line import daemon
from burn_remote_server.command_line.command import BOOLEAN_FLAGS, SWITCHES, main
from burn_remote_server.command_line.daemon import CannotStart
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.settings.sources import flag_name, load_settings

SECRETS = {"tokens", "peer_token"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BURN_REMOTE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which a daemon would have run."""
    settings: list[Settings] = []
    monkeypatch.setattr(daemon, "run", settings.append)
    return settings


@pytest.fixture
def help_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--help"]) == 0
    return re.sub(r"[\s│]+", " ", capsys.readouterr().out)


@pytest.mark.parametrize("setting", sorted(Settings.model_fields.keys() - SECRETS))
def test_every_setting_is_a_flag(setting: str, served: list[Settings], help_text: str) -> None:
    description = Settings.model_fields[setting].description
    assert description is not None
    assert flag_name(setting) in help_text
    assert description.split(". ")[0] in help_text


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_a_secret_has_a_variable_in_the_help_and_no_flag(secret: str, help_text: str) -> None:
    assert f"BURN_REMOTE_{secret.upper()} " in help_text
    assert f" {flag_name(secret)} " not in help_text


@pytest.mark.parametrize("given", [["--token", "abc"], ["--tokens=a:abc"], ["--peer-token", "abc"]])
def test_a_secret_as_a_flag_is_refused_with_its_variable(
    given: list[str], served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    refusal = capsys.readouterr().err
    assert "BURN_REMOTE_" in refusal and "abc" not in refusal
    assert not served


def test_h_is_short_for_help(help_text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    assert re.sub(r"[\s│]+", " ", capsys.readouterr().out) == help_text


def test_every_flag_is_complete_and_named_once_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--help"]) == 0
    first_words = re.findall(r"^│ (--\S+)", capsys.readouterr().out, re.MULTILINE)
    flags = {flag_name(setting) for setting in Settings.model_fields.keys() - SECRETS}
    assert flags <= set(first_words)


def test_no_word_of_the_help_is_cut_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert not re.findall(r"\S+…", printed)


def test_the_help_names_extras_with_their_brackets(help_text: str) -> None:
    assert "burn-remote[iroh]" in help_text


def test_no_flag_without_a_value_shows_the_type_of_one(help_text: str) -> None:
    assert re.search(r"--help -h Show this message", help_text)
    assert "<bool>" not in help_text


def test_help_says_how_flags_variables_and_the_file_relate(help_text: str) -> None:
    assert "BURN_REMOTE_DRAIN_SECONDS" in help_text
    assert "A flag overrides the variable" in help_text


def test_flags_reach_the_daemon(served: list[Settings]) -> None:
    arguments = ["--port", "0", "--max-session-bytes", "8GiB", "--peer", "a", "--peer", "b"]
    assert main(arguments) == 0
    assert served == [Settings(port=0, max_session_bytes=8 * 2**30, peer=("a", "b"))]


def test_a_bad_value_is_one_sentence_and_exit_code_2(
    served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--port", "abc"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == "burn-remote-server: --port is 'abc': expected a whole number\n"
    assert served == []


def test_an_unknown_flag_is_exit_code_2(
    served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--prot", "1"]) == 2
    assert "--port" in capsys.readouterr().err
    assert served == []


def test_an_address_without_check_is_explained(
    served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--address", "ws://node-a"]) == 2
    assert "--address works only with --check" in capsys.readouterr().err
    assert served == []


def test_a_server_that_cannot_start_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(settings: Settings) -> None:
        raise CannotStart("the port is taken")

    monkeypatch.setattr(daemon, "run", refuse)
    assert main([]) == 2
    assert capsys.readouterr().err == "burn-remote-server: the port is taken\n"


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"burn-remote-server {version('burn-remote')}\n"


def test_the_shown_configuration_can_be_used_as_a_file(
    tmp_path: Path, served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--port", "0", "--peer", "10.0.0.0/8", "--transfer-checksum", "false"]
    assert main([*arguments, "--show-config"]) == 0
    shown = capsys.readouterr().out
    assert "port = 0  # --port" in shown
    assert 'host = "127.0.0.1"  # default' in shown
    assert served == []
    file = tmp_path / "server.toml"
    file.write_text(shown)
    assert tomllib.loads(shown)["peer"] == ["10.0.0.0/8"]
    assert (
        load_settings({}, {}, file).settings
        == load_settings(
            {"port": "0", "peer": ["10.0.0.0/8"], "transfer_checksum": "false"}, {}
        ).settings
    )


@pytest.mark.parametrize(
    ("given", "is_on"),
    [
        (["--nccl", "--port", "0"], True),
        (["--port", "0", "--nccl"], True),
        (["--nccl", "true"], True),
        (["--nccl", "false", "--port", "0"], False),
        (["--nccl=false"], False),
    ],
)
def test_a_boolean_flag_without_a_value_means_true(
    given: list[str], is_on: bool, served: list[Settings]
) -> None:
    assert main(given) == 0
    assert [settings.nccl for settings in served] == [is_on]


def test_each_boolean_setting_without_a_no_flag_may_have_no_value() -> None:
    booleans = {
        flag_name(name) for name, field in Settings.model_fields.items() if field.annotation is bool
    }
    assert booleans - SWITCHES.keys() == BOOLEAN_FLAGS


@pytest.mark.parametrize("flag", SWITCHES)
def test_a_switch_may_have_the_value_that_other_flags_have(
    flag: str, served: list[Settings]
) -> None:
    setting = flag.removeprefix("--").replace("-", "_")
    others = ["--port", "0", "--nccl", "true"]
    for given in ([flag, "true", *others], [*others, flag, "false"], [SWITCHES[flag]]):
        assert main(given) == 0
    assert [getattr(settings, setting) for settings in served] == [True, False, False]
    assert [settings.port for settings in served] == [0, 0, 3000]


def test_the_help_gives_the_size_of_a_chunk(help_text: str) -> None:
    assert f"chunks of {UPLOAD_CHUNK_BYTES // 1024} KiB" in " ".join(help_text.split())


def test_the_shown_configuration_keeps_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BURN_REMOTE_TOKENS", "alice:a-secret-of-alice")
    assert main(["--show-config"]) == 0
    shown = capsys.readouterr().out
    assert "a-secret-of-alice" not in shown
    assert "# tokens is set by BURN_REMOTE_TOKENS, and not shown" in shown
