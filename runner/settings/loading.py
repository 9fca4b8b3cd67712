"""Loading: merges arguments, environment, profile and defaults, in this order of precedence."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import create_model

from runner.errors import InvalidSettings
from runner.settings.profiles import ConfigFile, Profile, read_config
from runner.settings.settings import (
    ENV_PREFIX,
    NAMES,
    Origins,
    Settings,
    locate,
    similar_setting,
    unknown_setting,
)

# Set by continuous-integration services for their own runners. Source: "Variables reference" of GitHub Actions and
# "Predefined CI/CD variables" and "Configuring runners" of GitLab.
FOREIGN = frozenset(
    {
        *("RUNNER_ARCH", "RUNNER_DEBUG", "RUNNER_ENVIRONMENT", "RUNNER_NAME", "RUNNER_OS", "RUNNER_TEMP"),
        *("RUNNER_TOOL_CACHE", "RUNNER_TRACKING_ID", "RUNNER_USER", "RUNNER_WORKSPACE", "RUNNER_PERFLOG"),
        *("RUNNER_ALLOW_RUNASROOT", "RUNNER_MANUALLY_TRAP_SIG", "RUNNER_TEMP_PROJECT_DIR"),
        *("RUNNER_SCRIPT_TIMEOUT", "RUNNER_AFTER_SCRIPT_TIMEOUT", "RUNNER_EXECUTOR", "RUNNER_LIMIT"),
    }
)

VARIABLES = {ENV_PREFIX + name.upper(): name for name in NAMES}
"""The setting of each environment variable."""

logger = logging.getLogger(__name__)


_application: "Callable[[], SettingLayer] | None" = None
"""Returns the settings of the application framework that this process has loaded, such as Django's."""


class SettingLayer(NamedTuple):
    """One source of settings.

    Args:
        values: values by setting, as text or typed.
        origin: returns the origin of a setting in this source.
    """

    values: Mapping[str, Any]
    origin: Callable[[str], str]


def use_application(layer: "Callable[[], SettingLayer] | None") -> None:
    """Let an application framework set defaults: stronger than the default profile, weaker than a chosen one.

    Args:
        layer: returns the settings at each `load`; None for no framework.
    """
    global _application  # noqa: PLW0603 - one framework per process
    _application = layer


def load(profile: str | None = None, config: str | Path | None = None, **overrides: Any) -> Settings:
    """Load the settings from arguments, environment, profile, application and defaults, in this order of precedence.

    Args:
        profile: name of a profile in the configuration file; otherwise RUNNER_PROFILE, then the file's default_profile.
        config: configuration file; otherwise RUNNER_CONFIG, then config.toml in the user's configuration folder for
            "tasktui", which may be missing.
        **overrides: settings by name; None counts as unset.

    Returns:
        The settings, with the origin of each.

    Raises:
        InvalidSettings: a value is out of bounds, a name is misspelled, the file is missing or broken, the
            password_command fails, or RUNNER_URL contradicts the `profile` argument.
        InvalidUrl: the URL is not valid or not supported.
        UnknownProfile: the configuration file does not define the profile.
    """
    stray = stray_names(os.environ)
    environment = _read_environment()
    file = _config_file(config, environment)
    selected = profile or environment.get("profile")
    application = _application() if _application else SettingLayer({}, str)
    active = None if application.values and not selected else file.choose(selected)
    if profile and active:
        _reject_contradiction(active, environment)
    all_arguments = {"profile": profile, "config": config, **overrides}
    arguments = {name: value for name, value in all_arguments.items() if value is not None}
    values, places = _merge(
        [
            _of_file(file, active),
            application,
            SettingLayer(active.settings() if active else {}, active.origin if active else str),
            SettingLayer({name: environment[name] for name in NAMES if name in environment}, _in_environment),
            SettingLayer(arguments, lambda name: f"argument {name}"),
        ]
    )
    # The password belongs to the profile's database; another url must bring its own password.
    if active and places.get("url") == active.origin("url"):
        values["url"] = active.unlocked(values["url"])
    for name in stray:
        logger.warning("%s is set in the environment, but it is not a setting: ignored", name)
    return Settings(**values, origins=Origins(places, stray))


def stray_names(environ: Iterable[str]) -> tuple[str, ...]:
    """Find RUNNER_* variables that are not settings.

    Args:
        environ: names of environment variables.

    Returns:
        Names that resemble no setting and belong to no known service; a warning should list them.

    Raises:
        InvalidSettings: a name closely resembles a setting, so it is probably misspelled.
    """
    variables = [name for name in environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in FOREIGN]
    unknown = sorted(name for name in variables if name[len(ENV_PREFIX) :].lower() not in NAMES)
    for name in unknown:
        if similar := similar_setting(name[len(ENV_PREFIX) :]):
            why = f"unknown setting; did you mean {_variable(similar)}? Correct or remove it"
            raise InvalidSettings(where=f"{name} in the environment", why=why)
    return tuple(unknown)


def _read_environment() -> dict[str, Any]:
    """Return the variables that are settings and not empty, as text, by setting."""
    names = sorted(VARIABLES[name.upper()] for name in os.environ if name.upper() in VARIABLES)
    if not names:
        return {}  # the import takes a tenth of the start-up time of a command
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, defer_build=True)

    texts: dict[str, Any] = dict.fromkeys(names, (str | None, None))
    return EnvSettingsSource(create_model("Variables", __base__=Environment, **texts))()


def _merge(sources: Iterable[SettingLayer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values and their origins, by setting; the last source is the strongest."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for source in sources:
        for name, value in source.values.items():
            if name not in NAMES:
                raise InvalidSettings(where=source.origin(name), why=unknown_setting(name))
            values[name], places[name] = value, source.origin(name)
    return values, places


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _in_environment(name: str) -> str:
    return f"{_variable(name)} in the environment"


def _config_file(config: str | Path | None, environment: Mapping[str, Any]) -> ConfigFile:
    if config:
        return read_config(Path(config).expanduser(), "argument config")
    if path := environment.get("config"):
        return read_config(Path(path).expanduser(), _in_environment("config"))
    return read_config(None)


def _reject_contradiction(active: Profile, environment: Mapping[str, Any]) -> None:
    """Reject a RUNNER_URL that would silently replace the database of a profile named in the arguments."""
    if active.url is None or "url" not in environment:
        return
    origin = _in_environment("url")
    if replace(locate(environment["url"], origin), password=None) != active.url:
        why = f"it names another database than the profile {active.name}, which an argument selected"
        raise InvalidSettings(where=origin, why=f"{why}; unset the variable or remove the profile argument")


def _of_file(file: ConfigFile, active: Profile | None) -> SettingLayer:
    values = {"profile": active and active.name, "config": file.path if file.exists else None}
    return SettingLayer({name: value for name, value in values.items() if value}, lambda _: f"found in {file.path}")
