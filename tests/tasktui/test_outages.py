"""The console survives stopped servers, tables of other releases, deleted rows and small windows."""

import asyncio
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.db.migrations.revisions import HEAD
from runner.db.transaction import clock
from runner.errors import DatabaseUnavailable, SchemaTooNew, SchemaTooOld
from runner.operations.pause import PauseKind, PauseTarget
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.actions import perform
from tasktui.actions.actions import ACTIONS
from tasktui.screens import MODES
from tasktui.session import cache, session
from tasktui.session.write_lock import STANDBY, FileReplaced
from tasktui.shell import live
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import opened
from tests.conftest import on_postgresql
from tests.databases import database_at
from tests.postgres import Server, Standby, find_programs
from tests.releases import NEXT, OUT_OF_DATE, install_next
from tests.store.every_operation import LATER, arrange
from tests.store.rows import add_live, ahead, stored
from tests.store.table import change
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Operator, Watch
from tests.tasktui.test_actions import confirm
from tests.tasktui.test_read_only import refused_for_good

TINY = (40, 10)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that the test may stop."""
    programs = find_programs()
    if programs is None:
        pytest.skip("there are no programs of a PostgreSQL to start one of our own")
    with Server(programs) as running:
        asyncio.run(_filled(running.url()))
        yield running


async def _filled(url: str) -> None:
    async with database_at(url) as database:
        await database.migrate()
        await arrange(database)


@pytest.mark.slow
@on_postgresql
async def test_a_server_that_stops_and_starts_again_is_waited_for(
    server: Server, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LONGEST_WAIT", 1.0)
    async with watch("tasks", url=server.url()) as operator:
        await operator.sees("► running", "◔ scheduled")
        server.stop("immediate")
        await operator.sees("data is ", " old: The database", "► running", "◔ scheduled")
        await operator.until(lambda: operator.screen.feed.failures > 2)
        for mode in MODES.values():
            await operator.press(mode.key)
            await operator.until(lambda mode=mode: isinstance(operator.screen, mode.screen))
        await operator.command("pause mail 10m because")
        await operator.sees_notice("cannot be reached")
        await operator.press(MODES["tasks"].key)
        server.start()
        await operator.until(lambda: "old: The database" not in operator.text and operator.screen.feed.failures == 0)
        await operator.sees("► running")


@pytest.mark.slow
@on_postgresql
async def test_a_standby_is_watched_and_takes_changes_when_it_is_promoted(
    server: Server, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "TEN_SECONDS", 0.0)
    monkeypatch.setattr(cache, "SHARE", 1)
    programs = find_programs()
    assert programs is not None
    with Standby(server, programs) as standby:
        database = Database.open(server.url())
        await add_live(database, "news.tell")
        await database.dispose()
        await refused_for_good(Settings(url=parse_url(standby.url())), STANDBY)
        async with watch("tasks", url=standby.url(), barrier=STANDBY) as operator:
            await operator.sees("READ-ONLY standby, ", " old ", "news.tell")
            await operator.press("R")
            await operator.sees_notice("connect to its primary")
            await operator.press("h")
            await operator.sees("standby  newest replicated change is ")
            await operator.press("escape")
            standby.promote()
            await operator.sees_notice("promoted from standby to primary: changes are now allowed")
            await operator.until(lambda: "READ-ONLY" not in operator.text)
            await operator.command("pause default 10m because")
            await operator.sees("Pause queue default")


@on_postgresql
async def test_a_console_allows_changes_once_its_standby_is_a_primary(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARE", 1)
    await add_live(database, "news.send")
    async with watch("tasks", barrier=STANDBY) as operator:  # opened before the promotion
        await operator.sees_notice("promoted from standby to primary: changes are now allowed")
        await operator.until(lambda: "READ-ONLY" not in operator.text)


@on_postgresql
async def test_the_heading_names_the_session_that_locks_the_tasks(
    database: Database, migrated_url: str, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DEADLINE", 0.6)
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        with psycopg.connect(migrated_url, application_name="alter") as holder:
            holder.execute("LOCK TABLE task IN ACCESS EXCLUSIVE MODE")
            held = "The database cannot be read: 55P03 canceling statement due to lock timeout: table task is locked"
            by = f"by process {holder.info.backend_pid} (alter, user "
            await operator.until(lambda: all(text in unwrapped(operator.text) for text in (held, by, "open for")))
            assert f"run SELECT pg_terminate_backend({holder.info.backend_pid})" in unwrapped(operator.text)
        await operator.until(lambda: "is locked" not in operator.text)


async def test_a_console_of_the_next_release_says_to_migrate_and_then_starts(
    database: Database, migrated_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Settings(url=parse_url(migrated_url))
    install_next(tmp_path, monkeypatch)
    with pytest.raises(SchemaTooOld, match=OUT_OF_DATE):
        async with opened(Arguments(), here):
            pass
    await upgrade(database)
    async with opened(Arguments(), here) as one:
        assert await one.read(clock)


def unwrapped(text: str) -> str:
    """Return a text without line breaks and the border of an alert."""
    return " ".join(text.replace("▌", " ").split())


@pytest.mark.slow
async def test_a_migration_under_an_open_console_leaves_what_was_seen_and_is_said(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "FIVE_SECONDS", 0.0)
    monkeypatch.setattr(cache, "SHARE", 0)
    monkeypatch.setattr(live, "LONGEST_WAIT", 0.2)
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        with monkeypatch.context() as other:
            install_next(tmp_path, other)
            await upgrade(database)
        await operator.until(lambda: f"is at schema {NEXT}, which this program" in unwrapped(operator.text))
        await operator.sees("data is ", "○ ready")
        await operator.press("T")
        await confirm(operator)
        await operator.sees_notice("Install the release that created it")
        assert (await stored(database, 1)).state == "waiting"
        await change(database, sa.text(f"UPDATE task_schema SET version_num = '{HEAD}'"))
        await operator.until(lambda: "data is " not in operator.text and operator.screen.feed.failures == 0)
        await operator.press("T")
        await confirm(operator)
        await operator.sees_notice("Terminate: 1 changed")


@pytest.mark.parametrize("number", ["9999", "0000"])
async def test_tables_of_another_release_are_said_to_be(number: str, database: Database, migrated_url: str) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.text(f"UPDATE task_schema SET version_num = '{number}', compatible_since = '{number}'"))
    with pytest.raises(SchemaTooNew, match=f"at schema {number}, which this program .schema {HEAD}. does not support"):
        async with opened(Arguments(), Settings(url=parse_url(migrated_url))):
            pass


@ON_ONE_DATABASE
async def test_tables_that_change_under_a_console_do_not_end_it(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        async with database.writing() as tx:
            await tx.execute(sa.text("ALTER TABLE task_history RENAME COLUMN error TO failure"))
        await operator.sees("data is ", "no such column", "○ ready")  # The schema version still matches.
        async with database.writing() as tx:
            await tx.execute(sa.text("ALTER TABLE task_history RENAME COLUMN failure TO error"))
        await operator.until(lambda: "no such column" not in operator.text)


@ON_ONE_DATABASE
async def test_a_file_that_is_replaced_or_deleted_is_neither_shown_nor_changed_as_if_it_were_there(
    migrated_url: str, tmp_path: Path
) -> None:
    url = parse_url(migrated_url)
    file, other = Path(url.database), shutil.copy(url.database, tmp_path / "other.db")
    mail = PauseTarget(PauseKind.QUEUE, "mail")
    async with opened(Arguments(), Settings(url=url)) as seat:
        await perform.pause(seat, mail, "", None)
        assert await perform.current_pause(seat, mail)
        for log in tuple(tmp_path.glob(f"{file.name}-*")):  # Restoring a file includes removing its logs.
            log.unlink()
        Path(other).replace(file)
        with pytest.raises(FileReplaced):
            await perform.resume(seat, mail, None)
        assert await perform.current_pause(seat, mail) is None
        await perform.pause(seat, mail, "", None)
        file.unlink()
        with pytest.raises(FileReplaced):
            await perform.resume(seat, mail, None)
        with pytest.raises(DatabaseUnavailable, match=r"No such file|unable to open|was deleted"):
            await perform.current_pause(seat, mail)
    assert not file.exists()


@ON_ONE_DATABASE
@pytest.mark.parametrize("name", ["terminate", pytest.param("retry", marks=pytest.mark.slow), "edit"])
async def test_a_task_that_disappears_behind_a_dialog_is_reported(name: str, database: Database, watch: Watch) -> None:
    id = await add_live(database, run_at=ahead(60))
    async with watch("task", task_id=id) as operator:
        await operator.sees("◔ scheduled")
        await operator.press(ACTIONS[name].key)
        await operator.until(lambda: operator.screen.is_modal and operator.screen.focused)
        async with database.writing() as tx:
            await tx.execute(sa.delete(tx.tables.task))
        if name == "edit":
            operator.screen.query_one("#priority").value = "3"
            await operator.press("ctrl+s")
            await operator.sees("Nothing was saved", "it does not exist")
        else:
            await confirm(operator)
            await operator.sees_notice("it does not exist")


def _split(names: Iterable[str], *first: str) -> list[Any]:
    """Two parameters: the first names for every run, and the others for slow ones."""
    others = [name for name in names if name not in first]
    return [pytest.param([*first]), pytest.param(others, marks=pytest.mark.slow)]


async def shrink_and_grow(operator: Operator) -> None:
    await operator.until(lambda: operator.screen.feed.read_at is not None)
    await operator.pilot.pause()
    words = operator.text.splitlines()[2].split()[:1]
    for size in (TINY, (1, 1), NARROW, WIDE):
        await operator.pilot.resize_terminal(*size)
        await operator.pilot.pause()
        await operator.press("down", "question_mark")
        await operator.press("escape")
    await operator.until(lambda: words == operator.text.splitlines()[2].split()[:1])


@ON_ONE_DATABASE
@pytest.mark.parametrize("names", _split(MODES, "overview", "task"), ids=["two", "others"])
@pytest.mark.slow
async def test_a_window_may_become_tiny_and_large_again(names: list[str], database: Database, watch: Watch) -> None:
    await arrange(database)
    async with watch(size=WIDE, task_id=LATER) as operator:
        await operator.until(lambda: operator.console.session.counts)  # They move the rule below the tabs.
        for name in names:
            await operator.press(MODES[name].key)
            await shrink_and_grow(operator)


@pytest.mark.slow
@ON_ONE_DATABASE
@pytest.mark.parametrize("names", _split(ACTIONS, "terminate", "edit"), ids=["two", "others"])
async def test_a_dialog_may_become_tiny_too(names: list[str], database: Database, watch: Watch) -> None:
    await arrange(database)
    async with watch("task", TINY, task_id=LATER) as operator:
        await operator.until(operator.screen.tasks)
        for name in names:
            action = ACTIONS[name]
            if action.key not in operator.screen.active_bindings:
                continue  # It applies to another subject.
            operator.console.notices.clear()
            await operator.press(action.key)
            await operator.until(lambda: operator.screen.is_modal or operator.notices)
            await operator.pilot.resize_terminal(*WIDE)
            await operator.pilot.resize_terminal(*TINY)
            await operator.press("escape")
            await operator.sees("tasktui")
            await operator.until(lambda: not operator.screen.is_modal)
