"""The configuration file: named databases, and how to come by their passwords without writing them down.

    default_profile = "dev"

    [profiles.dev]
    url = "sqlite:////home/me/tasks.db"

    [profiles.prod]
    url = "postgresql://runner@db.example.org/app"
    production = true
    password_command = "pass show databases/app"

    [profiles.billing]
    service = "billing"             # of ~/.pg_service.conf

Besides these a profile may hold any setting. A password in a url is refused: files are copied, shown and committed.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import platformdirs

from runner.errors import InvalidSettings, InvalidUrl, UnknownProfile
from runner.settings.passwords import read_password
from runner.urls import DatabaseUrl, parse_url

_TOP = {"default_profile", "profiles"}
_NOT_SETTINGS = {"url", "service", "password_command"}
_ALTERNATIVES = "Use password_command, a service, ~/.pgpass or the environment variable PGPASSWORD"


@dataclass(frozen=True)
class Profile:
    """One table of the configuration file.

    Args:
        name: what people call it.
        path: the file it stands in.
        values: what it holds, as TOML gives it.
    """

    name: str
    path: Path
    values: Mapping[str, Any] = field(repr=False)

    def origin(self, key: str) -> str:
        """Say where a value of this profile is written."""
        return f"{key} of profile {self.name} in {self.path}"

    def settings(self) -> dict[str, Any]:
        """Return the settings that this profile makes, a service turned into a URL.

        Raises:
            InvalidSettings: a password stands in the file, or there is a service as well as a url.
            InvalidUrl: the url is not one.
        """
        values = {key: value for key, value in self.values.items() if key not in _NOT_SETTINGS}
        if self.url is not None:
            values["url"] = self.url
        return values

    @cached_property
    def url(self) -> DatabaseUrl | None:
        """The database of this profile, without its password."""
        if "service" in self.values:
            if "url" in self.values:
                _refuse(self.origin("service"), "a profile has either a url or a service")
            return DatabaseUrl("postgresql", "", options=(("service", self._text("service")),))
        if "url" not in self.values:
            return None
        url = locate(self._text("url"), self.origin("url"))
        if url.password:
            _refuse(self.origin("url"), f"a password does not belong in this file. {_ALTERNATIVES}")
        return url

    def unlocked(self, url: DatabaseUrl) -> DatabaseUrl:
        """Add the password that the profile's password_command prints; without such a command, return the url as is.

        Args:
            url: the database of this profile, and of no other: nobody else is shown its password.

        Raises:
            InvalidSettings: see `read_password`; or the database knows no passwords.
        """
        if "password_command" not in self.values:
            return url
        where = self.origin("password_command")
        if url.kind == "sqlite":
            _refuse(where, "SQLite knows no passwords")
        return replace(url, password=read_password(self._text("password_command"), where))

    def _text(self, key: str) -> str:
        value = self.values[key]
        if not isinstance(value, str) or not value:
            _refuse(self.origin(key), "it must be text")
        return value


@dataclass(frozen=True)
class ConfigFile:
    """The configuration file as it was read; a file that may be missing and is has no profiles.

    Args:
        path: where it is, or would be.
        default_profile: used when nobody names one.
        profiles: by name.
        exists: whether there is such a file.
    """

    path: Path
    default_profile: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    exists: bool = True

    def choose(self, name: str | None) -> Profile | None:
        """Pick a profile.

        Args:
            name: the one asked for; None takes the default profile, if there is one.

        Returns:
            The profile; None when nobody names one.

        Raises:
            UnknownProfile: the file does not hold it.
        """
        name = name or self.default_profile
        if name is None:
            return None
        if name not in self.profiles:
            raise UnknownProfile(name=name, known=", ".join(sorted(self.profiles)) or f"none ({self.path})")
        return self.profiles[name]


def default_path() -> Path:
    """Where the configuration file is when nobody says otherwise."""
    return platformdirs.user_config_path("tasktui") / "config.toml"


def read_config(path: Path | None, asked_by: str = "") -> ConfigFile:
    """Read the configuration file.

    Args:
        path: the file that somebody asked for; None for the default one, which may be missing.
        asked_by: who asked, for the message.

    Returns:
        What it holds.

    Raises:
        InvalidSettings: it is missing though asked for, unreadable, not TOML, or holds what no configuration file does.
    """
    place = path or default_path()
    try:
        content = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path is None:
            return ConfigFile(place, exists=False)
        raise InvalidSettings(where=asked_by or str(place), why=f"there is no file {place}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidSettings(where=str(place), why=f"the file cannot be read: {why}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(where=str(place), why=f"the file is not valid TOML: {error}") from None
    return _checked(place, content)


def locate(text: object, origin: str) -> DatabaseUrl:
    """Parse a URL and say in every complaint where it was written.

    Args:
        text: the URL, as text or parsed.
        origin: the place, for people.

    Raises:
        InvalidUrl: see `parse_url`.
    """
    if not isinstance(text, str | DatabaseUrl):
        raise InvalidUrl(url="***", why=f"it is not text ({origin})")
    try:
        return parse_url(text)
    except InvalidUrl as error:
        raise InvalidUrl(url=error.fields["url"], why=f"{error.fields['why']} ({origin})") from None


def _refuse(where: str, why: str) -> NoReturn:
    raise InvalidSettings(where=where, why=why) from None


def _checked(path: Path, content: dict[str, Any]) -> ConfigFile:
    if unknown := sorted(set(content) - _TOP):
        _refuse(str(path), f"{unknown[0]!r} is unknown at the top; settings stand in a table such as [profiles.dev]")
    tables = content.get("profiles", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        _refuse(str(path), "profiles must be tables such as [profiles.dev]")
    default = content.get("default_profile")
    if default is not None and not isinstance(default, str):
        _refuse(str(path), "default_profile must be the name of a profile")
    return ConfigFile(path, default, {name: Profile(name, path, table) for name, table in tables.items()})
