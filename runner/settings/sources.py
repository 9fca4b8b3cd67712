"""Sources: where `load` finds settings besides its arguments, as sources of pydantic-settings."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, PydanticBaseSettingsSource, SecretsSettingsSource, SettingsError

from runner.errors import InvalidSettings
from runner.model.home import expand_home
from runner.settings.settings import ENV_PREFIX, NAMES, Settings, similar_setting

FILE_SUFFIX = "_file"
"""The end of a variable whose value is the path of a file with the value of a setting."""

FORMER_URL = "RUNNER_URL"
"""The former name of TASKTUI_URL, which programs may still set; no other former name is read."""

SECRETS_VARIABLE = f"{ENV_PREFIX}SECRETS_DIR"
DEFAULT_SECRETS = Path("/run/secrets")
"""The folder of secrets, where containers mount them."""


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


class SettingLayer(PydanticBaseSettingsSource):
    """One source of settings.

    Args:
        values: values by setting, as text or typed.
        origin: returns the origin of a setting in this source.
    """

    def __init__(self, values: Mapping[str, Any], origin: Callable[[str], str]) -> None:
        super().__init__(Settings)
        self.values, self.origin = dict(values), origin

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """The value of one field, in the form of pydantic-settings."""
        return self.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """The values."""
        return dict(self.values)


class PlainTexts:
    """A part of a source that leaves texts such as mail,sms as they are: they are not JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        """The text."""
        return value


class Variables(PlainTexts, EnvSettingsSource):
    """The variables of the environment."""


class SecretFiles(PlainTexts, SecretsSettingsSource):
    """The files of a folder of secrets."""


def environment() -> SettingLayer:
    """The variables of the environment that are settings and not empty.

    Raises:
        InvalidSettings: a variable and its form with _FILE are both set.
    """
    if not any(key.upper().startswith(ENV_PREFIX) for key in os.environ):
        return SettingLayer({}, str)  # the source looks for each setting, which a short command need not wait for
    texts = Variables(Settings)()
    values = {name: text for name, text in texts.items() if name in NAMES}
    files = dict(_named_files())
    for name, (key, path) in files.items():
        if name in values:
            _refuse(key, f"{variable(name)} is set too: remove one of them")
        values[name] = _content(Path(expand_home(path)), f"{key} in the environment")

    def origin(name: str) -> str:
        return (
            f"{files[name][1]}, named by {files[name][0]}" if name in files else f"{variable(name)} in the environment"
        )

    return SettingLayer(values, origin)


def former_url() -> SettingLayer:
    """The URL under its former name."""
    url = os.environ.get(FORMER_URL)
    return SettingLayer({"url": url} if url else {}, lambda _name: f"{FORMER_URL} in the environment")


def _named_files() -> Iterator[tuple[str, tuple[str, str]]]:
    """The settings whose values are in a file that a variable such as TASKTUI_URL_FILE names."""
    for key, path in os.environ.items():
        name = key.upper().removeprefix(ENV_PREFIX).lower()
        setting = name.removesuffix(FILE_SUFFIX)
        if path and key.upper().startswith(ENV_PREFIX) and setting != name and setting in NAMES:
            yield setting, (key, path)


def _content(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        _refuse(where, f"the file {path} cannot be read: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """The reason why a file cannot be read."""
    match error:
        case OSError():
            return f"{error.strerror} (errno {error.errno})"
        case UnicodeDecodeError():
            return "it is not UTF-8 text"
        case SettingsError(__cause__=BaseException() as cause):  # pydantic-settings names the field alone
            return _reason(cause)
    return str(error)


def secrets() -> SettingLayer:
    """The files of the folder of secrets: tasktui_url has the URL. Without a variable, the folder may be missing.

    Raises:
        InvalidSettings: the folder or a file cannot be read, or the name of a file is misspelled.
    """
    chosen = os.environ.get(SECRETS_VARIABLE)
    folder = Path(expand_home(chosen)) if chosen else DEFAULT_SECRETS
    if not chosen and not folder.is_dir():
        return SettingLayer({}, str)
    where = f"{SECRETS_VARIABLE} in the environment" if chosen else f"the folder {folder}"
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name.lower().startswith(ENV_PREFIX.lower()))
        _refuse_names(names, folder)
        values = SecretFiles(Settings, folder)() if names else {}
    except (OSError, SettingsError, UnicodeDecodeError) as error:
        _refuse(where, f"the secrets in {folder} cannot be read: {_reason(error)}")
    return SettingLayer(
        {name: text for name, text in values.items() if name in NAMES and text},
        lambda name: f"the secret {folder / variable(name).lower()}",
    )


def _refuse_names(names: list[str], folder: Path) -> None:
    """Refuse misspelled names, and links that lead out of the folder, which pydantic-settings ignores."""
    for name in names:
        setting = name.lower().removeprefix(ENV_PREFIX.lower())
        if setting in NAMES and folder.resolve() not in (target := (folder / name).resolve()).parents:
            _refuse(f"the secret {folder / name}", f"it is a link to {target}; set {variable(setting)}_FILE instead")
        if setting not in NAMES and (similar := similar_setting(setting)):
            why = f"unknown setting; did you mean {variable(similar).lower()}? Rename or remove it"
            _refuse(f"the secret {folder / name}", why)


def _refuse(where: str, why: str) -> NoReturn:
    raise InvalidSettings(where=where, why=why) from None
