"""Several databases in one console: each has its own screens, and no key acts on the one behind."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC
from math import inf
from pathlib import Path

import pytest

from runner.db.database import Database
from runner.errors import SchemaMissing
from runner.model.task import State
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.messages import Notice
from tasktui.session import databases
from tasktui.session.session import Session
from tasktui.session.write_lock import UNOPENED, WriteLock
from tasktui.startup.arguments import parse
from tests.conftest import SqliteDatabases
from tests.store.rows import add_attempt, add_live, add_past, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Operator, Watch
from tests.tasktui.test_actions import confirm
from tests.tasktui.test_bulk import states


@pytest.fixture
def eu_url(sqlite: SqliteDatabases, tmp_path: Path) -> str:
    (tmp_path / "eu").mkdir()
    return sqlite.migrated(tmp_path / "eu")


@pytest.fixture
async def eu(eu_url: str, tmp_path: Path) -> AsyncIterator[Session]:
    """A second database: production, read-only, with a task of the same id."""
    settings = Settings(url=parse_url(eu_url), production=True, profile="eu")
    database = Database.of(settings)
    await add_live(database, queue="parcels")
    session = Session(database, settings, WriteLock(-inf), UTC, views=tmp_path / "views.json")
    yield session
    await session.finish()
    await database.dispose()


def tasks_of(operator: Operator, session: Session) -> bool:
    """The task list of a database is in front and read."""
    screen = operator.screen
    return screen.title == "Tasks" and screen.session is session and screen.pages.listing.ids == (1,)


@ON_ONE_DATABASE
async def test_the_line_of_databases_cuts_no_panel(database: Database, watch: Watch, eu: Session) -> None:
    for number in range(1, 31):
        await add_past(database, number, State.DEAD, host="web-1")
        await add_attempt(database, number, fingerprint="f" * 16, started_at=ahead(-2), ended_at=ahead(-1))
    async with watch("failures", beside=[eu], profile="home") as operator:
        await operator.sees("home", " eu ", "LATEST", "fingerprint " + "f" * 16)
        await operator.sees("of 30 tasks ─")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_key_acts_on_the_database_in_front(database: Database, watch: Watch, eu: Session) -> None:
    await add_live(database, queue="mail")
    async with watch("tasks", beside=[eu], profile="home") as operator:
        home = operator.console.session
        await operator.until(lambda: tasks_of(operator, home))
        await operator.sees(" d  next", " home ", " eu  PRODUCTION   READ-ONLY  ! 1")  # no runner is alive
        await operator.press("d")
        await operator.sees("PRODUCTION", "1 Overview", "parcels")
        assert operator.text.splitlines()[4] == ""
        await operator.press("2")
        await operator.until(lambda: tasks_of(operator, eu))
        await operator.press("T")
        await operator.sees_notice("read-only")
        assert operator.console.session is eu
        await operator.command("tasks queue:parcels")
        await operator.until(lambda: tasks_of(operator, eu))
        await operator.press("d")
        await operator.until(lambda: tasks_of(operator, home))
        databases = operator.console.databases
        assert [databases.opened_of(each).tasks.filter_text for each in (home, eu)] == ["", "queue:parcels"]
        await operator.press("T", "d")  # The second key waits for the dialog of the first one.
        await operator.sees("Terminate 1 task?", "will change, in home.")
        await operator.press("ctrl+u")
        await confirm(operator)
        await operator.sees_notice("Terminate: 1 changed")
        await operator.press("d")
        await operator.until(lambda: tasks_of(operator, eu))
    assert await states(database) == {State.CANCELLED: 1}
    assert await states(eu.database) == {State.WAITING: 1}


@ON_ONE_DATABASE
async def test_escape_returns_to_the_screen_of_another_database_that_one_came_from(
    database: Database, watch: Watch, eu: Session
) -> None:
    await add_live(database, queue="mail")
    async with watch(beside=[eu], profile="home") as operator:
        home = operator.console.session

        def shows(title: str, session: Session) -> bool:
            return bool(operator.screen.title == title and operator.screen.session is session)

        await operator.command("tasks queue:mail")
        await operator.until(lambda: tasks_of(operator, home))
        await operator.command("db eu")
        await operator.until(lambda: shows("Overview", eu))
        await operator.command("tasks queue:parcels")
        await operator.until(lambda: tasks_of(operator, eu))
        for title, session in (("Overview", eu), ("Tasks", home), ("Overview", home)):
            await operator.press("escape")
            await operator.until(lambda title=title, session=session: shows(title, session))
        assert operator.console.databases.opened.tasks.filter_text == "queue:mail"
        await operator.press("2", "d", "d", "escape")  # d returns too, and the key 2 has no screen before it
        await operator.until(lambda: tasks_of(operator, home))
        await operator.press("d")
        await operator.until(lambda: shows("Overview", eu))
        await operator.press("escape")
        await operator.until(lambda: tasks_of(operator, home))


@ON_ONE_DATABASE
async def test_a_notice_names_a_database_that_is_not_in_front(watch: Watch, eu: Session) -> None:
    async with watch("overview", NARROW, beside=[eu], profile="home") as operator:
        behind = operator.screen
        await operator.sees("eu  PROD ")
        assert operator.text.splitlines()[3].strip()
        await operator.press("d")
        await operator.sees("parcels")
        behind.post_message(Notice("Retry: 47 changed"))
        await operator.sees_notice("home: Retry: 47 changed")
        operator.screen.post_message(Notice("Retry: 48 changed"))
        await operator.until(lambda: "Retry: 48 changed" in operator.console.notices)


@pytest.fixture
async def us(tmp_path: Path) -> AsyncIterator[Session]:
    """A database that does not exist yet."""
    settings = Settings(url=parse_url(f"sqlite:///{tmp_path}/us/test.db"), profile="us")
    database = Database.of(settings, read_only=True)
    session = Session(database, settings, WriteLock(inf, UNOPENED), UTC, views=tmp_path / "views.json")
    yield session
    await session.finish()
    await database.dispose()


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_an_unavailable_database_is_named_and_tried_again(
    watch: Watch, us: Session, sqlite: SqliteDatabases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "ALARMS_EVERY", 0.1)
    async with watch("overview", beside=[us], profile="home") as operator:
        await operator.sees("us is unavailable, retrying", "unable to open", "us  READ-ONLY  ◌ unavailable")
        await operator.press("d")
        await operator.until(lambda: operator.console.session is us and operator.screen.feed.error)
        await operator.press("d")
        (tmp_path / "us").mkdir()
        sqlite.migrated(tmp_path / "us")
        await operator.until(lambda: not us.alarm.error)
        await operator.command("db u")
        await operator.until(lambda: operator.console.session is us and us.writable)
        await operator.sees("No queue has a task")
        assert "unavailable" not in operator.text
        await operator.command("db moon")
        await operator.sees_notice("this console has no database 'moon'. Its databases: home, us")


async def test_the_start_needs_one_of_several_databases(
    us: Session, eu: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await databases.reached([us, eu]) == [eu, us]
    assert "has no task tables" in us.alarm.error
    assert eu.alarm.error == ""
    with pytest.raises(SchemaMissing):
        await databases.reached([us])
    monkeypatch.setattr(databases, "OPEN_TIMEOUT", 0.01)
    answer = asyncio.Event()
    monkeypatch.setattr(Session, "open", lambda self: answer.wait() if self is us else asyncio.sleep(0))
    assert await databases.reached([us, eu]) == [eu, us]
    assert "no answer for 0.01 seconds" in us.alarm.error
    answer.set()


def test_profiles_are_named_once_and_without_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    names = [each.profile for each in parse(["--profile", "a", "--profile", "b", "--read-only"]).each()]
    assert names == ["a", "b"]
    assert [each.read_only for each in parse(["--profile", "a", "--profile", "b", "--read-only"]).each()] == [True] * 2
    for wrong in (["--profile", "a", "--profile", "a"], ["--profile", "a", "--profile", "b", "--url", "sqlite:///x"]):
        with pytest.raises(SystemExit):
            parse(wrong)
    assert "each --profile may be given once, and 'a' is there twice" in capsys.readouterr().err
