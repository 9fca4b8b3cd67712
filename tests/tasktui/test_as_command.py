"""The command lines of screens and actions, and copying them."""

import asyncio
import shlex
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa

from runner.cli.app import build, run
from runner.cli.exit_codes import Exit, exit_code_of
from runner.db.database import Database
from runner.filter.parse import parse_filter
from runner.model.task import Shown
from runner.operations.pause import PauseKind, PauseTarget
from runner.queries.counting import Count
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.actions.action import Confirmation
from tasktui.actions.actions import ACTIONS
from tasktui.actions.as_command import (
    breaker_words,
    command_line,
    edit_words,
    edited_schedule_words,
    limit_words,
    pause_words,
    plan_words,
    runner_command_words,
    schedule_words,
    shorten,
    silence_words,
    stack_words,
    undo_group_words,
    undo_words,
)
from tasktui.actions.plan import plan
from tasktui.shell.live import LONGEST_LINE
from tasktui.widgets.table import Table
from tests.store.rows import add_live, add_runner, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Operator, Watch
from tests.tasktui.test_commands import NOW, row, story

HERE = Settings(url=parse_url("sqlite:////tmp/a b.db"))
AT = " --url 'sqlite:////tmp/a b.db'"
WHY = Confirmation("10m", "it is back")


def all_of(name: str, number: int, *, more: bool = False) -> Any:
    made = plan(ACTIONS[name], [])
    conditions = parse_filter('queue:"a b"', NOW, UTC)
    return type(made)(made.action, Count(number, more), {}, {}, (), task_filter=conditions)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (plan_words(plan(ACTIONS["retry"], [row(1), row(2)]), Confirmation("0s")), "runner retry 1 2"),
        (plan_words(plan(ACTIONS["delay"], [row(1)]), WHY), "runner delay 1 --by 10m --reason 'it is back'"),
        (plan_words(all_of("retry", 4120), WHY._replace(limit=1)),
         "runner retry 'queue:\"a b\"' --yes 1 --limit 1 --spread 10m --reason 'it is back'"),
        (plan_words(all_of("terminate", 10_000, more=True), Confirmation()),
         "runner terminate 'queue:\"a b\"' --yes 10000+"),
        (plan_words(plan(ACTIONS["unblock"], [row(1, Shown.BLOCKED)]), Confirmation("all")), "runner unblock 1"),
        (plan_words(plan(ACTIONS["unblock"], [row(1, Shown.BLOCKED)]), Confirmation("12")),
         "runner unblock 1 --dependency 12"),
        (pause_words(PauseTarget(PauseKind.QUEUE, "mail"), WHY, resume=False),
         "runner pause mail --until 10m --reason 'it is back'"),
        (pause_words(PauseTarget(PauseKind.QUEUE, "mail"), Confirmation("14:30"), resume=False),
         "runner pause mail --until 14:30"),
        (pause_words(PauseTarget(PauseKind.HANDLER, "a.b"), Confirmation(), resume=True),
         "runner resume --handler a.b"),
        (limit_words(PauseTarget(PauseKind.QUEUE, "mail"), WHY._replace(answer="concurrency=5 rate=none")),
         "runner limit queue mail --concurrency 5 --rate none --reason 'it is back'"),
        (limit_words(PauseTarget(PauseKind.HANDLER, "a.b"), Confirmation("default")),
         "runner limit handler a.b --default"),
        (runner_command_words(ACTIONS["drain"], 7, Confirmation()), "runner runners drain 7"),
        (runner_command_words(ACTIONS["resize"], 7, Confirmation("concurrency=5 threads=2")),
         "runner runners resize 7 --concurrency 5 --threads 2"),
        (breaker_words("a.b", WHY, close=False),
         "runner limit handler a.b --breaker open --for 10m --reason 'it is back'"),
        (breaker_words("a.b", Confirmation(), close=True), "runner limit handler a.b --breaker close"),
        (silence_words("queue-late:mail", WHY._replace(answer="2h"), ends=False),
         "runner alerts silence queue-late:mail --until 2h --reason 'it is back'"),
        (silence_words("queue-late", Confirmation(), ends=True), "runner alerts unsilence queue-late"),
        (schedule_words("schedules pause", "digest", Confirmation("14:30")),
         "runner schedules pause digest --until 14:30"),
        (edited_schedule_words("digest", {"rule": "every 5m"}, Confirmation()),
         "runner schedules edit digest --every 5m"),
        (edited_schedule_words("digest", {"rule": "0 9 * * *", "timezone": "Asia/Tokyo", "misfire": "all 3"}, WHY),
         "runner schedules edit digest --cron '0 9 * * *' --tz Asia/Tokyo --misfire 'all 3' --reason 'it is back'"),
        (edited_schedule_words("digest", {"overlap": "queue", "payload": '{"n": 1}'}, Confirmation()),
         "runner schedules edit digest --overlap queue --payload '{\"n\": 1}'"),
        (schedule_words("schedules run", "digest", WHY._replace(answer="")),
         "runner schedules run digest --reason 'it is back'"),
        (stack_words(12, WHY), "runner show 12 --stack --reason 'it is back'"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("3")), "runner rewind 1 --to 3"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("ship it")), "runner rewind 1 --step 'ship it'"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("-x")), "runner rewind 1 --step=-x"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("step: 7 ")), "runner rewind 1 --step 7"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("007")), "runner rewind 1 --to 7"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("step:load")), "runner rewind 1 --step step:load"),
        (plan_words(plan(ACTIONS["rewind"], [row(1)]), Confirmation("step:step:7")), "runner rewind 1 --step step:7"),
        (undo_words(12, Confirmation()), "runner undo 12"),
        (undo_group_words("b-1", "10000+", WHY), "runner undo --group b-1 --yes 10000+ --reason 'it is back'"),
        (edit_words(story(row(3)), {"run_at": "+15m", "max_attempts": "6"}, None),
         "runner edit 3 --version 0 --run-at +15m --max-attempts 6"),
        (edit_words(story(row(3, Shown.DEAD)), {"priority": "6"}, None),
         "runner edit 3 --version 0 --requeue --priority 6"),
    ],
)  # fmt: skip
def test_every_action_has_a_command_line(words: list[object], line: str) -> None:
    text = command_line(words, HERE)
    assert text == line + AT
    verb, *rest = shlex.split(text)[1:]
    build(verb).parse_args([verb, *rest], print_error=False, exit_on_error=False)


def test_the_database_is_named_without_a_password() -> None:
    assert command_line(["stats"], HERE.model_copy(update={"profile": "prod"})) == "runner stats --profile prod"
    secret = HERE.model_copy(update={"url": parse_url("postgresql://ana:geheim@db/app")})
    assert command_line(["stats"], secret) == "runner stats"


@pytest.mark.parametrize("name", ["a\nrm -rf /", "\x1b[201~", "x" * 5_000])
def test_a_command_line_that_cannot_be_pasted_safely_is_omitted(name: str) -> None:
    assert command_line(["pause", name], HERE) is None


async def copied(operator: Operator, text: str) -> None:
    await operator.until(lambda: text in operator.console.clipboard)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_screen_is_copied_as_a_command_line(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks", filter_text="queue:default state:ready") as operator:
        await operator.sees("○ ready")
        await operator.press("Y")
        await copied(operator, "runner tasks 'queue:default state:ready' --url ")
        await operator.sees_notice("runner tasks 'queue:default state:ready'")
        await operator.press("Y")
        await copied(operator, "SELECT anon_1.id")
        await operator.press("enter")
        await operator.sees("version 0")
        await operator.press("Y")
        await copied(operator, f"runner show {id} --url ")
        screens = (("1", "stats"), ("4", "failures since:1h"), ("5", "runners"), ("6", "schedules list"))
        for key, verb in (*screens, ("7", "reports --since 1h"), ("8", "audit")):
            await operator.press(key, "Y")
            await copied(operator, f"runner {verb} --url ")
        await operator.press("7", "s", "s", "b", "Y")
        await copied(operator, "runner reports --since 7d --by queue --url ")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_dialog_is_copied_with_the_answers_so_far(database: Database, watch: Watch) -> None:
    id = await add_live(database, run_at=ahead(3600))
    async with watch("tasks", NARROW) as operator:
        await operator.sees("◔ scheduled")
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
    """Open the dialog of a key, answer it, copy its command line, and cancel."""
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
    """Move the cursor to the latest entry of the audit, which has this id."""
    await operator.press("8", "r")
    await operator.until(lambda: operator.screen.query_one("#entries", Table).keys[:1] == (entry,))
    await operator.press("home")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_copied_command_line_does_the_same(database: Database, watch: Watch) -> None:
    first, second, third = [await add_live(database, queue="mail", run_at=ahead(3600)) for _ in range(3)]
    runner = await add_runner(database)

    async def does(operator: Operator, key: str, **answers: str) -> None:
        words = await copied_line(operator, key, **answers)
        assert await asyncio.to_thread(exit_code_of, lambda: run(words)) == Exit.OK, words

    async def value(table: str, column: str, id: object) -> Any:
        source = getattr(database.tables, table)
        name = source.c.id if "id" in source.c else source.c.name
        async with database.reading() as tx:
            return await tx.scalar(sa.select(source.c[column]).where(name == id))

    async with watch("tasks", filter_text="queue:mail") as operator:
        await operator.sees("◔ scheduled")
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
        await does(operator, "S", answer="concurrency=5 threads=2", reason="more room")
        assert await value("runner", "command", runner) == "concurrency=5 threads=2"
        await does(operator, "L")
        assert await value("runner", "command", runner) == "concurrency=5 threads=2 drain"
        await latest(operator, 8)
        await does(operator, "Z", reason="it may go on")
        assert await value("runner", "command", runner) == "concurrency=5 threads=2"
        await operator.press("1")
        await operator.sees("mail")
        await does(operator, "P", answer="2h", reason="relay is down")
        assert await value("queue", "paused_why", "mail") == "relay is down"
        await operator.sees("‖")
        await does(operator, "P")
        assert await value("queue", "paused_at", "mail") is None
        await latest(operator, 11)
        await does(operator, "Z")
        assert await value("queue", "paused_why", "mail") == "relay is down"
        await operator.press("1")
        await operator.sees("mail")
        await does(operator, "M", **{"answer-concurrency": "3", "answer-rate": "100/min"}, reason="relay limits us")
        assert await value("queue", "max_running", "mail") == 3
        await operator.sees("0/3")
        await latest(operator, 13)
        await does(operator, "Z")
        assert await value("queue", "max_running", "mail") is None


def test_a_long_command_line_is_cut_on_the_screen() -> None:
    text = (
        command_line(plan_words(plan(ACTIONS["retry"], [row(id) for id in range(1, 421)]), Confirmation()), HERE) or ""
    )
    assert shorten("runner retry 1") == "runner retry 1"
    assert shorten(text).startswith("runner retry 1 2 3")
    assert len(shorten(text)) < LONGEST_LINE  # A notice would cut the suffix with the length.
    assert f"{len(text):,} characters copied" in shorten(text)
