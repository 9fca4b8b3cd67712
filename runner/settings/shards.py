"""The settings of each shard: those of the profile that names it, with the database of its own profile."""

from runner.errors import InvalidSettings
from runner.settings.loading import with_password
from runner.settings.profiles import ConfigFile, Profile, read_config
from runner.settings.settings import Settings

OF_A_DATABASE = ("url", "table_prefix", "table_schema", "sqlite_synchronous")
"""The settings that a shard has from its own profile."""


def shard_settings(settings: Settings) -> dict[str, Settings]:
    """Return the settings of each shard, by name.

    Raises:
        InvalidSettings: a shard has no profile or no database, or two of them have the same one.
    """
    where, file = settings.origins.of("shards"), read_config(settings.config)
    if len(set(settings.shards)) < len(settings.shards):
        raise InvalidSettings(where=where, why="it names a shard twice")
    shards = {name: _with_database(settings, _profile(file, name, where)) for name in settings.shards}
    owners: dict[object, str] = {}
    for name, shard in shards.items():
        first = owners.setdefault((shard.url, shard.table_prefix, shard.table_schema), name)
        if first != name:
            raise InvalidSettings(where=where, why=f"the shards {first} and {name} are the same database, {shard.url}")
    return shards


def settings_of_each(settings: Settings) -> list[Settings]:
    """Return the settings of each database: those of the shards, or these.

    Raises:
        InvalidSettings: see `shard_settings`.
    """
    return [*shard_settings(settings).values()] if settings.shards and settings.shard is None else [settings]


def _profile(file: ConfigFile, name: str, where: str) -> Profile:
    if name not in file.profiles:
        known = ", ".join(sorted(file.profiles)) or "none"
        why = f"there is no profile for the shard {name!r}; {file.path} has the profiles: {known}"
        raise InvalidSettings(where=where, why=why)
    profile = file.profiles[name]
    if "shards" in profile.values:
        raise InvalidSettings(where=profile.origin("shards"), why="a shard cannot have shards")
    if profile.url is None:
        raise InvalidSettings(where=where, why=f"the profile {name} of a shard has neither a url nor a service")
    return profile


def _with_database(settings: Settings, profile: Profile) -> Settings:
    values = {name: value for name, value in profile.settings().items() if name in OF_A_DATABASE}
    database = Settings(**values)
    own = {name: getattr(database, name) for name in OF_A_DATABASE}
    has_password = settings.password is not None or settings.password_command is not None
    url = database.url if has_password else profile.unlocked(database.url)
    return with_password(settings.model_copy(update=own | {"url": url, "profile": profile.name}))
