"""The health dialog, and latency and skew in the heading."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.schedule import ScheduleSpec
from runner.operations.results import Actor
from runner.operations.schedule import add_schedule
from runner.queries import health
from runner.queries.health import DeadRows, Health, OpenTransaction, Ping
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.dialogs.health import Vitals, health_lines
from tasktui.render.rows import plain
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session
from tasktui.shell.heading import Status, first_line, milliseconds, wrapped
from tests.store.rows import add_attempt, add_live, add_runner, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch

AWAY = "postgresql://localhost:1/app?sslmode=disable"


async def test_h_shows_the_health_of_the_database(watch: Watch, database: Database) -> None:
    async with watch("runners", NARROW) as operator:
        await operator.press("h")
        await operator.sees(f": {database.dialect.name} ", "latency", "clock skew", "console load", "size")
        await operator.back("Runners")
        await operator.command("health")
        await operator.sees("latency")


@ON_ONE_DATABASE
async def test_a_database_that_is_away_is_reported(watch: Watch) -> None:
    async with watch("runners") as operator:
        session = operator.console.session
        there, session.database = session.database, Database.open(AWAY)
        await operator.press("h")
        await operator.sees("The database does not answer", "cannot be reached")
        await session.database.dispose()
        session.database = there


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_heading_shows_the_connection(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SLOW", 60)  # the machine may have much else to do
    async with watch("overview", WIDE) as operator:
        await operator.sees("● connected")
        operator.console.session.ping = Ping(0.002, timedelta(minutes=5))
        await operator.sees("! clock 5m ahead")


async def test_a_latency_does_not_outlive_a_slow_moment(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SLOW", 60)  # the machine may have much else to do
    time, measured, url = [0.0], list[float](), parse_url(database.url)
    session = Session(database, Settings(url=url))
    monkeypatch.setattr(session, "_ping", TtlCache(10.0, lambda: time[0], share=session._ping._share))
    pinged = session.pinged

    async def slowly() -> Ping:
        measured.append(time[0])
        time[0] += 0.0 if measured[1:] else 12.0  # only the first measurement is slow
        return await pinged()

    monkeypatch.setattr(Session, "pinged", lambda _: slowly())
    await session.measure()
    time[0] = 21.9
    await session.measure()
    assert measured == [0.0]
    time[0] = 22.1
    await session.measure()
    assert measured == [0.0, 22.1]
    session.ping = Ping(120.0, timedelta(0))  # the heading shows it
    await session.measure()
    assert measured == [0.0, 22.1, 22.1]
    assert session.ping.took < 60
    await session.finish()


@ON_ONE_DATABASE
async def test_a_slow_connection_is_shown_until_the_next_poll(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SLOW", 60)
    async with watch("overview", WIDE) as operator:
        await operator.sees("● connected")
        session, polls = operator.console.session, list[float | None]()
        session.ping = Ping(61.0, timedelta(0))
        operator.screen.frame.update()
        await operator.sees("! slow 61,000 ms")

        def connected() -> bool:
            if operator.screen.feed.read_at not in polls:
                polls.append(operator.screen.feed.read_at)
            return "● connected" in operator.text

        await operator.until(connected)
        assert len(polls) <= 4  # the one before, the next one, and what an observation of the screen may miss


@ON_ONE_DATABASE
async def test_the_tabs_show_where_something_needs_attention(watch: Watch, database: Database) -> None:
    await database.write(add_schedule, "nightly", ScheduleSpec("h", "every 1h"), Actor("ana", "web-1"))
    async with watch("tasks", WIDE) as operator:
        await operator.until(lambda: operator.console.session.ping is not None)
        await operator.sees("4 Failures   5 Runners   6 Schedules   7 Reports")
    for fingerprint in ("timeout", "refused"):  # The screen lists the failures of one handler by cause.
        id = await add_live(database, "smtp.send", run_at=ahead(600))
        await add_attempt(database, id, handler="smtp.send", ended_at=ahead(-30), fingerprint=fingerprint)
    await add_runner(database, lease=-60)
    async with database.writing() as tx:
        await tx.execute(sa.update(tx.tables.schedule).values(next_at=ahead(-3600)))
    async with watch("tasks", WIDE) as operator:
        await operator.sees("4 Failures 2   5 Runners !   6 Schedules !   7 Reports")


@pytest.mark.parametrize(
    ("ping", "trouble", "shown"),
    [
        (None, "", "◌ connecting"),
        (Ping(0.002, timedelta(seconds=1.9)), "", "● connected"),
        (Ping(0.48, timedelta(0)), "", "! slow 480 ms"),
        (Ping(0.48, timedelta(minutes=5)), "", "! clock 5m ahead"),
        (Ping(0.002, timedelta(seconds=-4)), "", "! clock 4s behind"),
        (Ping(0.002, timedelta(0)), "Task 9 does not exist.", "! not read"),
    ],
)
def test_a_connection_has_a_figure_only_if_the_figure_matters(ping: Ping | None, trouble: str, shown: str) -> None:
    status = Status("orders", False, "", ping, "14:02:31", [], "Tasks", trouble=trouble)
    assert plain([first_line(status, 100)]).endswith(f"{shown}   14:02:31")
    lost = Status("orders", False, "", ping, "14:02:31", [], "Tasks", lost=True)
    assert plain([first_line(lost, 100)]).endswith("◌ lost   14:02:31")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_heading_shows_the_age_of_old_data(watch: Watch) -> None:
    async with watch("overview") as operator:
        await operator.sees("NEEDS ATTENTION")
        await operator.until(lambda: not operator.screen.feed.looking)
        operator.screen.feed.looking = True  # a query that hangs
        operator.screen.feed.read_at -= 60
        operator.screen.feed.next = operator.screen.feed.read_at + 10  # the pause of a console without focus
        await operator.sees("data 1m")
        operator.screen.feed.next = operator.screen.feed.read_at + 3600
        await operator.until(lambda: "data 1m" not in operator.text)
        operator.screen.feed.looking = False
        await operator.press("r")
        await operator.until(lambda: "data 1m" not in operator.text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.003, "+3 ms"), (-0.0312, "-31 ms"), (-0.0003, "+0 ms"), (2.44, "+2.4 s"), (-3600.0, "-3,600.0 s")],
)
def test_a_clock_skew_has_a_sign(seconds: float, shown: str) -> None:
    assert milliseconds(timedelta(seconds=seconds)) == shown


def test_worries_follow_the_values() -> None:
    health = Health(
        datetime(2026, 1, 1, tzinfo=UTC),
        "postgresql",
        "18.4",
        size=2**30,
        connections=(12, 100),
        hidden=3,
        oldest=OpenTransaction(4_000.0, 7, "rep\x1bort", "idle in transaction"),
        dead=(DeadRows("task", 1_000, 383_000, 60.0), DeadRows("task_queue", 9, 0, None)),
    )
    text = "\n".join(part.plain for part in health_lines(Vitals(Ping(0.0012, timedelta()), health), "orders", 12))
    assert "orders: postgresql 18.4" in text
    assert "1.2ms" in text
    assert "12 of 100, 3 of them hidden from this role" in text
    assert "at least 1h06m, rep␛ort (connection 7), idle in transaction" in text
    assert "task: 383,000, live 1,000, vacuumed 1m ago" in text
    assert "task_queue" not in text
    assert " ! task has 383,000 dead and 1,000 live rows" in text


@pytest.mark.parametrize(("hidden", "shown"), [(0, "none besides this console"), (3, "unknown, hidden")])
def test_the_oldest_transaction_is_unknown_behind_hidden_connections(hidden: int, shown: str) -> None:
    health = Health(datetime(2026, 1, 1, tzinfo=UTC), "postgresql", "18.4", connections=(12, 100), hidden=hidden)
    text = "\n".join(part.plain for part in health_lines(Vitals(Ping(0.0012, timedelta()), health), "orders", 12))
    assert f"oldest transaction  {shown}" in text


@ON_ONE_DATABASE
async def test_the_screen_behind_a_dialog_goes_on_reading(watch: Watch) -> None:
    async with watch("runners", NARROW) as operator:
        screen = operator.screen
        await operator.press("h")
        await operator.sees("latency")
        before = screen.feed.read_at
        screen.feed.hurry()
        await operator.until(lambda: screen.feed.read_at != before)
        assert operator.screen is not screen


def test_eighty_columns_have_room_for_the_advice_about_a_lock() -> None:
    session = "process 24284 (alembic-deploy, user postgres, active, transaction open for 26s, last statement: END)"
    fact = f"55P03 canceling statement due to lock timeout: table task is locked in mode AccessExclusiveLock, {session}"
    error = f"data is 19s old: The database cannot be read: {fact}. End that transaction, then retry."
    lines = wrapped(error, *NARROW)
    assert lines[-1].endswith("then retry.")
    assert len(wrapped(error * 9, 40, 10)) == 4
