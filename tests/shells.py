"""The shells that people type SQL into: psql and sqlite3."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.postgres import find_programs

Shell = Callable[[str], str]
"""Executes statements, and returns the output of the shell."""


class Refused(Exception):
    """The database would not take it. Its own words follow."""


def shell_of(url: str) -> Shell:
    """The shell for a database, connected to it."""
    return psql(url) if url.startswith("postgresql") else sqlite(url)


def psql(url: str) -> Shell:
    if (program := find_psql()) is None:
        pytest.skip("There is no psql on this machine, and the PostgreSQL of the tests brought none.")
    command = [program, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", url]
    return lambda statements: output_of(command, statements)


def find_psql() -> str | None:
    programs = find_programs()
    return shutil.which("psql", path=programs) or shutil.which("psql")


def sqlite(url: str) -> Shell:
    file = url.removeprefix("sqlite:///")
    if (program := shutil.which("sqlite3")) is None:
        return lambda statements: in_this_process(file, statements)
    return lambda statements: output_of([program, "-batch", "-bail", file], statements)


def output_of(command: Sequence[str | Path], statements: str) -> str:
    environment = os.environ | {"PGCLIENTENCODING": "UTF8", "HOME": "/nonexistent"}
    typed = f"{statements};\n"
    done = subprocess.run(command, check=False, input=typed, capture_output=True, encoding="utf-8", env=environment)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout.strip()


def in_this_process(file: str, statements: str) -> str:
    """Replace a sqlite3 that is not installed."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        try:
            rows = [] if statements.count(";") > 1 else connection.execute(statements).fetchall()
            connection.executescript(statements if statements.count(";") > 1 else "")
        except sqlite3.Error as error:
            raise Refused(str(error)) from error
    return "\n".join("|".join(str(value) for value in row) for row in rows)
