"""Passwords: the password of a database that its URL does not have."""

from dataclasses import replace

from runner.errors import InvalidSettings
from runner.settings.password_command import PasswordCommand
from runner.settings.settings import Settings


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
