"""The configuration file: named databases, the sources of their passwords, and who may replace the file."""

import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from runner.errors import InvalidSettings, UnknownProfile
from runner.model.home import config_folder
from runner.settings.password_command import PasswordCommand
from runner.settings.settings import locate
from runner.urls import DatabaseUrl

THIS_USER = os.geteuid() if hasattr(os, "geteuid") else 0
"""The id of this user; Windows has none, and shows 0 as the owner of each file."""

TRUSTED = frozenset({0, THIS_USER})
"""User ids that may write the file: root and this user."""

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

MOST_LINKS = 40
"""Maximum number of links on a path, as in Linux."""


def _reject(where: str, why: str) -> NoReturn:
    raise InvalidSettings(where=where, why=why) from None


_TOP = {"default_profile", "profiles"}
_NOT_SETTINGS = {"url", "service", "password_command"}
NO_PASSWORDS = (
    "the configuration file must not contain passwords. Use password_command, TASKTUI_PASSWORD_FILE, a service, "
    "~/.pgpass or the environment variable PGPASSWORD"
)

NO_KEYS = "the configuration file must not contain keys. Use codec_keys_command or TASKTUI_CODEC_KEYS_FILE"

COMMANDS = ("password_command", "codec_keys_command")
"""The values of a profile that name a program to run."""


@dataclass(frozen=True)
class Profile:
    """A profile of the configuration file.

    Args:
        path: path of the configuration file.
        values: values as TOML returns them.
    """

    name: str
    path: Path
    values: Mapping[str, Any] = field(repr=False)

    def origin(self, key: str) -> str:
        """Return the origin of a value, for messages."""
        return f"{key} of profile {self.name} in {self.path}"

    def settings(self) -> dict[str, Any]:
        """Return the settings of this profile; a service becomes a URL.

        Raises:
            InvalidSettings: the profile or its url has a password, or it has both a url and a service, or it sets
                the profile or the config, or has shards and a database.
            InvalidUrl: the url is not valid.
        """
        for name in ("profile", "config"):
            if name in self.values:
                _reject(self.origin(name), "a profile cannot set profile or config")
        if "password" in self.values:
            _reject(self.origin("password"), NO_PASSWORDS)
        if "codec_keys" in self.values:
            _reject(self.origin("codec_keys"), NO_KEYS)
        if "shards" in self.values and self.url is not None:
            _reject(self.origin("shards"), "a profile cannot have both shards and a database of its own")
        values = {key: value for key, value in self.values.items() if key not in _NOT_SETTINGS}
        if self.url is not None:
            values["url"] = self.url
        return values

    @cached_property
    def url(self) -> DatabaseUrl | None:
        """Database of this profile, without a password."""
        if "service" in self.values:
            if "url" in self.values:
                _reject(self.origin("service"), "a profile cannot have both a url and a service")
            return DatabaseUrl("postgresql", "", options=(("service", self._text("service")),))
        if "url" not in self.values:
            return None
        url = locate(self._text("url"), self.origin("url"))
        if url.password:
            _reject(self.origin("url"), NO_PASSWORDS)
        return url

    def unlocked(self, url: DatabaseUrl) -> DatabaseUrl:
        """Add the password from the profile's password_command, if it has one.

        Args:
            url: database of this profile. Never pass another one: it would receive the password.

        Raises:
            InvalidSettings: see `PasswordCommand`; or the database is SQLite, which has no passwords.
        """
        if "password_command" not in self.values:
            return url
        where = self.origin("password_command")
        if url.file is not None:
            _reject(where, "SQLite has no passwords")
        return replace(url, password=PasswordCommand(self._text("password_command"), where).password)

    def _text(self, key: str) -> str:
        value = self.values[key]
        if not isinstance(value, str) or not value:
            _reject(self.origin(key), "expected text")
        return value


class ConfigFile(NamedTuple):
    """The configuration file; an optional file that is missing has no profiles.

    Args:
        default_profile: profile to use if none is selected.
        exists: True if the file exists.
        unreachable: the error of an optional file that this user cannot reach; empty for any other file.
    """

    path: Path
    default_profile: str | None = None
    profiles: Mapping[str, Profile] = {}
    exists: bool = True
    unreachable: str = ""

    def choose(self, name: str | None) -> Profile | None:
        """Return a profile.

        Args:
            name: name of the profile; None for the default profile, if there is one.

        Returns:
            The profile; None if none is selected.

        Raises:
            UnknownProfile: the file does not define it.
        """
        name = name or self.default_profile
        if name is None:
            return None
        if name not in self.profiles:
            raise UnknownProfile(name=name, known=", ".join(sorted(self.profiles)) or f"none ({self.path})")
        return self.profiles[name]


def default_path() -> Path:
    """Return the default path of the configuration file."""
    return config_folder() / "config.toml"


def read_config(path: Path | None, asked_by: str = "") -> ConfigFile:
    """Read the configuration file.

    Args:
        path: path of a required file; None for the default file, which may be missing. A default file that this user
            cannot reach counts as missing: a service often runs with the HOME of another user.
        asked_by: origin of the path, for messages.

    Returns:
        The parsed file.

    Raises:
        InvalidSettings: a required file is missing; or the file is not a regular file, not readable, not TOML or not
            a configuration file; or it names a password_command, and other users may write or replace it.
    """
    file, status = path or default_path(), None
    try:
        status = file.stat()
        # Opening a fifo waits for a writer, and reading a device may never end.
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            _reject(asked_by or str(file), f"{file} is not a regular file")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None:
            return ConfigFile(file, exists=False)
        raise InvalidSettings(where=asked_by or str(file), why=f"the file {file} does not exist") from None
    except OSError as error:
        why = f"{error.strerror} (errno {error.errno})"
        if path is None and not (status and status.st_uid == THIS_USER):
            return ConfigFile(file, exists=False, unreachable=why)
        raise InvalidSettings(where=asked_by or str(file), why=f"the file {file} cannot be read: {why}") from None
    except UnicodeDecodeError:
        raise InvalidSettings(where=str(file), why="the file cannot be read: it is not UTF-8 text") from None
    config = _parsed(file, _decoded(file, text))
    _reject_foreign_command(config, status)
    return config


def _decoded(file: Path, text: str) -> dict[str, Any]:
    import tomllib  # most start-ups find no file to read

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSettings(where=str(file), why=f"the file is not valid TOML: {error}") from None


def _reject_foreign_command(config: ConfigFile, status: os.stat_result) -> None:
    """Reject a file that names a program to run if users other than this one and root may write or replace it."""
    profiles = config.profiles.values()
    where = next((each.origin(name) for each in profiles for name in COMMANDS if name in each.values), None)
    if where is None or os.name == "nt":  # Windows has no such modes
        return
    if status.st_uid not in TRUSTED:
        _reject(where, "another user owns the file and could name any program")
    if status.st_mode & WRITABLE_BY_OTHERS:
        why = "other users may write the file and could name any program"
        _reject(where, f"{why}; run chmod go-w {shlex.quote(str(config.path))}")
    if problem := replaceable(config.path):
        _reject(where, f"other users may replace the file and could name any program: {problem}")


def replaceable(file: Path) -> str:
    """Find a folder or link through which other users may replace a file.

    The rule is that of OpenSSH for `authorized_keys`: every folder above the file must belong to a trusted user and be
    writable by no other one. Links count by their own folder and by their target.

    Returns:
        The problem, with advice; empty if there is none.
    """
    # Not resolve(), which would hide the folders of the links.
    path, pending, links = Path("/"), list(reversed(file.absolute().parts[1:])), 0
    while pending:
        if problem := _folder_problem(path):
            return problem
        path = path.parent if pending[-1] == ".." else path / pending[-1]
        del pending[-1]
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            continue
        links += 1
        if links > MOST_LINKS:
            return f"{file} passes more than {MOST_LINKS} links"
        if status.st_uid not in TRUSTED:
            return f"another user owns the link {path}"
        target = path.readlink()
        path = Path("/") if target.is_absolute() else path.parent
        pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return ""


def _folder_problem(folder: Path) -> str:
    status = folder.stat()
    if status.st_uid not in TRUSTED:
        return f"another user owns the folder {folder}"
    # In a sticky folder such as /tmp, only the owner of a file may rename or delete it.
    if not status.st_mode & WRITABLE_BY_OTHERS or status.st_mode & stat.S_ISVTX:
        return ""
    if not status.st_mode & stat.S_IWOTH and _is_own_group(status.st_gid):
        return ""
    return f"they may write the folder {folder}; run chmod go-w {shlex.quote(str(folder))}"


def _is_own_group(group_id: int) -> bool:
    """True for the private group that Debian, Ubuntu and Fedora create for each user: its name, and no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(THIS_USER).pw_name, grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _parsed(path: Path, content: dict[str, Any]) -> ConfigFile:
    if unknown := sorted(set(content) - _TOP):
        _reject(str(path), f"{unknown[0]!r} is not a top-level key; put settings into a table such as [profiles.dev]")
    tables = content.get("profiles", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        _reject(str(path), "profiles must be tables such as [profiles.dev]")
    default = content.get("default_profile")
    if default is not None and not isinstance(default, str):
        _reject(str(path), "default_profile must be the name of a profile")
    return ConfigFile(path, default, {name: Profile(name, path, table) for name, table in tables.items()})
