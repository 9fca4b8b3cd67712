"""Clock: the clocks of a deployment, which tests step; those of its runners and that of its database.

On SQLite the database has the clock of its process. On PostgreSQL a function of the test hides the server's clock, so
that the two clocks can differ.
"""

import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import psycopg

from runner.db.file_connection import FileConnection

FILE = "CHAOS_CLOCK"
"""The environment variable that names the file with the shift of the runners' clocks."""

SHIFT = struct.Struct("d")

HIDE = """
    CREATE SCHEMA stepped;
    CREATE TABLE stepped.shift (seconds float NOT NULL);
    INSERT INTO stepped.shift VALUES (0);
    CREATE FUNCTION stepped.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$
        SELECT pg_catalog.statement_timestamp() + (SELECT seconds FROM stepped.shift) * interval '1 second'
    $$;
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET search_path = stepped, pg_catalog, public', current_database());
    END $$
"""
"""Let a database find our clock before its own."""


class SteppedClock:
    """The clocks of a deployment, from outside.

    Args:
        url: URL of the database; no runner has opened it yet.
        file: file with the shift of the runners' clocks.
    """

    def __init__(self, url: str, file: Path) -> None:
        self._file = file
        self._server = None if url.startswith("sqlite") else psycopg.connect(url, autocommit=True)
        if self._server is not None:
            self._server.execute(HIDE)
        self.runners = self.database = 0.0
        self.step(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def now(self) -> datetime:
        """The time of the database."""
        return datetime.fromtimestamp(time.time() + self.database, UTC)

    @property
    def differs(self) -> bool:
        """True if the database has a clock of its own."""
        return self._server is not None

    def step(self, seconds: float) -> None:
        """Step all clocks, as on a machine whose time is set."""
        self.step_runners(seconds)
        if self._server is not None:
            self.database += seconds
            self._server.execute("UPDATE stepped.shift SET seconds = %s", (self.database,))

    def step_runners(self, seconds: float) -> None:
        """Step the clocks of the runners; on SQLite the database has the same one."""
        self.runners += seconds
        if self._server is None:
            self.database = self.runners
        self._file.write_bytes(SHIFT.pack(self.runners))


def install() -> None:
    """Give this process the clock that the environment names."""
    file = os.open(os.environ[FILE], os.O_RDONLY)

    def shift() -> float:
        (seconds,) = SHIFT.unpack(os.pread(file, SHIFT.size, 0))
        return float(seconds)

    _shift_python(shift)
    shift_sqlite(shift)


def _shift_python(shift: Callable[[], float]) -> None:
    """Shift the wall clock in the scheduler and in the part of the engine that drives it."""
    from runner.engine.periodic.ticks import Ticks

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class Shifted(datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(time.time() + shift(), tz)

    for name, module in list(sys.modules.items()):
        if name.startswith(("apscheduler.", "runner.engine.")) and getattr(module, "datetime", None) is datetime:
            cast("Any", module).datetime = Shifted
    cast("Any", Ticks)._wall_ahead = staticmethod(lambda: time.time() + shift() - time.monotonic())


def shift_sqlite(shift: Callable[[], float]) -> None:
    """Shift `now` in the functions of each connection that this process opens."""
    connect = sqlite3.connect

    def call(plain: sqlite3.Connection, name: str, *values: Any) -> Any:
        if "now" in values:
            values = (*values, f"{shift():+.3f} seconds")
        ((result,),) = plain.execute(f"SELECT {name}({', '.join('?' * len(values))})", values)
        return result

    class ShiftedConnection(FileConnection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._plain = connect(":memory:", check_same_thread=False)
            for name in ("strftime", "julianday"):
                self.create_function(name, -1, partial(call, self._plain, name), deterministic=True)

        def close(self) -> None:
            super().close()
            self._plain.close()

    def connect_shifted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return cast("ShiftedConnection", connect(*arguments, **options | {"factory": ShiftedConnection}))

    sqlite3.connect = sqlite3.dbapi2.connect = connect_shifted  # type: ignore[assignment]
