"""The command line of `tasktui`, and its settings."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runner.settings import Settings


class Arguments(NamedTuple):
    """The parsed command line.

    Args:
        url: the database; None uses the environment, the profile or the default.
        profile: a profile of the configuration file.
        others: further profiles, whose databases the console shows beside the first one.
        config: the configuration file, if it is not the default one.
        read_only: forbid changes for the whole session.
        write: allow changes from the start, even on production.
        theme: name of a theme; empty for the one that suits the terminal.
        ascii: draw with ASCII characters only.
        record: a new file for a recording of the screen.
        replay: a recording to play; no database is opened.
        task: the id of the task to open first.
        at: the past time to show, as typed; None for the present.
    """

    url: str | None = None
    profile: str | None = None
    config: Path | None = None
    read_only: bool = False
    write: bool = False
    theme: str = ""
    ascii: bool = False
    record: Path | None = None
    replay: Path | None = None
    others: tuple[str, ...] = ()
    task: int | None = None
    at: str | None = None

    def each(self) -> "tuple[Arguments, ...]":
        """The arguments for each database."""
        return (self, *(self._replace(profile=name, others=()) for name in self.others))

    def settings(self) -> "Settings":
        """Collect the settings.

        Raises:
            PasswordInArguments: the URL contains a password, visible to others in the process list.
            ConfigurationError: see `runner.settings.load`.
        """
        from runner.settings import load  # a third of all imports, not needed for --help
        from runner.urls import refuse_password

        if self.url is not None:
            refuse_password(self.url)
        return load(profile=self.profile, config=self.config, url=self.url)


def parse(arguments: Sequence[str]) -> Arguments:
    """Parse the command line; exits for --help, --version and errors."""
    parser = argparse.ArgumentParser(
        prog="tasktui",
        usage="%(prog)s [OPTIONS]\n       %(prog)s COMMAND [ARGUMENTS]",
        description="Watch and operate the task queue in the console, or run one command.",
        epilog=_commands() if {"-h", "--help"} & set(arguments) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--url", help="sqlite:///file.db or postgresql://host/database, without a password")
    several = "a profile of the configuration file; repeat it for several databases side by side"
    parser.add_argument("--profile", action="append", default=[], metavar="NAME", help=several)
    parser.add_argument("--config", type=Path, help="the configuration file, if it is not the default one")
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument("--read-only", action="store_true", help="forbid changes for the whole session")
    changes.add_argument("--write", action="store_true", help="allow changes from the start, even on production")
    parser.add_argument(
        "--theme", default="", choices=("dark", "light", "sixteen", "none"), help="colours of the console"
    )
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    recordings = parser.add_mutually_exclusive_group()
    recordings.add_argument("--record", type=Path, metavar="FILE", help="record the screen as an asciicast, a new file")
    recordings.add_argument("--replay", type=Path, metavar="FILE", help="play a recording; no database is opened")
    parser.add_argument(
        "--at", metavar="TIME", help="show queues and tasks as they were: 03:12, 20m, 2026-11-22T03:12Z"
    )
    parser.add_argument("--task", type=int, metavar="ID", help="open this task first")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    values = vars(parser.parse_args(arguments))
    if values.pop("version"):
        from importlib.metadata import version  # slow: as long as everything else up to here

        print(version("tasktui"))
        parser.exit()
    names = values.pop("profile")
    if len(names) > 1 and values["url"] is not None:
        parser.error("--url names one database: leave it out with several profiles")
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        parser.error(f"each --profile may be given once, and {twice[0]!r} is there twice")
    if values["at"] is not None and (values["write"] or len(names) > 1):
        parser.error("--at shows one database, read-only: leave out --write and further profiles")
    return Arguments(**values, profile=names[0] if names else None, others=tuple(names[1:]))


def _commands() -> str:
    """List the commands, which `runner --help` lists too."""
    from runner.cli.app import CLI_COMMANDS  # the help alone needs it

    width = max(len(command.name) for command in CLI_COMMANDS)
    lines = (f"  {command.name:{width}}  {command.help}" for command in CLI_COMMANDS)
    return "\n".join(["commands, with their own --help:", *lines])
