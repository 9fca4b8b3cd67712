"""Loading: arguments, before the environment, before a profile of the configuration file, before the defaults."""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.errors import InvalidSettings
from runner.settings.environment import TEXTS, read_environment, stray_names
from runner.settings.profiles import ConfigFile, Profile, locate, read_config
from runner.settings.sources import Layer, merge, variable
from runner.settings.values import NAMES, Origins, Settings

logger = logging.getLogger(__name__)


def load(profile: str | None = None, config: str | Path | None = None, **overrides: Any) -> Settings:
    """Collect the settings: arguments, before the environment, before a profile, before the defaults.

    Args:
        profile: name of a profile in the configuration file; without it RUNNER_PROFILE, then the file's
            default_profile.
        config: the configuration file; without it RUNNER_CONFIG, then config.toml in the user's configuration folder
            for "tasktui", which may be missing.
        **overrides: settings by name; None counts as not given.

    Returns:
        The settings, which know where each of them came from.

    Raises:
        InvalidSettings: a value is out of bounds, a name is mistyped, the file is missing or broken, the
            password_command fails, or a profile asked for by name is contradicted by RUNNER_URL.
        InvalidUrl: the URL is none of ours.
        UnknownProfile: the file does not hold it.
    """
    stray, environment = stray_names(os.environ, NAMES), read_environment(os.environ, NAMES)
    file = _config_file(config, environment)
    chosen = file.choose(profile or environment.get("profile"))
    if profile and chosen:
        _refuse_contradiction(chosen, environment)
    given = {"profile": profile, "config": config, **overrides}
    arguments = {name: value for name, value in given.items() if value is not None}
    values, origins = merge(
        [
            _of_file(file, chosen),
            _of_profile(chosen),
            Layer(environment, lambda name: f"{variable(name)} in the environment"),
            Layer(arguments, lambda name: f"argument {name}"),
        ],
        NAMES,
    )
    for name in stray:
        logger.warning("%s is set in the environment, but no setting has this name: ignored", name)
    return replace(_build(values, origins, chosen), origins=Origins(origins, tuple(stray)))


def _config_file(config: str | Path | None, environment: Mapping[str, Any]) -> ConfigFile:
    if config:
        return read_config(Path(config).expanduser(), "argument config")
    if asked := environment.get("config"):
        return read_config(Path(asked).expanduser(), f"{variable('config')} in the environment")
    return read_config(None)


def _refuse_contradiction(chosen: Profile, environment: Mapping[str, Any]) -> None:
    """Refuse to let a forgotten variable send somebody who typed one database's name to another."""
    if chosen.url is None or "url" not in environment:
        return
    origin = f"{variable('url')} in the environment"
    if replace(locate(environment["url"], origin), password=None) != chosen.url:
        why = f"it points at another database than profile {chosen.name}, which was asked for by name"
        raise InvalidSettings(where=origin, why=f"{why}; unset the variable or leave the profile out")


def _of_profile(chosen: Profile | None) -> Layer:
    if chosen is None:
        return Layer({}, str)
    settings = chosen.settings()
    for name in ("profile", "config"):
        if name in settings:
            raise InvalidSettings(where=chosen.origin(name), why="a profile cannot choose a profile or a file")
    return Layer(settings, chosen.origin)


def _of_file(file: ConfigFile, chosen: Profile | None) -> Layer:
    found = {"profile": chosen and chosen.name, "config": file.path if file.exists else None}
    return Layer({name: value for name, value in found.items() if value}, lambda _: f"found in {file.path}")


def _build(values: dict[str, Any], origins: Mapping[str, str], chosen: Profile | None) -> Settings:
    if "url" in values:
        values["url"] = locate(values["url"], origins["url"])
    # Its password is for the profile's own database: whoever overrides the url brings the password along.
    if chosen and origins.get("url") == chosen.origin("url"):
        values["url"] = chosen.unlocked(values["url"])
    if "config" in values:
        values["config"] = Path(values["config"])
    if values.keys() <= TEXTS:
        return Settings(**values)
    from runner.settings.checking import checked  # pydantic takes a tenth of a second to load

    return checked(values, origins)
