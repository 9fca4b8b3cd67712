"""The same on the command line, and copied there."""

import asyncio
import shlex
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa

from runner.cli.app import build, run
from runner.cli.ending import Exit, ended
from runner.people.filters import parse_filter
from runner.settings import Settings
from runner.store.database import Database
from runner.store.intervene import Kind, Place
from runner.store.observe import Count
from runner.task import Shown
from runner.urls import parse_url
from tasktui.act.actions import ACTIONS, plan
from tasktui.act.consent import Consent
from tasktui.act.copying import shown
from tasktui.act.spoken import of_edit, of_pause, of_plan, of_undo, of_undo_together, of_wish, written
from tasktui.screens.live import LONGEST_LINE
from tasktui.widgets.table import Table
from tests.store.rows import add_live, add_runner, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Operator, Watch
from tests.tasktui.test_typing import NOW, row, story

HERE = Settings(url=parse_url("sqlite:////tmp/a b.db"))
AT = " --url 'sqlite:////tmp/a b.db'"
WHY = Consent("10m", "it is back")


def all_of(name: str, number: int, *, more: bool = False) -> Any:
    made = plan(ACTIONS[name], [])
    wanted = parse_filter('queue:"a b"', NOW, UTC)
    return type(made)(made.action, Count(number, more), {}, {}, (), wanted=wanted)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (of_plan(plan(ACTIONS["retry"], [row(1), row(2)]), Consent("0s")), "runner retry 1 2"),
        (of_plan(plan(ACTIONS["delay"], [row(1)]), WHY), "runner delay 1 --by 10m --reason 'it is back'"),
        (of_plan(all_of("retry", 4120), WHY._replace(amount=1)),
         "runner retry 'queue:\"a b\"' --yes 4120 --first 1 --over 10m --reason 'it is back'"),
        (of_plan(all_of("terminate", 10_000, more=True), Consent()), "runner terminate 'queue:\"a b\"' --yes 10000+"),
        (of_plan(plan(ACTIONS["unblock"], [row(1, Shown.BLOCKED)]), Consent("all")), "runner unblock 1"),
        (of_plan(plan(ACTIONS["unblock"], [row(1, Shown.BLOCKED)]), Consent("12")), "runner unblock 1 --edge 12"),
        (of_pause(Place(Kind.QUEUE, "mail"), WHY, ends=False), "runner pause mail --until 10m --reason 'it is back'"),
        (of_pause(Place(Kind.QUEUE, "mail"), Consent("14:30"), ends=False), "runner pause mail --until 14:30"),
        (of_pause(Place(Kind.HANDLER, "a.b"), Consent(), ends=True), "runner resume --handler a.b"),
        (of_wish(ACTIONS["drain"], 7, Consent()), "runner drain 7"),
        (of_wish(ACTIONS["resize"], 7, Consent("slots=5 threads=2")), "runner resize 7 --slots 5 --threads 2"),
        (of_undo(12, Consent()), "runner undo 12"),
        (of_undo_together("b-1", "10000+", WHY), "runner undo --batch b-1 --yes 10000+ --reason 'it is back'"),
        (of_edit(story(row(3)), {"run_at": "+15m", "max_attempts": "6"}, None),
         "runner edit 3 --version 0 --run-at +15m --max-attempts 6"),
        (of_edit(story(row(3, Shown.DEAD)), {"priority": "6"}, None), "runner edit 3 --version 0 --again --priority 6"),
    ],
)  # fmt: skip
def test_what_is_done_here_is_a_command_line_there(words: list[object], line: str) -> None:
    text = written(words, HERE)
    assert text == line + AT
    verb, *rest = shlex.split(text)[1:]
    build(verb).parse_args([verb, *rest], print_error=False, exit_on_error=False)


def test_the_database_is_named_without_a_password() -> None:
    assert written(["stats"], replace(HERE, profile="prod")) == "runner stats --profile prod"
    secret = replace(HERE, url=parse_url("postgresql://ana:geheim@db/app"))
    assert written(["stats"], secret) == "runner stats"


@pytest.mark.parametrize("name", ["a\nrm -rf /", "\x1b[201~", "x" * 5_000])
def test_what_could_not_be_pasted_safely_is_no_command_line(name: str) -> None:
    assert written(["pause", name], HERE) is None


async def copied(operator: Operator, text: str) -> None:
    await operator.until(lambda: text in operator.console.clipboard)


@ON_ONE_DATABASE
async def test_what_a_screen_shows_is_copied_as_a_command_line(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks", wanted="queue:default state:ready") as operator:
        await operator.sees("○ ready")
        await operator.press("Y")
        await copied(operator, "runner tasks 'queue:default state:ready' --url ")
        await operator.is_told("runner tasks 'queue:default state:ready'")
        await operator.press("Y")
        await copied(operator, "SELECT anon_1.id")
        await operator.press("enter")
        await operator.sees("version 0")
        await operator.press("Y")
        await copied(operator, f"runner show {id} --url ")
        for key, verb in (("1", "stats"), ("4", "failures since:1d"), ("5", "runners"), ("8", "audit")):
            await operator.press(key, "Y")
            await copied(operator, f"runner {verb} --url ")


@ON_ONE_DATABASE
async def test_what_is_asked_is_copied_as_it_is_answered_so_far(database: Database, watch: Watch) -> None:
    id = await add_live(database, run_at=ahead(3600))
    async with watch("tasks", NARROW) as operator:
        await operator.sees("◷ scheduled")
        await operator.press("D")
        await operator.sees("Delay by")
        operator.screen.query_one("#answer").value = "25m"
        await operator.press("ctrl+y")
        await copied(operator, f"runner delay {id} --by 25m --url ")
        await operator.sees(f"runner delay {id} --by 25m")
        await operator.press("ctrl+y")
        await copied(operator, f"-- task {id}, if it is still waiting at version 0\n")
        await operator.sees("Copied as SQL", "BEGIN IMMEDIATE")
        await operator.press("escape", "E")
        await operator.sees("Max attempts")
        operator.screen.query_one("#priority").value = "none6"
        await operator.sees("must be a whole")
        await operator.press("ctrl+y")
        await operator.sees("Nothing was copied.")
        operator.screen.query_one("#priority").value = "7"
        await operator.press("ctrl+y")
        await copied(operator, f"runner edit {id} --version 0 --priority 7 --url ")
        await operator.press("ctrl+y")
        await copied(operator, "SET priority=7")


async def copied_line(operator: Operator, key: str, **answers: str) -> list[str]:
    """Open the question of a key, answer it, copy the command line that does the same, and leave all as it is."""
    await operator.press(key)
    await operator.until(lambda: type(operator.screen).__name__ == "ConfirmScreen")
    for name, text in answers.items():
        operator.screen.query_one(f"#{name}").value = text
    operator.console._clipboard = ""
    await operator.press("ctrl+y")
    await copied(operator, "runner ")
    await operator.press("escape")
    await operator.until(lambda: type(operator.screen).__name__ != "ConfirmScreen")
    return shlex.split(operator.console.clipboard)[1:]


async def latest(operator: Operator, entry: int) -> None:
    """Put the cursor on the latest entry of the audit, which has this number."""
    await operator.press("8", "r")
    await operator.until(lambda: operator.screen.query_one("#entries", Table).keys[:1] == (entry,))
    await operator.press("home")


@ON_ONE_DATABASE
async def test_a_copied_line_does_what_was_asked_about(database: Database, watch: Watch) -> None:
    first, second, third = [await add_live(database, queue="mail", run_at=ahead(3600)) for _ in range(3)]
    runner = await add_runner(database)

    async def does(operator: Operator, key: str, **answers: str) -> None:
        words = await copied_line(operator, key, **answers)
        assert await asyncio.to_thread(ended, lambda: run(words)) == Exit.OK, words

    async def value(table: str, column: str, id: object) -> Any:
        found = getattr(database.tables, table)
        name = found.c.id if "id" in found.c else found.c.name
        async with database.reading() as tx:
            return await tx.scalar(sa.select(found.c[column]).where(name == id))

    async with watch("tasks", wanted="queue:mail") as operator:
        await operator.sees("◷ scheduled")
        await operator.press("asterisk")
        await operator.sees("3 marked")
        await does(operator, "T", reason="a bad deploy")
        assert await value("task", "state", first) is None
        await operator.press("8")
        await operator.sees("terminate", "a bad deploy")
        await does(operator, "B", reason="it was none")
        assert [await value("task", "state", id) for id in (first, second, third)] == ["waiting"] * 3
        await operator.press("5")
        await operator.sees("web-1")
        await does(operator, "S", answer="slots=5 threads=2", reason="more room")
        assert await value("runner", "wish", runner) == "slots=5 threads=2"
        await does(operator, "L")
        assert await value("runner", "wish", runner) == "drain"
        await latest(operator, 8)
        await does(operator, "Z", reason="it may go on")
        assert await value("runner", "wish", runner) == "slots=5 threads=2"
        await operator.press("1")
        await operator.sees("mail")
        await does(operator, "P", answer="2h", reason="relay is down")
        assert await value("queue", "paused_why", "mail") == "relay is down"
        await operator.sees("⏸")
        await does(operator, "P")
        assert await value("queue", "paused_at", "mail") is None
        await latest(operator, 11)
        await does(operator, "Z")
        assert await value("queue", "paused_why", "mail") == "relay is down"


def test_of_a_long_line_the_beginning_is_shown() -> None:
    text = written(of_plan(plan(ACTIONS["retry"], [row(id) for id in range(1, 421)]), Consent()), HERE) or ""
    assert shown("runner retry 1") == "runner retry 1"
    assert shown(text).startswith("runner retry 1 2 3")
    assert len(shown(text)) < LONGEST_LINE  # or a screen would drop the end, which says that there is more
    assert f"{len(text):,} characters: all of it is copied" in shown(text)
