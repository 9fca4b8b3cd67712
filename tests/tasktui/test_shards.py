"""The screens over all shards of a profile: totals, shards without an answer, and the way to one shard."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.db.database import Database
from runner.errors import DatabaseUnavailable
from runner.model.task import State
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.operations.resume import resume
from runner.queries.audit import audit
from runner.queries.registries import pauses
from runner.queries.runners import runners
from runner.settings import Settings
from runner.settings.shards import shard_settings
from runner.urls import parse_url
from tasktui.app import Console
from tasktui.data import task_pages
from tasktui.session import shard_reads
from tasktui.session.databases import reached
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardAnswer, ShardReads
from tasktui.session.shards import ShardsSession, with_all_shards
from tasktui.shell import live
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import opened, prepared
from tasktui.terminal import typed_ahead
from tests.shards import EACH_PAIR, Sharded, write_config
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.store.table import change
from tests.tasktui.conftest import NARROW, WAIT_SECONDS, WIDE, Operator
from tests.tasktui.terminal import Terminal


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read often, and wait for each shard."""
    monkeypatch.setattr(live, "PERIOD", 0.2)
    monkeypatch.setattr(live, "SHARE", 1)
    monkeypatch.setattr(live, "TICK", 0.1)
    monkeypatch.setattr(typed_ahead, "BURST", 0.0)
    monkeypatch.setattr(shard_reads, "PATIENCE", WAIT_SECONDS)  # on a busy machine no shard counts as silent


@asynccontextmanager
async def console_of(profile: Sharded, size: tuple[int, int] = WIDE) -> AsyncIterator[Operator]:
    """A console over all shards, as `tasktui --profile orders` opens it."""
    arguments = Arguments(profile="orders", config=profile.config)
    settings = profile.settings()
    async with AsyncExitStack() as stack:
        each = [await stack.enter_async_context(prepared(arguments, own)) for own in shard_settings(settings).values()]
        front, *others = with_all_shards(await reached(each), [settings])
        console = Console(front, others=others)
        async with console.run_test(size=size, notifications=True) as pilot:
            operator = Operator(console, pilot)
            await operator.until(lambda: operator.screen.feed.read_at is not None)
            yield operator


@asynccontextmanager
async def filled(profile: Sharded) -> AsyncIterator[dict[str, Database]]:
    """Three tasks of `mail` in one shard, one of it and one of `slow` in the other."""
    databases = {name: Database.of(Settings(url=parse_url(url))) for name, url in profile.urls.items()}
    eu, us = databases.values()
    for database in (eu, eu, eu, us):
        await add_live(database, queue="mail", run_at=ahead(-120))
    await add_live(us, queue="slow", run_at=ahead(-3700))
    await add_past(us, 90, State.DEAD, queue="mail")
    await add_runner(eu, handlers='["h"]')
    try:
        yield databases
    finally:
        for database in databases.values():
            await database.dispose()


def row(operator: Operator, name: str) -> list[str]:
    """The words of a row."""
    found = [line.replace("▌", " ").split() for line in operator.text.splitlines()]
    return next((words for words in found if words[:1] == [name]), [])


def due(operator: Operator, *names: str) -> list[str]:
    """The second word of each row that is on the screen."""
    return [word for name in names for word in row(operator, name)[1:2]]


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_the_overview_has_each_shard_each_queue_and_their_totals(profile: Sharded) -> None:
    async with filled(profile), console_of(profile) as operator:
        await operator.sees("orders, 2 shards", "us: ", " total ")
        await operator.until(lambda: due(operator, "eu", "us", "total") == ["3", "2", "5"])
        assert row(operator, "mail")[:4] == ["mail", "4", "3", "1"]
        assert row(operator, "slow")[:3] == ["slow", "1", "1"]
        assert "partial" not in operator.text
        await operator.press("s", "s", "s")
        await operator.sees("DEAD in each shard")
        assert row(operator, "mail")[:4] == ["mail", "1", "0", "1"]


@pytest.mark.slow
async def test_a_shard_that_is_away_is_unknown_until_it_answers(profile: Sharded) -> None:
    file = Path(profile.urls["us"].removeprefix("sqlite:///"))
    async with filled(profile) as databases, console_of(profile, NARROW) as operator:
        await operator.sees(" total ")
        await databases["us"].dispose()
        file.rename(file.with_suffix(".away"))
        await operator.sees("us is unknown, retrying", "the total is partial, without us", "total, partial")
        assert row(operator, "us")[1:3] == ["unknown", "?"]
        assert row(operator, "total,")[2] == "3"
        assert row(operator, "mail")[:4] == ["mail", "3", "3", "unknown"]
        file.with_suffix(".away").rename(file)
        await operator.until(lambda: row(operator, "total")[1:2] == ["5"])
        assert "unknown" not in operator.text


@pytest.mark.slow
async def test_enter_opens_a_shard_and_its_name_the_overview_again(profile: Sharded) -> None:
    async with filled(profile), console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.press("j", "enter")
        await operator.sees("THROUGHPUT", "slow")
        assert operator.console.session.name == "us"
        await operator.press("d")
        await operator.sees("SHARDS", " total ")
        await operator.press("6")
        await operator.sees("Schedules shows one shard at a time. Choose it with d or :db eu, :db us")
        await operator.command("db eu")
        await operator.until(lambda: operator.console.session.name == "eu")
        await operator.command("db orders")
        await operator.press("1")
        await operator.sees("SHARDS")
        await operator.press("end", "enter")  # The total is no shard.
        assert operator.console.session.name == "orders"


def listed(operator: Operator) -> list[str]:
    """The ids on the screen."""
    return re.findall(r"\b(?:eu|us):\d+", operator.text)


@pytest.mark.slow
@EACH_PAIR
async def test_the_list_has_the_tasks_of_all_shards_and_opens_one_in_its_shard(profile: Sharded) -> None:
    async with filled(profile) as databases, console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.press("tab", "enter")
        await operator.sees("queue:mail", "5 tasks")
        assert sorted(listed(operator)) == ["eu:1", "eu:2", "eu:3", "us:1", "us:90"]
        await operator.command("tasks queue:mail state:waiting")
        await operator.sees("4 tasks")
        assert sorted(listed(operator)) == ["eu:1", "eu:2", "eu:3", "us:1"]
        await operator.command("sort id asc")
        await operator.until(lambda: sorted(listed(operator)[:3]) == ["eu:1", "eu:2", "eu:3"])
        await operator.press("end", "enter")
        await operator.until(lambda: operator.console.session.name == "us" and operator.screen.title == "Task")
        await operator.sees("mail")
        await operator.command("db orders")
        await operator.sees("4 tasks")
        await operator.press("s")
        await operator.sees("not succeeded", "queue:mail")
        for database in databases.values():
            await database.dispose()


@pytest.mark.slow
async def test_a_list_without_a_shard_is_partial(profile: Sharded) -> None:
    file = Path(profile.urls["us"].removeprefix("sqlite:///"))
    async with filled(profile) as databases, console_of(profile, NARROW) as operator:
        await operator.sees(" total ")
        await operator.press("2")
        await operator.sees("6 tasks")
        await databases["us"].dispose()
        file.rename(file.with_suffix(".away"))
        await operator.sees("6+ tasks", "us is unknown: ")
        await operator.press("r")
        await operator.until(lambda: sorted(listed(operator)) == ["eu:1", "eu:2", "eu:3"])
        await operator.sees("3+ tasks", "us is unknown: ")
        file.with_suffix(".away").rename(file)
        await operator.sees("us answers again, r lists its tasks")
        await operator.press("r")
        await operator.sees("6 tasks")


@pytest.mark.slow
async def test_a_long_list_reads_more_near_its_end(profile: Sharded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_pages, "PAGE", 3)
    monkeypatch.setattr(task_pages, "NEXT_PAGE_DISTANCE", 1)
    async with filled(profile), console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.press("2")
        await operator.until(lambda: len(listed(operator)) == 3)
        await operator.press("end")
        await operator.until(lambda: len(listed(operator)) == 6)


@EACH_PAIR
@pytest.mark.representatives(1)
async def test_a_key_acts_in_the_shard_of_the_row_and_on_marks_in_each_shard(profile: Sharded) -> None:
    async with filled(profile) as databases, console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.command("tasks queue:slow")
        await operator.until(lambda: listed(operator) == ["us:2"])
        await operator.press("T")
        await operator.sees("1 task will change, in us.")
        await operator.press("y", "enter")
        await operator.sees_notice("us: Terminate: 1 changed")
        await operator.command("tasks queue:mail state:waiting")
        await operator.sees("4 tasks")
        await operator.press("space", "space", "space", "space")
        await operator.sees("4 marked")
        await operator.press("w")
        await operator.sees("not running? In us ", "escape explains eu")
        await operator.press("escape")
        await operator.sees("not running? In eu ", "escape closes")
        await operator.press("escape", "T")
        await operator.sees("4 tasks will change, in eu 3, us 1.")
        await operator.press("y", "enter")
        await operator.sees_notice("us: 1 changed")
        group = re.search(r"undo --group (\w+) --profile orders", operator.console.notices[-1])
        assert group is not None
        for name, number in (("eu", 3), ("us", 1)):
            entries = await databases[name].read(audit, change_group=group[1])
            assert len(entries) == number


@pytest.mark.slow
async def test_a_queue_is_paused_and_limited_in_each_of_its_shards(profile: Sharded) -> None:
    async with filled(profile) as databases, console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.press("P")
        await operator.sees_notice("Pause applies to one queue: select one")
        await operator.press("tab")
        await operator.until(lambda: operator.screen.query_one("#queues").cursor == "mail")
        await operator.press("P")
        await operator.sees("Pause queue mail in eu, us?", "None of its tasks start")
        await operator.press("enter")
        await operator.type("relay")
        await operator.press("enter", "y", "enter")
        await operator.sees_notice("us: Queue mail paused until")
        for database in databases.values():
            assert (await database.read(pauses)).queues["mail"].why == "relay"
        await databases["us"].write(resume, PauseTarget(PauseKind.QUEUE, "mail"), Actor("ana", "desk-1"))
        await operator.command("tasks queue:mail state:waiting")
        await operator.sees("4 tasks")
        await operator.press("space", "space", "space", "space", "P")
        await operator.sees("Pause queue mail in us?", "eu is left out: it has this already")
        await operator.press("escape", "M")
        await operator.sees("Limit queue mail in eu, us?", "Concurrency")


@EACH_PAIR
@pytest.mark.representatives(1)
async def test_the_runners_of_all_shards_are_listed_and_a_key_acts_in_the_shard(profile: Sharded) -> None:
    async with filled(profile) as databases, console_of(profile) as operator:
        await add_runner(databases["us"], handlers='["h"]', capacity=4)
        await add_live(databases["us"], state="running", runner_id=1, handler="h", key="in us", claimed_at=ahead(-5))
        await operator.press("5")
        await operator.sees("● eu web-1:7", "● us web-1:7", "2 alive")
        await operator.press("end")
        await operator.sees("runner us:1 (web-1:7) RUNS 1", "us:3", "in us")
        await operator.press("L")
        await operator.sees("Drain runner 1")
        await operator.press("y", "enter")
        await operator.sees_notice("us: Runner 1")
        (row,) = await databases["us"].read(runners)
        assert row.draining
        await operator.press("enter")
        await operator.until(lambda: operator.console.session.name == "us")
        await operator.sees("runner:1", "in us")


@EACH_PAIR
@pytest.mark.representatives(1)
async def test_a_cause_in_several_shards_is_one_group_and_is_retried_in_each(profile: Sharded) -> None:
    async with filled(profile) as databases, console_of(profile) as operator:
        for database in databases.values():
            await add_past(database, 50, State.DEAD, queue="mail")
            await add_attempt(database, 50, ended_at=ahead(-30), verb="fail")
        await add_attempt(databases["us"], 50, 2, ended_at=ahead(-20), verb="fail")
        await operator.press("4")
        await operator.sees("3 in 1 group", "us 2, eu 1", "ValueError")
        await operator.press("R")
        await operator.sees("2 tasks will change, in eu 1, us 1.")
        await operator.press("ctrl+t", "y", "enter")
        await operator.sees_notice("Retry: 2 changed")


@pytest.mark.slow
async def test_runners_and_failures_without_a_shard_are_partial(profile: Sharded) -> None:
    file = Path(profile.urls["us"].removeprefix("sqlite:///"))
    async with filled(profile) as databases, console_of(profile, NARROW) as operator:
        await operator.sees(" total ")
        await databases["us"].dispose()
        file.rename(file.with_suffix(".away"))
        await operator.press("5")
        await operator.sees("us is unknown: ", "● eu web-1:7", "partial")
        await operator.press("4")
        await operator.sees("us is unknown: ")
        file.with_suffix(".away").rename(file)
        await operator.until(lambda: "unknown" not in operator.text)


@pytest.mark.slow
async def test_all_matches_of_all_shards_are_changed_and_a_silent_shard_is_named(
    profile: Sharded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "MOST_MARKED", 2)
    file = Path(profile.urls["us"].removeprefix("sqlite:///"))
    async with filled(profile) as databases, console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.command("tasks state:waiting")
        await operator.sees("5 tasks")
        await operator.press("asterisk")
        await operator.sees("all 5 marked")
        await operator.press("D")
        await operator.sees("5 tasks will change, in eu 3, us 2.")
        await operator.press("escape")
        await databases["us"].dispose()
        file.rename(file.with_suffix(".away"))
        await operator.press("D")
        await operator.sees("3 tasks will change, in eu 3.", "Nothing is changed in us: ")
        await operator.press("tab", "tab", "tab", "y", "enter")
        await operator.sees_notice("Delay: 3 changed")
        file.with_suffix(".away").rename(file)


@pytest.mark.slow
async def test_a_locked_shard_is_not_changed_and_write_opens_all(profile: Sharded) -> None:
    async with filled(profile), console_of(profile) as operator:
        await operator.sees(" total ")
        session = operator.console.session
        assert isinstance(session, ShardsSession)
        await operator.command("lock")
        assert not session.writable
        await operator.command("write 10m mend it")
        session.shard("us").lock.close()
        await operator.command("tasks queue:mail state:waiting")
        await operator.sees("4 tasks", "us READ-ONLY")
        await operator.press("space", "space", "space", "space", "T")
        await operator.sees("3 tasks will change, in eu 3.", "Nothing is changed in us: ")
        await operator.press("escape")
        await operator.command("write 10m mend it")
        assert session.shard("us").writable


@pytest.mark.slow
@pytest.mark.parametrize("command", ["pause mail", "at 20m ago", "submit h"])
async def test_no_change_and_no_past_time_of_all_shards(profile: Sharded, command: str) -> None:
    async with filled(profile) as databases, console_of(profile) as operator:
        await operator.sees(" total ")
        await operator.command(command)
        await operator.sees_notice(":db eu, :db us")
        for database in databases.values():
            await database.dispose()


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_a_server_that_is_stopped_delays_no_other_shard(
    profile: Sharded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = {**profile.urls, "ap": f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/x"}
        three = Sharded(write_config(tmp_path / "three.toml", urls), urls)
        monkeypatch.setattr(shard_reads, "PATIENCE", 0.5)
        async with filled(profile), console_of(three) as operator:
            await operator.sees("orders, 3 shards", "ap is unknown, retrying  no answer for", "total, partial")
            await operator.until(lambda: due(operator, "eu", "us", "ap") == ["3", "2", "unknown"])


def _session(*names: str) -> ShardsSession:
    shards = tuple(cast("Session", SimpleNamespace(name=name)) for name in names)
    return ShardsSession(cast("Database", None), cast("Settings", None), shards=shards)


async def test_a_late_shard_is_waited_for_once_and_keeps_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_reads, "PATIENCE", 0.05)
    hang, calls = asyncio.Event(), {"eu": 0, "us": 0}
    clock = SimpleNamespace(now=0.0)

    async def read(session: Session) -> int:
        calls[session.name] += 1
        if session.name == "us" and calls["us"] > 1:
            await hang.wait()
        return calls[session.name]

    session, reads = _session("eu", "us"), ShardReads[int](lambda: clock.now)
    assert await reads.read(session, read) == {"eu": ShardAnswer(1), "us": ShardAnswer(1)}
    assert await reads.read(session, read) == {"eu": ShardAnswer(2), "us": ShardAnswer(1)}
    assert session.silent == {"us"}
    assert (await reads.read(session, read, "another"))["us"] == ShardAnswer(None, "no answer for 0s")
    clock.now = shard_reads.FRESH + 1
    monkeypatch.setattr(shard_reads, "PATIENCE", 1e9)
    assert await reads.read(session, read) == {"eu": ShardAnswer(4), "us": ShardAnswer(None, "no answer for 11s")}
    assert calls["us"] == 2
    hang.set()
    await asyncio.sleep(0)
    assert (await reads.read(session, read))["us"] == ShardAnswer(2)
    assert (await reads.read(session, read))["us"] == ShardAnswer(3)


async def test_an_error_of_a_shard_ends_its_last_answer() -> None:
    failing: list[Any] = [None, DatabaseUnavailable(url="us", why="server stopped"), None]

    async def read(_session: Session) -> int:
        error = failing.pop(0)
        if error is not None:
            raise error
        return len(failing)

    session, reads = _session("us"), ShardReads[int]()
    answers = [(await reads.read(session, read))["us"] for _ in range(3)]
    assert answers == [ShardAnswer(2), ShardAnswer(None, "server stopped"), ShardAnswer(0)]


async def test_a_profile_without_shards_has_no_session_over_them(profile: Sharded) -> None:
    arguments = Arguments(profile="eu", config=profile.config)
    async with opened(arguments, arguments.settings()) as session:
        assert with_all_shards([session], [session.settings]) == [session]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "title"), [((), "orders, 2 shards"), (("--task", "17"), "17")])
def test_the_console_begins_with_all_shards_or_with_a_task_of_one(
    profile: Sharded, words: tuple[str, ...], title: str
) -> None:
    terminal = Terminal("--profile", "orders", "--config", str(profile.config), *words)
    try:
        terminal.sees(title, "eu", "us")
        terminal.types(b"q")
        assert terminal.ends() == 0
    finally:
        terminal.close()


async def test_the_problems_of_a_shard_are_those_of_its_own_overview(profile: Sharded) -> None:
    async with filled(profile) as databases, console_of(profile, (120, 60)) as operator:
        lost = {"host": "web-2", "pid": 41, "version": "1", "lost": True, "tasks": 3, "started_at": ahead(-900)}
        row = {"runner_id": 9, "ended_at": ahead(-60), "heartbeat_at": ahead(-90), **lost}
        await change(databases["us"], databases["us"].tables.ended_runner.insert().values(row))
        await operator.sees("us: No runner is alive", "us: web-2:41 was lost", "us: 1 task died in the last hour")
        number = operator.text.partition("NEEDS ATTENTION ")[2].split()[0]
        assert number == str(sum(operator.text.count(f" {name}: ") for name in ("eu", "us")))


async def test_escape_returns_from_the_task_of_a_shard_to_the_list_of_all_shards(profile: Sharded) -> None:
    async with filled(profile), console_of(profile) as operator:
        await operator.sees(" total ")
        every = operator.console.session
        await operator.command("tasks queue:mail state:waiting")
        await operator.sees("4 tasks")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Task" and operator.console.session is not every)
        await operator.press("escape")
        await operator.until(lambda: operator.screen.title == "Tasks" and operator.console.session is every)
        await operator.press("escape")
        await operator.until(lambda: operator.screen.title == "Overview" and operator.console.session is every)
