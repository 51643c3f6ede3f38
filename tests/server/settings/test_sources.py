"""Flags override variables, and variables override the file; errors name their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.settings.sources import (
    InvalidSetting,
    load_settings,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    path.write_text('port = 1\nmax_sessions = 1\nseed = 1\nmax_session_bytes = "8GiB"\n')
    return path


def test_without_sources_everything_is_default() -> None:
    loaded = load_settings({}, {})
    assert loaded.settings == Settings()
    assert loaded.sources == {}


def test_flags_win_over_variables_and_those_over_the_file(file: Path) -> None:
    variables = {"BURN_REMOTE_PORT": "2", "BURN_REMOTE_MAX_SESSIONS": "2"}
    loaded = load_settings({"port": "3", "max_sessions": None}, variables, file)
    assert loaded.settings.port == 3
    assert loaded.settings.max_sessions == 2
    assert loaded.settings.seed == 1
    assert loaded.settings.max_session_bytes == 8 * 2**30


def test_each_value_has_its_source(file: Path) -> None:
    loaded = load_settings({"port": "3"}, {"BURN_REMOTE_MAX_SESSIONS": "2"}, file)
    assert loaded.sources["port"] == "--port"
    assert loaded.sources["max_sessions"] == "BURN_REMOTE_MAX_SESSIONS"
    assert loaded.sources["seed"] == f"seed in {file}"
    assert "host" not in loaded.sources


def test_a_variable_names_the_file(file: Path) -> None:
    assert load_settings({}, {"BURN_REMOTE_CONFIG": str(file)}).settings.seed == 1


@pytest.mark.parametrize(
    ("setting", "text", "sentence"),
    [
        ("port", "abc", "--port is 'abc': expected a whole number"),
        ("port", "70000", "--port is '70000': expected a number less than or equal to 65535"),
        ("lease_seconds", "soon", "--lease-seconds is 'soon': expected a number"),
        (
            "log_level",
            "loud",
            "--log-level is 'loud': expected 'debug', 'info', 'warning' or 'error'",
        ),
        (
            "max_session_bytes",
            "lots",
            "--max-session-bytes is 'lots': expected a size in bytes, such as 67108864 or 64MiB",
        ),
        (
            "device_memory",
            "40",
            "--device-memory is '40': expected at least 1MiB; 40 are bytes: write 40GiB for "
            "gibibytes",
        ),
        (
            "advertise_address",
            "http://a",
            "--advertise-address is 'http://a': expected an address such as ws://node-a:3000",
        ),
        ("tls_key", "k.pem", "--tls-key needs tls_certificate, which is not set"),
    ],
)
def test_a_bad_value_is_one_sentence(setting: str, text: str, sentence: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        load_settings({setting: text}, {})
    assert str(error.value) == sentence


def test_the_error_for_a_bad_value_names_its_source(file: Path) -> None:
    with pytest.raises(InvalidSetting) as error:
        load_settings({}, {"BURN_REMOTE_PORT": "abc"}, file)
    assert error.value.source == "BURN_REMOTE_PORT"
    file.write_text("port = 'abc'")
    with pytest.raises(InvalidSetting) as error:
        load_settings({}, {}, file)
    assert error.value.source == f"port in {file}"


def test_a_very_long_value_is_shortened() -> None:
    with pytest.raises(InvalidSetting) as error:
        load_settings({"port": "1" * 9000}, {})
    assert len(str(error.value)) < 200


def test_a_mistyped_variable_names_the_nearest_one() -> None:
    with pytest.raises(InvalidSetting, match=r"PROT is not.*did you mean BURN_REMOTE_PORT\?"):
        load_settings({}, {"BURN_REMOTE_PROT": "1"})


@pytest.mark.parametrize(
    "variable", ["BURN_REMOTE_ADDRESS", "BURN_REMOTE_TOKEN", "BURN_REMOTE_SERVICE_PORT", "PROT"]
)
def test_variables_of_others_are_left_alone(variable: str) -> None:
    assert load_settings({}, {variable: "1"}).settings == Settings()


def test_an_empty_variable_counts_as_unset() -> None:
    assert load_settings({}, {"BURN_REMOTE_PORT": ""}).settings.port == 3000


def test_a_port_variable_of_kubernetes_is_not_our_port() -> None:
    variables = {"BURN_REMOTE_PORT": "tcp://10.96.0.7:3000"}
    assert load_settings({}, variables).settings.port == 3000


def test_a_mistyped_key_of_the_file_names_the_nearest_one(file: Path) -> None:
    file.write_text("prot = 1")
    with pytest.raises(InvalidSetting, match=r"prot in .*server.toml is not.*did you mean port\?"):
        load_settings({}, {}, file)


def test_an_unknown_key_of_the_file_is_refused_with_the_known_ones(file: Path) -> None:
    file.write_text("[colours]\nred = 1")
    with pytest.raises(
        InvalidSetting, match=r"colours in .* is not a setting; the settings are .* port"
    ):
        load_settings({}, {}, file)


def test_a_file_that_is_not_toml_is_named_with_the_line(file: Path) -> None:
    file.write_text("port = 1\nhost =\n")
    with pytest.raises(InvalidSetting, match=r"server.toml is not TOML: .*line 2"):
        load_settings({}, {}, file)


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSetting, match="is not UTF-8 text"):
        load_settings({}, {}, file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"none\.toml cannot be read: No such file"):
        load_settings({}, {}, tmp_path / "none.toml")
