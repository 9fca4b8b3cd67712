"""What `tasktui` is called with, and the settings that come of it."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.settings import Settings


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was said on the command line.

    Args:
        url: the database; None leaves it to the environment, the profile and the default.
        profile: of the configuration file.
        config: the configuration file, if it is not the usual one.
        read_only: change nothing, whatever is typed later.
        write: begin with changes allowed, on a production database too.
    """

    url: str | None = None
    profile: str | None = None
    config: Path | None = None
    read_only: bool = False
    write: bool = False

    def settings(self) -> "Settings":
        """Collect the settings.

        Raises:
            PasswordInArguments: the URL holds a password, which others could read in the list of processes.
            ConfigurationError: see `runner.settings.load`.
        """
        from runner.settings import load  # a third of what there is to load, and not needed to read a command line
        from runner.urls import refuse_password

        if self.url is not None:
            refuse_password(self.url)
        return load(profile=self.profile, config=self.config, url=self.url)


def parse(arguments: Sequence[str]) -> Arguments:
    """Read the command line; it ends the process for --help, --version, and what it does not understand."""
    parser = argparse.ArgumentParser(
        prog="tasktui",
        description="Watch the task queue, find out why, and set it right.",
        epilog="Everything that it shows and does is also a verb of the command line: see runner --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--url", help="sqlite:///file.db or postgresql://host/database, without a password")
    parser.add_argument("--profile", help="a profile of the configuration file")
    parser.add_argument("--config", type=Path, help="the configuration file, if it is not the usual one")
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument("--read-only", action="store_true", help="change nothing, whatever is typed later")
    changes.add_argument("--write", action="store_true", help="allow changes from the start, on production too")
    parser.add_argument("--version", action="store_true", help="show the version, and end")
    given = vars(parser.parse_args(arguments))
    if given.pop("version"):
        from importlib.metadata import version  # takes as long as all else up to the first words

        print(version("tasktui"))
        parser.exit()
    return Arguments(**given)
