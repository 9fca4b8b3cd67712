"""Profiles with shards, for tests: two SQLite files, two databases of a server, or one of each."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.settings import Settings, load

KINDS = ("sqlite", "postgresql")

EACH_PAIR = pytest.mark.parametrize(
    "pair", [("sqlite", "postgresql"), ("sqlite", "sqlite"), ("postgresql", "postgresql")], ids="-".join
)
"""The kinds of the two databases."""


class Sharded(NamedTuple):
    """A profile `orders` with the shards `eu` and `us`.

    Args:
        config: the configuration file.
        urls: the URL of each shard.
    """

    config: Path
    urls: Mapping[str, str]

    def settings(self, **overrides: Any) -> Settings:
        """Return the settings of the profile."""
        return load(profile="orders", config=self.config, **overrides)


@contextmanager
def sharded(
    request: pytest.FixtureRequest, directory: Path, pair: tuple[str, str], rule: str = "hash"
) -> Iterator[Sharded]:
    """Make the databases and the configuration file."""
    with ExitStack() as stack:
        urls = {}
        for name, kind in zip(("eu", "us"), pair, strict=True):
            databases = request.getfixturevalue(kind)
            folder = directory / name
            folder.mkdir()
            urls[name] = databases.migrated(folder)
            stack.callback(databases.remove, urls[name])
        yield Sharded(write_config(directory / "config.toml", urls, rule), urls)


def write_config(path: Path, urls: Mapping[str, str], rule: str = "hash") -> Path:
    """Write the profile `orders`, and one for each shard."""
    names = ", ".join(f'"{name}"' for name in urls)
    tables = [f'[profiles.orders]\nshards = [{names}]\nshard_rule = "{rule}"\n']
    tables += [f'[profiles.{name}]\nurl = "{url}"\n' for name, url in urls.items()]
    path.write_text("\n".join(tables))
    return path
