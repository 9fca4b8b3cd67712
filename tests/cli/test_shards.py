"""Commands on a profile with shards."""

import asyncio
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from runner.cli.exit_codes import Exit
from runner.cli.options import Connection
from runner.cli.schemas import SCHEMAS
from runner.cli.tools import ToolResult, assistant_tools, call_tool
from runner.db.database import Database
from runner.filter.sort import NEWEST
from runner.model.task import NewTask, OrderKey
from runner.queries.task_list.cursor import Cursor
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import TaskPage
from runner.queries.task_list.shard_page import merged
from runner.store.ended_runners import end_runners
from tests.cli.conftest import Call, Store
from tests.cli.test_schemas import strict
from tests.shards import EACH_PAIR, Sharded, write_config
from tests.store.rows import add_attempt, add_runner, ahead

EU, US = "customer-3", "customer-0"
"""Routes of each shard."""


@pytest.fixture
def profile(profile: Sharded, monkeypatch: pytest.MonkeyPatch) -> Sharded:
    """The profile of the commands."""
    monkeypatch.setenv("TASKTUI_CONFIG", str(profile.config))
    monkeypatch.setenv("TASKTUI_PROFILE", "orders")
    return profile


def submit(call: Call, route: str, **options: Any) -> str:
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    result = call("submit", "work", "{}", "--route", route, *words)
    assert result.code == Exit.OK, result.err
    return str(result.out.split()[-1].rstrip("."))


def fits(command: str, document: Any) -> None:
    """The document fits the schema of the command."""
    schema = strict(json.loads((SCHEMAS / f"{command}.json").read_text()))
    references = {each["$ref"].rpartition("/")[2]: each for each in schema["anyOf"]}
    merged = {"tasks": "ShardTaskList", "runners": "ShardRunnerList", "failures": "ShardFailureList"}
    name = merged.get(command, "OverShards")
    Draft202012Validator({**references[name], "$defs": schema["$defs"]}).validate(document)


@pytest.mark.representatives(1)
@EACH_PAIR
def test_a_submit_goes_to_the_shard_of_its_route(call: Call, profile: Sharded) -> None:
    assert [submit(call, route) for route in (EU, US, EU)] == ["eu:1", "us:1", "eu:2"]
    assert [len(Store(url).tasks()) for url in profile.urls.values()] == [2, 1]
    refused = call("submit", "work", "{}")
    assert (refused.code, "set options(route=...)" in refused.err) == (Exit.BAD_INPUT, True)


def test_lines_go_to_the_shards_of_their_routes(call: Call, profile: Sharded, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f'{{"handler": "work", "route": "{route}"}}\n' for route in (EU, US, EU)))
    result = call("submit", "--lines", lines)
    assert (result.code, result.out) == (Exit.OK, "Submitted 3 tasks (eu:1 to eu:2).\n")
    assert [len(Store(url).tasks()) for url in profile.urls.values()] == [2, 1]


@pytest.mark.representatives(1)
@EACH_PAIR
def test_a_list_has_the_tasks_of_each_shard_with_their_ids(call: Call, profile: Sharded) -> None:
    for route in (EU, US, EU):
        submit(call, route)
    result = call("tasks", "state:waiting")
    assert result.code == Exit.OK
    lines = [line.split()[:2] for line in result.out.splitlines()]
    assert lines == [["SHARD", "ID"], ["eu", "eu:2"], ["us", "us:1"], ["eu", "eu:1"], ["3", "tasks"]]
    document = call("tasks", "--json").document
    fits("tasks", document)
    assert [(task["shard"], task["id"]) for task in document["tasks"]] == [("eu", 2), ("us", 1), ("eu", 1)]
    assert (document["partial"], document["errors"], document["next"]) == (False, {}, None)


SORTS = ("id", "age", "run_at", "priority", "attempts")


@pytest.mark.slow
@EACH_PAIR
@pytest.mark.parametrize("direction", ["--asc", "--desc"])
@pytest.mark.parametrize("sort", SORTS)
def test_the_pages_of_a_merged_list_are_the_list(call: Call, profile: Sharded, sort: str, direction: str) -> None:
    routes = [EU, EU, US, EU, US, US, EU]
    ids = [
        submit(call, route, priority=1 + place * 5 % 9, at=f"+{1 + place * 3 % 7}h")
        for place, route in enumerate(routes)
    ]
    whole = call("tasks", "--sort", sort, direction, "--json").document["tasks"]
    by_value = {"run_at": "run_at", "priority": "priority"}.get(sort, "submitted_at")
    values = [task[by_value] for task in whole]
    if sort != "attempts":
        assert values == sorted(values, reverse=(direction == "--desc") is not (sort == "age"))
    listed = [f"{task['shard']}:{task['id']}" for task in whole]
    assert sorted(listed) == sorted(ids)
    paged: list[str] = []
    after: list[str] = []
    while True:
        page = call("tasks", "--sort", sort, direction, "--limit", 2, "--json", *after)
        assert page.code == Exit.OK, page.err
        paged += [f"{task['shard']}:{task['id']}" for task in page.document["tasks"]]
        if page.document["next"] is None:
            break
        after = ["--after", page.document["next"]]
    assert paged == listed


@pytest.mark.slow
def test_a_merged_list_continues_from_a_cursor_per_shard(call: Call, profile: Sharded) -> None:
    for route in (EU, US, EU):
        submit(call, route)
    page = call("tasks", "--limit", 1)
    assert "1 task of eu, us; continue with --after eu:2,us:" in page.out
    assert "eu:1" in call("tasks", "--after", "eu:2").out  # The list of us has ended.
    assert "us:1" not in call("tasks", "--after=eu:2").out
    for wrong in ("2", "ap:2", "eu:2,eu:1", "eu:x"):
        refused = call("tasks", "--after", wrong)
        assert refused.code == Exit.BAD_INPUT
        assert "is not a cursor" in refused.err or "is no cursor" in refused.err
    assert call("tasks", "--after", "2", "--profile", "eu").code == Exit.OK


@pytest.mark.slow
def test_a_merged_list_without_a_shard_is_partial_and_goes_on_with_it_later(call: Call, profile: Sharded) -> None:
    for route in (EU, EU, US):
        submit(call, route)
    file = Path(profile.urls["us"].removeprefix("sqlite:///"))
    file.rename(file.with_suffix(".away"))
    document = call("tasks", "--limit", 1, "--json").document
    assert (document["partial"], document["next"], list(document["errors"])) == (True, "eu:2,us:", ["us"])
    assert "The list is partial, without us." in call("tasks").out
    file.with_suffix(".away").rename(file)
    rest = call("tasks", "--after", document["next"], "--json").document
    assert [(task["shard"], task["id"]) for task in rest["tasks"]] == [("us", 1), ("eu", 1)]


def test_an_empty_merged_list_has_the_hints_once(call: Call, profile: Sharded) -> None:
    submit(call, EU)
    result = call("tasks", "failed")
    assert (result.out, result.err.count("by state: runner tasks state:dead")) == ("No tasks match.\n", 1)
    assert call("tasks", "queue:default").err == ""


def test_a_page_ends_where_a_shard_may_have_an_earlier_task() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def listed(*minutes: int, following: int | None) -> TaskPage:
        values: dict[str, Any] = dict.fromkeys(TaskRow._fields)
        rows = [TaskRow(**values | {"id": each, "submitted_at": at + timedelta(minutes=each)}) for each in minutes]
        cursor = None if following is None else Cursor(following)
        return TaskPage(rows, cursor, following is not None, False, at, places={each: Cursor(each) for each in minutes})

    pages = {"eu": listed(9, 8, following=3), "us": listed(7, 2, following=None)}
    page = merged(pages, {"eu": None, "us": None}, NEWEST, 10)
    assert ([str(task) for task in page.tasks], page.next) == (["eu:9", "eu:8"], {"eu": Cursor(3), "us": None})
    page = merged({"eu": listed(1, following=None), "us": pages["us"]}, page.next, NEWEST, 10)
    assert ([str(task) for task in page.tasks], page.next) == (["us:7", "us:2", "eu:1"], {})


@pytest.mark.parametrize(
    "command",
    [
        ("stats",),
        ("schedules",),
        ("reports",),
        ("capacity",),
        ("alerts",),
        ("audit",),
        ("why", "state:waiting"),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_reads_each_shard(call: Call, profile: Sharded, command: tuple[str, ...]) -> None:
    submit(call, EU)
    result = call(*command)
    assert result.code == (Exit.FIRING if command == ("alerts",) else Exit.OK), result.err
    assert [line for line in map(str.strip, result.out.splitlines()) if line in ("eu", "us")] == ["eu", "us"]
    document = call(*command, "--json").document
    fits(command[0], document)
    assert list(document["shards"]) == ["eu", "us"]


@EACH_PAIR
def test_the_runners_of_all_shards_are_one_list(call: Call, profile: Sharded) -> None:
    async def fill() -> None:
        for url, capacity in zip(profile.urls.values(), (1, 2), strict=True):
            database = Database.open(url)
            await add_runner(database, capacity=capacity)
            await database.write(end_runners, [await add_runner(database)], lost=False)
            await database.dispose()

    asyncio.run(fill())
    result = call("runners", "--profile", "orders")
    live, ended = (part.splitlines() for part in result.out.split("\n\n"))
    assert [line.split()[0] for line in live[1:]] == ["eu:1", "us:1"]
    assert sorted(line.split()[0] for line in ended[2:]) == ["eu:2", "us:2"]
    document = call("runners", "--json").document
    fits("runners", document)
    assert [(row["shard"], row["id"], row["capacity"]) for row in document["runners"]] == [("eu", 1, 1), ("us", 1, 2)]
    assert sorted((row["shard"], row["id"]) for row in document["ended"]) == [("eu", 2), ("us", 2)]
    assert call("runners", "drain", "us:1").code == Exit.OK
    assert [row["command"] for row in call("runners", "--json").document["runners"]] == [None, "drain"]
    assert call("runners", "--profile", "orders", "drain", "1").code == Exit.CONFIGURATION


@EACH_PAIR
def test_a_cause_in_several_shards_is_one_group(call: Call, profile: Sharded) -> None:
    async def fill() -> None:
        for url, fences in zip(profile.urls.values(), ((1,), (1, 2)), strict=True):
            database = Database.open(url)
            for fence in fences:
                await add_attempt(database, 5, fence, ended_at=ahead(-30 + fence))
            await database.dispose()

    asyncio.run(fill())
    result = call("failures")
    assert ("us 2, eu 1" in result.out, "1 failure group" in result.out) == (True, True)
    document = call("failures", "--json").document
    fits("failures", document)
    (group,) = document["failures"]
    assert (group["count"]["number"], group["shards"]["us"]["number"], document["partial"]) == (3, 2, False)


@pytest.mark.parametrize("command", ["runners", "failures"])
def test_a_list_without_a_shard_is_partial(call: Call, profile: Sharded, command: str) -> None:
    Path(profile.urls["us"].removeprefix("sqlite:///")).unlink()
    result = call(command)
    assert (result.code, "The list is partial, without us." in result.out) == (Exit.DATABASE, True)
    document = call(command, "--json").document
    fits(command, document)
    assert (document["partial"], "The SQLite file" in document["errors"]["us"]) == (True, True)


def test_an_id_with_its_shard_chooses_the_database(call: Call, profile: Sharded) -> None:
    submit(call, EU, key="first")
    submit(call, US, key="second")
    assert "second" in call("show", "us:1").out
    assert call("show", "us:1", "--json").document["key"] == "second"
    assert call("terminate", "us:1").code == Exit.OK
    assert [len(Store(url).tasks()) for url in profile.urls.values()] == [1, 0]


def test_ids_of_several_shards_are_changed_in_each(call: Call, profile: Sharded) -> None:
    for route in (EU, EU, US):
        submit(call, route)
    result = call("terminate", "eu:2", "us:1")
    assert result.code == Exit.OK, result.err
    assert [[task["id"] for task in Store(url).tasks()] for url in profile.urls.values()] == [[1], []]


@pytest.mark.parametrize("command", [("terminate", 1), ("retry", "queue:default", "--sql"), ("undo",), ("rewind", 1)])
def test_a_change_of_one_task_or_as_sql_needs_a_shard(
    call: Call, profile: Sharded, command: tuple[str | int, ...]
) -> None:
    submit(call, EU)
    result = call(*command)
    assert result.code == Exit.CONFIGURATION
    assert "Choose a shard with --profile: eu, us" in result.err
    assert len(Store(profile.urls["eu"]).tasks()) == 1


def test_a_file_has_the_report_of_one_shard(call: Call, profile: Sharded, tmp_path: Path) -> None:
    result = call("reports", "--html", tmp_path / "report.html")
    assert (result.code, (tmp_path / "report.html").exists()) == (Exit.CONFIGURATION, False)


@pytest.mark.slow
@EACH_PAIR
def test_an_assistant_reads_all_shards_and_changes_one(call: Call, profile: Sharded) -> None:
    for route in (EU, US, EU):
        submit(call, route)
    tools = assistant_tools(operations=True, shards=("eu", "us"))

    def ask(name: str, **values: Any) -> ToolResult:
        errors = [error.message for error in Draft202012Validator(tools[name].input_schema).iter_errors(values)]
        assert errors == []
        return call_tool(tools[name], values, Connection(), "probe")

    totals = ask("stats").document["totals"]
    assert [each["figures"]["ready"]["number"] for each in totals["rows"]] == [2, 1]
    assert ask("show", id="us:1").document["id"] == 1
    assert [task["id"] for task in ask("tasks", filter=["state:waiting"], shard="us").document["tasks"]] == [1]
    both = ask("terminate", tasks=["queue:default"], dry_run=True).document["totals"]
    assert [each["figures"]["eligible"]["number"] for each in both["rows"]] == [2, 1]
    preview = ask("terminate", tasks=["queue:default"], dry_run=True, shard="eu").document
    ended = ask("terminate", tasks=["queue:default"], shard="eu", yes=str(preview["eligible"]), reason="a trial")
    assert (len(ended.document["changed"]), len(Store(profile.urls["us"]).tasks())) == (2, 1)
    paused = ask("pause", queue="default", reason="a trial").document
    assert [paused["shards"][shard]["verb"] for shard in ("eu", "us")] == ["pause", "pause"]


def test_a_submit_waits_for_its_task_in_its_shard(call: Call, profile: Sharded) -> None:
    submit(call, EU)
    result = call("submit", "work", "{}", "--route", US, "--wait-timeout", "10ms", "--json")
    assert (result.code, "Submitted task us:1." in result.err) == (Exit.UNFINISHED, True)
    assert call("submit", "work", "{}", "--route", US, "--json").document["shard"] == "us"


@pytest.mark.slow
def test_a_pause_holds_in_each_shard(call: Call, profile: Sharded) -> None:
    for route in (EU, US):
        submit(call, route)
    assert call("pause", "default").code == Exit.OK
    assert call("stats").out.count("has been paused") == 2
    assert call("resume", "default").code == Exit.OK


@pytest.mark.slow
def test_a_schedule_is_changed_in_the_shard_that_owns_it(call: Call, profile: Sharded) -> None:
    for id in ("report.1", "report.2", "report.3", "report.4"):
        assert call("schedules", "add", id, "work", "--every", "1h").code == Exit.OK
    documents = call("schedules", "--json").document["shards"]
    counts = [len(documents[name]["schedules"]) for name in ("eu", "us")]
    assert (sum(counts), min(counts) > 0) == (4, True)
    assert call("schedules", "pause", "report.2").code == Exit.OK


def test_a_shard_that_is_away_is_named_and_the_others_are_read(call: Call, profile: Sharded) -> None:
    submit(call, EU)
    Path(profile.urls["us"].removeprefix("sqlite:///")).unlink()
    result = call("tasks")
    assert result.code == Exit.DATABASE
    assert "eu:1" in result.out
    assert "runner: us: The SQLite file" in result.err


TOTALS: dict[str, Callable[[Any], Any]] = {
    "stats": lambda figures: figures["ready"]["number"],
    "reports": lambda figures: figures["submitted"],
    "incident": lambda figures: figures["submitted"]["number"],
    "check": lambda figures: figures["ok"] > 0,
}


@EACH_PAIR
@pytest.mark.parametrize("command", TOTALS)
def test_a_report_has_a_row_for_each_shard_and_their_total(call: Call, profile: Sharded, command: str) -> None:
    for route in (EU, US, EU):
        submit(call, route)
    result = call(command)
    heads = [line.split()[0] for line in result.out.splitlines()[:4]]
    assert heads == ["SHARD", "eu", "us", "total"]
    document = call(command, "--json").document
    fits(command, document)
    totals = document["totals"]
    figures = [TOTALS[command](each["figures"]) for each in totals["rows"]]
    assert [each["shard"] for each in totals["rows"]] == ["eu", "us"]
    expected = ([True, True], True) if command == "check" else ([2, 1], 3)
    assert (figures, TOTALS[command](totals["total"])) == expected
    assert not totals["partial"]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("command", TOTALS)
def test_the_figures_of_a_shard_that_is_away_are_unknown(call: Call, profile: Sharded, command: str) -> None:
    submit(call, EU)
    Path(profile.urls["us"].removeprefix("sqlite:///")).unlink()
    result = call(command)
    rows = [line.split() for line in result.out.splitlines()[:4]]
    assert result.code == (Exit.ERROR if command == "check" else Exit.DATABASE)  # In eu, no runner takes the task.
    assert (rows[2][1], set(rows[2][2:])) == ("unknown", {"?"})
    assert rows[1][1] == rows[3][1] != "unknown"
    assert "The total is partial, without us." in result.out
    assert "The SQLite file" in (result.out if command == "check" else result.err)
    document = call(command, "--json").document
    fits(command, document)
    eu, us = document["totals"]["rows"]
    assert (us["figures"], "The SQLite file" in us["error"], eu["error"]) == (None, True, None)
    assert document["totals"]["partial"]
    assert document["totals"]["total"] == eu["figures"]
    assert (document["shards"]["us"] is None) is (command != "check")  # The findings of a check name the error.


@pytest.mark.slow
def test_a_server_that_is_stopped_delays_no_other_shard(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = {"eu": f"sqlite:///{tmp_path / 'eu.db'}", "us": "postgresql://nobody@127.0.0.1:%d/x"}
        urls["us"] %= silent.getsockname()[1]
        monkeypatch.setenv("TASKTUI_CONFIG", str(write_config(tmp_path / "c.toml", urls)))
        monkeypatch.setenv("TASKTUI_PROFILE", "orders")
        call("migrate", "--profile", "eu")
        submit(call, EU)
        result = call("stats")
    assert result.code == Exit.DATABASE
    assert [line.split()[:2] for line in result.out.splitlines()[1:4]] == [
        ["eu", "1"],
        ["us", "unknown"],
        ["total", "1"],
    ]
    assert "runner: us: " in result.err


def test_migrate_creates_the_tables_of_each_shard(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("eu", "us")}
    monkeypatch.setenv("TASKTUI_CONFIG", str(write_config(tmp_path / "c.toml", urls)))
    assert call("migrate", "--profile", "orders").code == Exit.OK
    assert all((tmp_path / f"{name}.db").exists() for name in urls)


def test_a_rebalance_moves_waiting_tasks_to_the_shards_of_their_routes(call: Call, profile: Sharded) -> None:
    eu = Store(profile.urls["eu"])
    eu.submit(*(NewTask("work", headers=f'{{"route": "{route}"}}') for route in (US, EU, US)))
    ordered = NewTask("work", headers=f'{{"route": "{US}"}}', order_key=OrderKey("k"))
    eu.submit(ordered, ordered)
    stays = "2 tasks of eu stay: they have an order key with other tasks.\n"
    assert call("rebalance", "--dry-run").out == f"Would move 2 tasks from eu to us.\n{stays}"
    assert call("rebalance", "--reason", "a new shard").out == f"Moved 2 tasks from eu to us.\n{stays}"
    assert [len(Store(url).tasks()) for url in profile.urls.values()] == [3, 2]
    assert call("rebalance", "--json").document == {
        "dry_run": False,
        "moved": [],
        "left": [{"shard": "eu", "reason": "an order key with other tasks", "tasks": 2}],
    }
    assert "a new shard" in call("audit", "--profile", "eu").out
    assert call("rebalance", "--profile", "eu").code == Exit.BAD_INPUT


def test_a_shard_without_a_profile_is_named_once(call: Call, profile: Sharded) -> None:
    text = profile.config.read_text()
    profile.config.write_text(text[: text.index("[profiles.us]")])
    refused = call("tasks")
    assert (refused.code, refused.out) == (Exit.CONFIGURATION, "")
    assert refused.err.count("there is no profile for the shard 'us'") == 1


@pytest.mark.slow
@EACH_PAIR
def test_a_prune_deletes_in_each_shard_and_archives_in_a_folder_of_each(
    call: Call, profile: Sharded, tmp_path: Path
) -> None:
    for route in (EU, US, EU):
        submit(call, route)
    assert call("terminate", "state:waiting", "--yes", 3).code == Exit.OK
    old = ("--retention-cancelled", "1ms")
    counted = call("prune", *old, "--dry-run", "--json").document
    fits("prune", counted)
    assert [counted["shards"][name]["tasks"]["cancelled"]["number"] for name in ("eu", "us")] == [2, 1]
    folder = tmp_path / "archive"
    archived = call("prune", *old, "--archive", folder)
    assert archived.code == Exit.OK, archived.err
    assert [line for line in archived.out.splitlines() if line in ("eu", "us")] == ["eu", "us"]
    assert sorted(each.name for each in folder.iterdir()) == ["eu", "us"]
    listed = [call("tasks", "--archive", folder / name, "--profile", name, "--json").document for name in ("eu", "us")]
    assert [len(each["tasks"]) for each in listed] == [2, 1]
    assert call("tasks", "--json").document["tasks"] == []
    restored = call("restore", "state:cancelled", "--archive", folder / "us", "--profile", "us")
    assert (restored.code, len(call("tasks", "--json").document["tasks"])) == (Exit.OK, 1)
    assert call("prune", *old).code == Exit.OK
    assert call("tasks", "--json").document["tasks"] == []


@pytest.mark.slow
def test_a_prune_without_a_shard_archives_the_others(call: Call, profile: Sharded, tmp_path: Path) -> None:
    for route in (EU, US):
        submit(call, route)
    assert call("terminate", "state:waiting", "--yes", 2).code == Exit.OK
    Path(profile.urls["eu"].removeprefix("sqlite:///")).unlink()
    result = call("prune", "--retention-cancelled", "1ms", "--archive", tmp_path / "archive")
    assert (result.code, "runner: eu: The SQLite file" in result.err) == (Exit.DATABASE, True)
    assert [each.name for each in (tmp_path / "archive").iterdir()] == ["us"]
