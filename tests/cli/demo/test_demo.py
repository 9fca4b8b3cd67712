"""The demo as a process, from its first task to its report."""

import ast
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.cli.demo import run_demo
from runner.db.schema import Tables, tables
from runner.errors import InvalidInput, InvalidSettings, SchemaMissing
from runner.settings import Settings
from runner.urls import sync_url
from sample_handlers.digest import LARGEST
from tests.cli.conftest import program
from tests.conftest import on_postgresql, on_sqlite

PROGRAM = """
import asyncio, sys
from runner.cli.demo import run_demo
from runner.settings import load
tasks = int(sys.argv[1]) or None
sys.exit(asyncio.run(run_demo(load(), tasks=tasks, as_json="json" in sys.argv, keep_running="on" in sys.argv)))
"""
LATE = re.compile("event loop blocked for|no Python code ran for")
"""A warning of the watchdog, which depends on the load of the machine."""

WAIT_SECONDS = 90.0
"""Seconds after which a demo that does not get on is a failure."""


def command(tasks: int, *options: str) -> list[str]:
    return [sys.executable, "-P", "-c", PROGRAM, str(tasks), *options]


def environment(url: str = "") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKTUI_")}
    return kept | ({"TASKTUI_URL": url} if url else {})


def reported(url: str, tasks: int) -> dict[str, Any]:
    done = program("demo", "--tasks", tasks, "--json", env=environment(url))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not LATE.search(line)] == []
    report: dict[str, Any] = json.loads(done.stdout)
    return report


class Look:
    """What another program sees in the database."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.tables: Tables = tables()

    def rows(self, statement: sa.Select[Any]) -> list[sa.Row[Any]]:
        with self._connection.begin():
            return list(self._connection.execute(statement).all())

    def count(self, table: sa.Table) -> int:
        return int(self.rows(sa.select(sa.func.count()).select_from(table))[0][0])

    @property
    def finished(self) -> int:
        return self.count(self.tables.history)

    @property
    def live(self) -> int:
        return self.count(self.tables.task)


@contextmanager
def looking(url: str) -> Iterator[Look]:
    engine = sa.create_engine(sync_url(url))
    try:
        with engine.connect() as connection:
            yield Look(connection)
    finally:
        engine.dispose()


def really_fails(handler: str, path: Path) -> bool:
    content = path.read_bytes()
    if handler == "source.digest":
        return len(content) > LARGEST
    try:
        content.decode() if handler == "source.count" else ast.parse(content)
    except (SyntaxError, UnicodeDecodeError):
        return True
    return False


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not get on"
        time.sleep(0.02)


@pytest.mark.slow
def test_the_report_tells_what_the_database_holds(migrated_url: str) -> None:
    report = reported(migrated_url, 60)
    with looking(migrated_url) as look:
        history, attempt = look.tables.history.c, look.tables.attempt.c
        states = {row.state: row.count for row in look.rows(_counted(history.state))}
        assert (look.live, look.finished) == (0, 60)
        assert report["total"] | {"seconds": 0, "retried": 0} == {
            "handler": "all",
            "tasks": 60,
            "succeeded": states["succeeded"],
            "dead": states["dead"],
            "cancelled": 0,
            "unfinished": 0,
            "retried": 0,
            "seconds": 0,
        }
        handlers = {row.handler: row.count for row in look.rows(_counted(history.handler))}
        assert {total["handler"]: total["tasks"] for total in report["totals"]} == handlers
        assert len(handlers) == 3
        assert sum(reason["attempts"] for reason in report["reasons"]) == look.count(look.tables.attempt)
        assert {reason["reason"].partition(":")[0] for reason in report["reasons"]} == {
            row.error_type for row in look.rows(sa.select(attempt.error_type))
        }
        slowest = look.rows(sa.select(sa.func.max(history.duration)))[0][0]
        assert report["slowest"][0]["seconds"] == slowest
        assert report["first"] == look.rows(sa.select(sa.func.min(history.id)))[0][0]


@pytest.mark.slow
@on_sqlite
def test_what_really_fails_is_tried_by_its_rules_and_is_dead_for_a_reason(migrated_url: str) -> None:
    dead = reported(migrated_url, 60)["dead"]
    with looking(migrated_url) as look:
        history, attempt = look.tables.history.c, look.tables.attempt.c
        rows = look.rows(sa.select(history.id, history.handler, history.payload, history.error))
        parsed = sa.select(attempt.attempt, attempt.delay).where(attempt.handler == "source.parse").distinct()
        stages = sorted(map(tuple, look.rows(parsed)))
    failing = {row.id: row for row in rows if really_fails(row.handler, Path(_payload(row)["path"]))}
    assert {entry["id"]: entry["reason"] for entry in dead} == {row.id: row.error for row in failing.values()}
    assert all(entry["reason"] for entry in dead)
    attempts = {entry["handler"]: entry["attempts"] for entry in dead}
    assert attempts == {"source.parse": 3, "source.count": 1, "source.digest": 1}
    assert stages == [(1, 0.2), (2, 0.5), (3, None)]


@pytest.mark.slow
@on_postgresql
def test_another_round_reports_only_itself(migrated_url: str) -> None:
    first, second = reported(migrated_url, 25), reported(migrated_url, 30)
    assert (first["total"]["tasks"], second["total"]["tasks"]) == (25, 30)
    assert second["first"] > max(entry["id"] for entry in first["dead"])
    assert all(entry["id"] >= second["first"] for entry in second["dead"])
    with looking(migrated_url) as look:
        assert look.finished == 55


@pytest.mark.slow
def test_people_get_tables_and_see_how_far_it_is(tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    env = environment() | {"TERM": "xterm", "COLUMNS": "100"}
    pieces: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(terminal, pieces))
    reader.start()
    done = subprocess.run(
        command(30), env=env, stdout=subprocess.PIPE, stderr=stderr, check=False, cwd=tmp_path, timeout=WAIT_SECONDS
    )
    os.close(stderr)
    reader.join()
    os.close(terminal)
    line, output = b"".join(pieces).decode(), done.stdout.decode()
    assert done.returncode == 0
    assert f"Submitting 30 tasks to {tmp_path / 'tasktui.db'}\n" in output
    for title in ("Slowest tasks", "Failed attempts by reason", "Dead tasks", "Try next:"):
        assert title in output
    assert (tmp_path / "tasktui.db").is_file()
    assert re.findall(r"(\d+) of 30", line)[-1] == "30"
    assert "/s, " in line
    assert "failed attempts" in line


@pytest.mark.slow
@on_sqlite
def test_a_demo_that_keeps_running_is_ended_by_ctrl_c(migrated_url: str) -> None:
    with _begun(migrated_url, 30, "json", "on") as process, looking(migrated_url) as look:
        wait_until(lambda: look.finished > 40)
        process.send_signal(signal.SIGINT)
        output, complaints = process.communicate(timeout=WAIT_SECONDS)
        report = json.loads(output)
        total = report["total"]
        assert (process.returncode, complaints) == (130, "")
        assert report["interrupted"] is True
        assert total["tasks"] > 40
        assert (total["tasks"] - total["unfinished"], total["unfinished"]) == (look.finished, look.live)
        assert look.count(look.tables.runner) == 0


@pytest.mark.slow
@on_postgresql
def test_ctrl_c_reports_what_was_done_so_far_and_leaves_the_rest(migrated_url: str) -> None:
    with _begun(migrated_url, 0, "json") as process, looking(migrated_url) as look:
        wait_until(lambda: look.finished > 10)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=WAIT_SECONDS)
        total = json.loads(output)["total"]
        assert process.returncode == 130
        assert total["unfinished"] == look.live > 0
        assert total["tasks"] - total["unfinished"] == look.finished > 10
        assert look.rows(_counted(look.tables.task.c.state))[0].state == "waiting"


async def test_no_tasks_are_no_demo() -> None:
    with pytest.raises(InvalidInput, match="0 tasks: too few"):
        await run_demo(Settings(), tasks=0)


async def test_a_production_database_is_left_alone() -> None:
    with pytest.raises(InvalidSettings, match="another database"):
        await run_demo(Settings(production=True))


async def test_a_server_without_tables_is_not_given_any(postgresql: Any, tmp_path: Path) -> None:
    url = postgresql.empty(tmp_path)
    with pytest.raises(SchemaMissing):
        await run_demo(Settings(url=url), tasks=1)
    postgresql.remove(url)


@contextmanager
def _begun(url: str, tasks: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(tasks, *options), env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _counted(column: Any) -> sa.Select[Any]:
    return sa.select(column, sa.func.count().label("count")).group_by(column)


def _payload(row: sa.Row[Any]) -> dict[str, Any]:
    payload = row.payload if isinstance(row.payload, dict) else json.loads(row.payload)
    return dict(payload)


def _read_all(terminal: int, pieces: list[bytes]) -> None:
    try:
        while piece := os.read(terminal, 4096):
            pieces.append(piece)
    except OSError:  # the other end is closed
        return
