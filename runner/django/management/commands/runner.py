"""`manage.py runner VERB ...`: the command line of tasktui, with the settings and the models of the project."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from runner.cli.app import run
from runner.cli.exit_codes import exit_code_of, prepare_streams
from runner.cli.init import run_as_child
from runner.django.connection import IN_MEMORY, database_alias, is_in_memory
from runner.errors import InvalidSettings

DJANGO_OPTIONS = ("--settings", "--pythonpath")
"""Options of manage.py itself, which has applied them already."""


class Command(BaseCommand):
    """Passes all arguments to the command line."""

    help = "Run and operate tasks: work, tasks, why, retry, ... See manage.py runner --help."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run `manage.py runner ...`, and exit with the code of the command."""
        run_as_child()
        prepare_streams()
        sys.exit(exit_code_of(lambda: _run(list(_without_django_options(argv[2:])))))

    def add_arguments(self, parser: CommandParser) -> None:
        """Let `call_command("runner", "tasks", "state=dead")` pass any arguments."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, arguments: Sequence[str], **__: Any) -> None:
        """Run `call_command("runner", ...)`.

        The connections of handlers close after each task, so that Django can drop the test database afterwards.

        Raises:
            CommandError: the exit code is not 0; standard error has the reason.
        """
        with ExitStack() as stack:
            for values in connections.settings.values():
                stack.enter_context(_replaced(values, CONN_MAX_AGE=0))
            if code := exit_code_of(lambda: _run(list(arguments))):
                raise CommandError(f"runner {' '.join(arguments)} exited with code {code}", returncode=code)


@contextmanager
def _replaced(values: dict[str, Any], **changes: Any) -> Iterator[None]:
    before = dict(values)
    values.update(changes)
    try:
        yield
    finally:
        values.clear()
        values.update(before)


def _run(arguments: list[str]) -> int:
    # In memory a command would find an empty database, and a runner would wait for tasks of another process.
    connection: Any = connections[database_alias()]
    if connection.vendor == "sqlite" and is_in_memory(str(connection.settings_dict["NAME"])):
        raise InvalidSettings(where="DATABASES in Django's settings", why=IN_MEMORY)
    return run(arguments)


def _without_django_options(arguments: Sequence[str]) -> Sequence[str]:
    rest = iter(arguments)
    kept = []
    for argument in rest:
        if argument in DJANGO_OPTIONS:
            next(rest, None)
        elif not argument.startswith(tuple(f"{option}=" for option in DJANGO_OPTIONS)):
            kept.append(argument)
    return kept
