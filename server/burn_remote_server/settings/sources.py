"""Sources of settings, by precedence: flags, environment variables, the TOML file, defaults."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from burn_remote_protocol.errors import UsageError
from burn_remote_server.settings.server_settings import Settings

__all__ = ["InvalidSetting", "LoadedSettings", "flag_name", "load_settings", "variable_name"]

VARIABLE_PREFIX: Final = "BURN_REMOTE_"

# Variables with the prefix that are not server settings: those of the client, and the one with the
# path of the configuration file.
OTHER_VARIABLES: Final = frozenset({"address", "token", "automatic_graphs", "config"})

# difflib ratio (0 to 1) above which a name counts as a mistyped setting.
SIMILARITY: Final = 0.75


class InvalidSetting(UsageError):
    """An invalid setting. ``source`` is the flag, variable or file entry that gave it."""

    code = "invalid_setting"

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(source, problem)
        self.source = source
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.source} {self.problem}"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and the source of each setting whose value is not the default."""

    settings: Settings
    sources: Mapping[str, str]


def flag_name(setting: str) -> str:
    """Return the flag of a setting: ``--device-count``."""
    return "--" + setting.replace("_", "-")


def variable_name(setting: str) -> str:
    """Return the environment variable of a setting: ``BURN_REMOTE_DEVICE_COUNT``."""
    return VARIABLE_PREFIX + setting.upper()


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> LoadedSettings:
    """Merge the settings from all sources. A flag that is ``None`` was not given.

    Raises ``InvalidSetting`` for the first invalid name or value.
    """
    if file is None and environment.get(variable_name("config")):
        file = Path(environment[variable_name("config")])
    given = {name: value for name, value in flags.items() if value is not None}
    layers = (
        (_read_file(file) if file else {}, lambda name: f"{name} in {file}"),
        (_read_environment(environment), variable_name),
        (given, flag_name),
    )
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer, describe in layers:  # later layers override earlier ones
        values.update(layer)
        sources.update({name: describe(name) for name in layer})
    try:
        return LoadedSettings(Settings(**values), sources)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a conflict between two settings
            setting, _, rest = _explain(first).partition(" ")
            raise InvalidSetting(sources.get(setting, setting), rest) from error
        name = str(first["loc"][0])
        problem = f"is {_quote(values.get(name))}: {_explain(first)}"
        raise InvalidSetting(sources.get(name, name), problem) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSetting(str(path), "is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(str(path), f"is not TOML: {error}") from error
    for name in values:
        if name not in Settings.model_fields:
            raise InvalidSetting(f"{name} in {path}", _no_such_setting(name, Settings.model_fields))
    return values


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for variable, value in environment.items():
        if not variable.startswith(VARIABLE_PREFIX):
            continue
        name = variable.removeprefix(VARIABLE_PREFIX).lower()
        if name not in Settings.model_fields:
            _refuse_mistyped(variable, name)
        elif value and not (name == "port" and value.startswith("tcp://")):
            # Compose passes unset variables on as empty strings. Kubernetes sets
            # BURN_REMOTE_PORT=tcp://… in every pod if a service is named burn-remote.
            values[name] = value
    return values


def _refuse_mistyped(variable: str, name: str) -> None:
    # Other programs may use the prefix: only a name similar to a setting's is an error.
    meant = _nearest(name, Settings.model_fields)
    if meant and name not in OTHER_VARIABLES:
        raise InvalidSetting(variable, f"is not a setting; did you mean {variable_name(meant)}?")


def _no_such_setting(name: str, valid: Collection[str]) -> str:
    meant = _nearest(name, valid)
    if meant:
        return f"is not a setting; did you mean {meant}?"
    return f"is not a setting; the settings are {', '.join(sorted(valid))}"


def _nearest(name: str, valid: Collection[str]) -> str | None:
    written = name.lower().replace("-", "_")
    return next(iter(difflib.get_close_matches(written, valid, n=1, cutoff=SIMILARITY)), None)


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…'"


def _explain(error: Any) -> str:
    """Return what pydantic expected in plain words: ``expected a whole number``."""
    message = str(error["msg"])
    if error["type"] == "value_error":  # the text of our own validators
        return message.removeprefix("Value error, ")
    expected = _EXPECTED.get(error["type"], message.removeprefix("Input should be "))
    return "expected " + re.sub("^(less|greater) than", r"a number \1 than", expected)


_EXPECTED: Final = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "text",
}
