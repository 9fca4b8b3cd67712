"""Codec keys: the secrets of the built-in codec, from the settings `codec_keys` and `codec_keys_command`."""

from functools import lru_cache

from runner.errors import InvalidSettings
from runner.model.codec_key import key_id
from runner.settings.password_command import read_output
from runner.settings.settings import Settings


def codec_keys(settings: Settings) -> tuple[str, ...]:
    """Return the keys of the settings, the first of which encrypts; none without a setting.

    Raises:
        InvalidSettings: both settings are set, or the program fails or prints something else.
    """
    command, where = settings.codec_keys_command, settings.origins.of("codec_keys_command")
    if command is None:
        return tuple(str(key) for key in settings.codec_keys)
    if settings.codec_keys:
        why = f"{settings.origins.of('codec_keys')} is set too: remove one of them"
        raise InvalidSettings(where=where, why=why)
    return _printed(str(command), where)


@lru_cache
def _printed(command: str, where: str) -> tuple[str, ...]:
    """Run a program that prints keys, with commas or white space between them; once per process."""
    try:
        keys = tuple(read_output(command, where).decode().replace(",", " ").split())
        for key in keys:
            key_id(key)
    except UnicodeDecodeError:
        raise InvalidSettings(where=where, why="the program's output is not UTF-8 text") from None
    except ValueError as error:
        raise InvalidSettings(where=where, why=f"of the program's output, {error}") from None
    if not keys:
        raise InvalidSettings(where=where, why="the program prints no key")
    return keys
