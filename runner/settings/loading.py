"""Loading: arguments, environment, secrets, profile, application and defaults, in this order of precedence."""

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.errors import InvalidSettings
from runner.model.home import expand_home
from runner.settings.password_command import PasswordCommand
from runner.settings.profiles import ConfigFile, Profile, read_config
from runner.settings.settings import (
    ENV_PREFIX,
    NAMES,
    SOURCES,
    Origins,
    Settings,
    locate,
    similar_setting,
    unknown_setting,
)
from runner.settings.sources import (
    FILE_SUFFIX,
    SECRETS_VARIABLE,
    SettingLayer,
    environment,
    former_url,
    secrets,
    variable,
)

# Kubernetes sets these for each Service, here for one named "tasktui". Source: "Discovering services" in its manual.
OF_A_SERVICE = re.compile(rf"{ENV_PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")

logger = logging.getLogger(__name__)


_application: "Callable[[], SettingLayer] | None" = None
"""Returns the settings of the application framework that this process has loaded, such as Django's."""


def use_application(layer: "Callable[[], SettingLayer] | None") -> None:
    """Let an application framework set defaults: stronger than the default profile, weaker than a chosen one.

    Args:
        layer: returns the settings at each `load`; None for no framework.
    """
    global _application  # noqa: PLW0603 - one framework per process
    _application = layer


def load(profile: str | None = None, config: str | Path | None = None, **overrides: Any) -> Settings:
    """Load the settings from arguments, environment, secrets, profile, application and defaults, the strongest first.

    Args:
        profile: name of a profile in the configuration file; otherwise TASKTUI_PROFILE, then the file's
            default_profile.
        config: configuration file; otherwise TASKTUI_CONFIG, then config.toml in the user's configuration folder for
            "tasktui", which may be missing.
        **overrides: settings by name; None counts as unset.

    Returns:
        The settings, with the origin of each.

    Raises:
        InvalidSettings: a value is out of bounds, a name is misspelled, the file is missing or broken, the
            password_command fails, or TASKTUI_URL contradicts the `profile` argument.
        InvalidUrl: the URL is not valid or not supported.
        UnknownProfile: the configuration file does not define the profile.
    """
    stray = stray_names(os.environ)
    outside = [environment(), former_url(), secrets()]
    file = _config_file(config, outside)
    selected = profile or next((layer.values["profile"] for layer in outside if "profile" in layer.values), None)
    application = _application() if _application else SettingLayer({}, str)
    active = None if application.values and not selected else file.choose(selected)
    if profile and active:
        _reject_contradiction(active, outside)
    all_arguments = {"profile": profile, "config": config, **overrides}
    arguments = {name: value for name, value in all_arguments.items() if value is not None}
    of_profile = SettingLayer(active.settings() if active else {}, active.origin if active else str)
    sources = (*outside, of_profile, application, _of_file(file, active))
    if any("url" in layer for layer in (arguments, *(layer.values for layer in outside))):
        of_profile.values.pop("shards", None)  # the url chooses one database
    places = _origins([SettingLayer(arguments, lambda name: f"argument {name}"), *sources])
    # The password belongs to the profile's database; another url must bring its own password.
    has_password = any(name in places for name in ("password", "password_command"))
    if active and places.get("url") == active.origin("url") and not has_password:
        of_profile.values["url"] = active.unlocked(of_profile.values["url"])
    if file.unreachable:
        places["config"] = f"default: {file.path} counts as absent: {file.unreachable}"
    for name in stray:
        logger.warning("%s is set in the environment, but it is not a setting: ignored", name)
    token = SOURCES.set(sources)
    try:
        return with_password(Settings(**arguments, origins=Origins(places, stray)))
    finally:
        SOURCES.reset(token)


def stray_names(environ: Iterable[str]) -> tuple[str, ...]:
    """Find TASKTUI_* variables that are not settings.

    Returns:
        Names that resemble no setting and are not set by Kubernetes; a warning should list them.

    Raises:
        InvalidSettings: a name closely resembles a setting, so it is probably misspelled.
    """
    variables = [
        name for name in environ if name.upper().startswith(ENV_PREFIX) and not OF_A_SERVICE.fullmatch(name.upper())
    ]
    names = {name: name[len(ENV_PREFIX) :].lower() for name in variables if name.upper() != SECRETS_VARIABLE}
    unknown = sorted(
        name for name, key in names.items() if key not in NAMES and key.removesuffix(FILE_SUFFIX) not in NAMES
    )
    for name in unknown:
        if similar := similar_setting(name[len(ENV_PREFIX) :]):
            why = f"unknown setting; did you mean {variable(similar)}? Correct or remove it"
            raise InvalidSettings(where=f"{name} in the environment", why=why)
    return tuple(unknown)


def _origins(sources: Iterable[SettingLayer]) -> dict[str, str]:
    """Return the origin of each setting; the first source is the strongest."""
    places: dict[str, str] = {}
    for source in sources:
        for name in source.values:
            if name not in NAMES:
                raise InvalidSettings(where=source.origin(name), why=unknown_setting(name))
            places.setdefault(name, source.origin(name))
    return places


def _config_file(config: str | Path | None, outside: Iterable[SettingLayer]) -> ConfigFile:
    if config:
        return read_config(expand_home(config), "argument config")
    for layer in outside:
        if path := layer.values.get("config"):
            return read_config(expand_home(path), layer.origin("config"))
    return read_config(None)


def _reject_contradiction(active: Profile, outside: Iterable[SettingLayer]) -> None:
    """Reject a URL outside that would silently replace the database of a profile named in the arguments."""
    layer = next((layer for layer in outside if "url" in layer.values), None)
    if active.url is None or layer is None:
        return
    origin = layer.origin("url")
    if replace(locate(layer.values["url"], origin), password=None) != active.url:
        why = f"it names another database than the profile {active.name}, which an argument selected"
        raise InvalidSettings(where=origin, why=f"{why}; unset the variable or remove the profile argument")


def _of_file(file: ConfigFile, active: Profile | None) -> SettingLayer:
    values = {"profile": active and active.name, "config": file.path if file.exists else None}
    return SettingLayer({name: value for name, value in values.items() if value}, lambda _: f"found in {file.path}")


def with_password(settings: Settings) -> Settings:
    """Add the password of the settings to their URL, unless it has one or is a SQLite file.

    Raises:
        InvalidSettings: `password` and `password_command` are both set, or see `PasswordCommand`.
    """
    url, origins = settings.url, settings.origins
    if url.file is not None or url.password is not None:
        return settings
    if settings.password is not None and settings.password_command is not None:
        why = f"{origins.of('password')} is set too: remove one of them"
        raise InvalidSettings(where=origins.of("password_command"), why=why)
    if settings.password is not None:
        password = str(settings.password)
    elif settings.password_command is not None:
        password = PasswordCommand(settings.password_command, origins.of("password_command")).password
    else:
        return settings
    return settings.model_copy(update={"url": replace(url, password=password)})
