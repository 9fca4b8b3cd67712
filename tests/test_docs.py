"""The pages of docs/: their commands and examples work, and their tables match the code."""

import inspect
import re
import sqlite3
import tomllib
from collections import defaultdict
from contextlib import closing
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import runner
from runner import Context, errors, handler, schedule
from runner.cli.app import ALONE, build
from runner.cli.bench.verb import PARTS
from runner.client.submission import Submitter
from runner.db.migrations.roles import ROLES
from runner.db.schema import MINUTE_COUNTS, MINUTE_TIMES, tables
from runner.filter.fields import FIELDS
from runner.filter.sort import SORTS
from runner.handlers.hooks import HOOKS
from runner.handlers.options import SCHEDULE_OPTIONS, SETTABLE
from runner.model.alert import AlertRule
from runner.model.duration import format_duration
from runner.model.task import MOVES, State
from runner.policy.retry import parse_plan
from runner.settings import DESCRIPTIONS, Settings, load
from runner.urls import parse_url
from tasktui.actions.actions import ACTIONS
from tasktui.screens import MODES
from tests.conftest import on_sqlite
from tests.pages import (
    DOCS,
    PAGES,
    blocks,
    code,
    execute,
    follow,
    meant_for,
    shell_environment,
    table,
)
from tests.shells import Refused

__all__ = ["shell_environment"]

CONFIGURATION = DOCS / "configuration.md"
CONTRIBUTING = DOCS.parent / "CONTRIBUTING.md"
NAMES = ("console", "handlers", "operating", "sql", "submitting")
CONSOLE, HANDLERS, OPERATING, SQL, SUBMITTING = (DOCS / f"{name}.md" for name in NAMES)

WIDEST_CODE = 113
"""Characters in a line of code of the site on a screen of 1,280 pixels, which `.ci/docs` measures if it can."""


def words(cell: str) -> list[str]:
    """The code in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_no_line_of_code_is_wider_than_a_page_of_the_site(page: Path) -> None:
    lines = [
        line
        for _, text in re.findall(r"^( *)```\w+\n(.*?)^\1```$", page.read_text(), re.DOTALL | re.MULTILINE)
        for line in text.splitlines()
    ]
    assert [line for line in lines if len(line) > WIDEST_CODE] == []


def test_every_setting_is_listed_with_its_default_and_its_description() -> None:
    rows = table("setting", "## Settings", CONFIGURATION)
    defaults = {row.name: row.value.replace(f"{Path.cwd()}/", "") for row in Settings().describe()}
    settings = [[code(name), defaults[name], description] for name, description in DESCRIPTIONS.items()]
    listed = [[name, default, meaning.replace("`", "")] for name, default, meaning in rows]
    assert listed == settings


@on_sqlite
def test_the_profiles_of_the_configuration_page_load(
    tmp_path: Path, shell_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKTUI_URL", raising=False)
    for name, value in shell_environment.items():
        monkeypatch.setenv(name, value)
    (profiles,) = blocks(CONFIGURATION, "toml")
    (tmp_path / "config.toml").write_text(profiles.text)
    (tmp_path / "config.toml").chmod(0o600)
    assert str(load(config=tmp_path / "config.toml").url) == "sqlite:////home/me/tasks.db"
    prod = load(profile="prod", config=tmp_path / "config.toml")
    assert (prod.url.password, prod.production, prod.concurrency) == ("a secret", True, 200)


@pytest.mark.parametrize(
    "url", [word for row in table("URL", "## Database URLs", CONFIGURATION) for word in words(row[0])]
)
def test_every_documented_url_is_valid(url: str) -> None:
    assert parse_url(url).kind == ("postgresql" if url.startswith("postgresql") else "sqlite")


def test_every_field_of_a_filter_is_listed_with_its_examples() -> None:
    listed = table("field", "## Filters", OPERATING)
    assert listed == [[code(field.name), field.help, code(field.examples)] for field in FIELDS.values()]


def test_every_sort_is_listed() -> None:
    listed = [row[0] for row in table("sort", "## Sort", OPERATING)]
    assert sorted(listed) == sorted(code(by) for by in SORTS)


def test_every_screen_and_every_action_of_the_console_is_listed() -> None:
    assert [row[:2] for row in table("key", "## Screens", CONSOLE)] == [
        [code(mode.key), mode.title] for mode in MODES.values()
    ]
    listed = [
        (target, key, name)
        for target, keys, _ in table("changes", "## Keys", CONSOLE)
        for key, name in re.findall(r"`(\w)` ([^,]+)", keys)
    ]
    actions = [(action.target.value, action.key, action.name) for action in ACTIONS.values()]
    assert sorted(listed) == sorted(actions)


def test_every_rule_of_alerts_is_listed_with_its_subject() -> None:
    rows = table("rule", "## Alerts", DOCS / "monitor.md")
    assert [row[:2] for row in rows] == [[code(rule.value), rule.subject] for rule in AlertRule]


def test_every_database_role_is_listed() -> None:
    listed = [row[0] for row in table("role", "## Database roles", DOCS / "maintaining.md")]
    assert sorted(listed) == sorted(code(f"task_{role}") for role in ROLES)


def test_every_state_transition_is_listed() -> None:
    moves = [
        [code(verb), ", ".join(code(state) for state in move.sources if state), code(move.target), move.description]
        for verb, move in MOVES.items()
    ]
    assert table("verb", "## State transitions", DOCS / "reliability.md") == moves


def test_every_part_of_the_benchmark_is_listed() -> None:
    listed = [row[0] for row in table("part", "## Measure your own", DOCS / "performance.md")]
    assert listed == [code(part) for part in PARTS]


def test_the_documented_retry_plans_wait_as_long_as_the_table_shows() -> None:
    for plan, *waits, _ in table("plan", "## Retry plans", HANDLERS):
        delays = [parse_plan(plan.strip("`")).delay(failed, 0.5) for failed in range(1, len(waits) + 1)]
        assert waits == ["-" if delay is None else format_duration(delay) for delay in delays], plan


def test_every_option_of_a_handler_is_listed() -> None:
    listed = [word for row in table("option", "## Name and options", HANDLERS) for word in words(row[0])]
    assert sorted(listed) == sorted(set(inspect.signature(handler).parameters) - {"name"})


def test_every_option_of_a_task_is_listed_with_its_flag() -> None:
    options = [[code(name), code(f"--{(option.flag or name).replace('_', '-')}")] for name, option in SETTABLE.items()]
    assert [row[:2] for row in table("option", "`options` takes the options of a task", SUBMITTING)] == options


def test_every_option_of_a_schedule_is_listed() -> None:
    own = [
        name for name in inspect.signature(schedule).parameters if name not in ("cron", "every", "after_end", "options")
    ]
    listed = [word for row in table("option", "## Options", DOCS / "schedules.md") for word in words(row[0])]
    assert sorted(listed) == sorted([*own, *SCHEDULE_OPTIONS])


def test_every_documented_error_of_a_result_exists() -> None:
    for row in table("error", "## Results", SUBMITTING):
        assert issubclass(getattr(errors, row[0].strip("`")), Exception)


def test_the_places_to_change_exist_and_cover_every_package() -> None:
    rows = table("to add or change", "## Where things are", CONTRIBUTING)
    rows += table("step", "## A task in the code", CONTRIBUTING)
    paths = {word for _, cell in rows for word in words(cell) if "/" in word}
    assert [path for path in sorted(paths) if not (DOCS.parent / path).exists()] == []
    for _, cell in rows:
        for name, path in re.findall(r"`([A-Z_]+)` in `([^`]+\.py)`", cell):
            assert re.search(rf"^{name}\b", (DOCS.parent / path).read_text(), re.MULTILINE), f"{name} in {path}"
    packages = {file.parent for top in ("runner", "tasktui") for file in (DOCS.parent / top).glob("*/__init__.py")}
    missing = [package.name for package in packages if not any(f"/{package.name}" in path for path in paths)]
    assert sorted(missing) == sorted(UNLISTED)


SEVERAL = 2


def test_the_neighbours_of_a_place_are_in_several_files() -> None:
    cells = [cell for _, cell in table("to add or change", "## Where things are", CONTRIBUTING)]
    names = {name for cell in cells for name in re.findall(r"\*like\* `([^`]+)`", cell)}
    texts = [file.read_text() for file in (DOCS.parent / "runner").rglob("*.py")]
    places = {name: sum(re.search(rf"\b{name}\b", text) is not None for text in texts) for name in names}
    assert places
    assert {name for name, number in places.items() if number < SEVERAL} == set()


UNLISTED = {"dialogs", "startup", "terminal", "widgets"}
"""The packages of which CONTRIBUTING names no place: nothing new begins there."""


def test_every_error_of_a_submit_is_listed() -> None:
    raised = re.findall(r"\b([A-Z][a-z]+[A-Z]\w+)\b", (inspect.getdoc(Submitter.submit) or "").partition("Raises:")[2])
    listed = [word for row in table("error", "A submit raises an error", SUBMITTING) for word in words(row[0])]
    assert sorted(listed) == sorted({*raised, "InvalidTask"})
    assert all(issubclass(getattr(errors, name), errors.RunnerError) for name in listed)


def test_every_public_name_is_on_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in runner.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_public_name_is_in_one_page_of_the_reference() -> None:
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    listed = [name for page in pages for name in re.findall(r"^::: runner\.(\w+)$", page, re.MULTILINE)]
    assert sorted(listed) == sorted(runner.__all__)


def test_the_diagram_has_every_state_and_every_move() -> None:
    words_shown = set(re.findall(r"\w+", " ".join(re.findall(r">([^<]+)</text>", (DOCS / "states.svg").read_text()))))
    assert {*MOVES, *(state.value for state in State)} <= words_shown


def test_every_attribute_of_the_end_of_an_attempt_is_listed() -> None:
    page = DOCS / "inside-your-application.md"
    listed = [word for row in table("attribute", "## Hooks", page) for word in words(row[0])]
    assert sorted(listed) == sorted(f"end.{field.name}" for field in fields(runner.AttemptEnd))


def test_every_hook_is_listed() -> None:
    page = DOCS / "inside-your-application.md"
    listed = [word for row in table("decorator", "## Hooks", page) for word in words(row[0])]
    assert sorted(listed) == sorted({event for events in HOOKS.values() for event in events})


IMPORTED = re.compile(r"^from (runner(?!\.django)[\w.]*) import ([\w, ]+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_every_name_that_an_example_imports_exists(page: Path) -> None:
    missing = [
        f"{module}.{name}"
        for block in blocks(page, "python")
        for module, names in IMPORTED.findall(block.text)
        for name in names.split(", ")
        if not hasattr(import_module(module), name)
    ]
    assert not missing


def test_every_extra_is_listed() -> None:
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = table("package", "## Install", DOCS / "add-to-your-project.md")
    assert {f"`tasktui[{extra}]`" for extra in extras} <= {row[0] for row in rows}


def test_every_option_of_a_command_within_a_sentence_exists() -> None:
    used: dict[str, set[str]] = defaultdict(set)
    for page in PAGES:
        for verb, rest in re.findall(r"`runner ([a-z]+)( [^`]+)`", page.read_text()):
            used[verb].update(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest))
    for verb, options in used.items():
        arguments = build(verb)[verb].assemble_argument_collection()
        assert options <= {name for argument in arguments for name in argument.names}.union(ALONE), verb


def test_every_documented_name_of_the_context_exists() -> None:
    listed = {
        word.removeprefix("ctx.").removesuffix("()")
        for row in table("attribute", "## Context", HANDLERS)
        for word in words(row[0])
    }
    assert listed - {*dir(Context), *Context.__annotations__} == set()


def test_every_table_and_every_column_of_a_task_is_listed() -> None:
    ours = tables()
    assert {row[0] for row in table("table", "## Tables", SQL)} == {
        code(name) for name in [*ours.metadata.tables, "task_schema"]
    }
    listed = [
        word
        for after in ("Columns of `task` that you set", "Columns that runners write")
        for row in table("column", after, SQL)
        for word in words(row[0])
    ]
    assert sorted(listed) == sorted({*ours.task.c.keys(), *ours.history.c.keys()})
    counts = [word for row in table("column", "`task_minute` has", SQL) for word in words(row[0])]
    assert sorted(counts) == sorted([*MINUTE_COUNTS, *MINUTE_TIMES])


HANDLED = """
import documented
from datetime import datetime, UTC

print(documented.charge_each([1]), documented.charge.submit(order=2, cents=0))
documented.import_file.submit(path="/tmp", item={"name": "x"}, since=datetime.now(UTC))
documented.sync.submit("berlin")
documented.crunch.options(key="last").submit(rows=3)
documented.pay.submit(order=7)
documented.pay_now.submit(order=7)
documented.count.submit(order=7)
documented.import_file.options(key="stock").submit(path="/tmp", item={"name": "y"})
documented.ordered(9)
documented.close_the_day("monday", [1, 2])
"""

ORDERS = (
    "CREATE TABLE orders (id integer PRIMARY KEY, paid boolean, seen integer); INSERT INTO orders VALUES (7, false, 0)"
)


@pytest.mark.slow
@on_sqlite
def test_the_documented_handlers_work(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    sections = {"handlers": "", "submitting": "", "unique-keys": "", "dependencies": "", "strategies": "Hosts"}
    sections["transactions"] = "Exactly-once transactions"
    examples = [block for page, section in sections.items() for block in blocks(DOCS / f"{page}.md", "python", section)]
    module = "\n\n".join(block.text for block in examples)
    (tmp_path / "documented.py").write_text(module)
    (tmp_path / "submit.py").write_text(HANDLED)
    with closing(sqlite3.connect(tmp_path / "tasktui.db")) as shell:
        shell.executescript(ORDERS)
    follow("python submit.py && runner work -H documented --until-idle", tmp_path, shell_environment)
    with closing(sqlite3.connect(tmp_path / "tasktui.db")) as shell:
        finished = shell.execute("SELECT handler, state, result FROM task_history ORDER BY id").fetchall()
        paid = shell.execute("SELECT paid, seen FROM orders").fetchall()
    assert finished == [
        ("shop.charge", "succeeded", '"charged 5 for order 1"'),
        ("shop.charge", "dead", None),
        ("shop.import", "succeeded", '{"path":"/tmp","item":"x"}'),
        ("shop.sync", "dead", None),
        ("shop.crunch", "succeeded", "3"),
        ("shop.pay", "succeeded", None),
        ("shop.pay_now", "succeeded", None),
        ("shop.count", "succeeded", "1"),
        ("shop.import", "succeeded", '{"path":"/tmp","item":"y"}'),
        ("shop.charge", "succeeded", '"charged 5 for order 9"'),
        ("shop.ship", "succeeded", None),
        ("shop.thank", "succeeded", None),
        ("shop.charge", "succeeded", '"charged 5 for order 1"'),
        ("shop.charge", "succeeded", '"charged 5 for order 2"'),
        ("shop.report", "succeeded", '"monday: 0 of 2 failed"'),
        ("shop.celebrate", "succeeded", None),
    ]
    assert paid == [(1, 1)]


@pytest.fixture
def migrated(migrated_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a reader whose tables exist."""
    if migrated_url.startswith("postgresql"):
        return {"TASKTUI_URL": migrated_url}
    (tmp_path / "test.db").rename(tmp_path / "tasktui.db")
    return {}


def test_the_documented_sql_works(tmp_path: Path, migrated: dict[str, str]) -> None:
    for page in PAGES:
        for block in blocks(page, "sql"):
            assert block.first.startswith("-- "), f"{page.name}: the block does not name its shell"
            if meant_for(block, migrated) and "refused" not in block.first:
                execute(block.text, tmp_path, migrated)


def test_every_statement_documented_as_refused_is_refused(tmp_path: Path, migrated: dict[str, str]) -> None:
    refused = [block for block in blocks(SQL, "sql") if "refused" in block.first]
    statements = [line for block in refused if meant_for(block, migrated) for line in block.text.splitlines()[1:]]
    assert len(statements) >= 9
    for statement in statements:
        with pytest.raises(Refused):
            execute(statement, tmp_path, migrated)


@pytest.mark.slow
@on_sqlite
def test_the_examples_for_applications_run(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    page = DOCS / "inside-your-application.md"
    module = "\n\n".join(block.text for block in blocks(page, "python"))
    (tmp_path / "application.py").write_text(module + APPLICATION)
    follow("python application.py", tmp_path, shell_environment)


APPLICATION = """

async def documented() -> None:
    async with lifespan(None):
        handle = await notify.submit_async(url="https://example.org")
        assert await handle.wait(timeout="30s") is None
        assert DURATIONS.keys() == {"shop.notify"}
    assert ENDED == {("default", "shop.notify", "succeed"): 1}
    await main()
    await scan_apart()


asyncio.run(documented())
serve_in_threads()

from runner.testing import TaskStore

with TaskStore("sqlite:///test.db") as store:
    test_notify(store)
"""
