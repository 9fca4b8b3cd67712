"""The JSON Schema of each command: the committed file, the classes that it derives from, and real output."""

import json
import os
import re
from datetime import datetime
from importlib import import_module
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from runner.cli.app import CLI_COMMANDS
from runner.cli.schemas import SCHEMAS
from runner.db.transaction import Transaction, clock
from runner.model.outcome import Failure, Retry
from runner.model.task import NewTask, NewWorkflow
from runner.policy.breaker import Breaker
from runner.store.registration import Identity, register
from tests.cli.conftest import Call, Store, running
from tests.cli.json_schema import schema_of_command
from tests.pages import DOCS
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_live

pytestmark = pytest.mark.both_databases

NAMES = [command.name for command in CLI_COMMANDS]

ARRANGED = (
    ("limit", "queue", "mail", "--per-tenant", 1, "--new"),
    ("limit", "handler", "sms", "--breaker", "open", "--reason", "outage"),
    ("pause", "--handler", "sms", "--reason", "deploy"),
    ("schedules", "add", "nightly", "a.b", "--cron", "0 3 * * *"),
    ("schedules", "pause", "nightly"),
    ("views", "save", "late", "state:dead"),
)

COMMANDS = (
    ("tasks",),
    ("tasks", "--at", "0s"),
    ("show", 1),
    ("show", 1, "--log"),
    ("workflows",),
    ("workflow", 1),
    ("why", 1),
    ("why", "state:waiting"),
    ("stats",),
    ("stats", "--beside", "0s"),
    ("runners",),
    ("runners", "drain", 1, "--dry-run"),
    ("failures",),
    ("reports",),
    ("incident",),
    ("capacity",),
    ("capacity", "--simulate"),
    ("schedules",),
    ("schedules", "show", "nightly"),
    ("schedules", "preview", "--every", "5m"),
    ("schedules", "run", "nightly"),
    ("limit",),
    ("limit", "queue", "mail", "--concurrency", 5, "--dry-run"),
    ("limit", "handler", "sms", "--breaker", "close", "--dry-run"),
    ("pause", "mail", "--dry-run"),
    ("audit", "--limit", 3),
    ("alerts",),
    ("alerts", "silence", "no-runner", "--until", "2h"),
    ("alerts", "unsilence", "no-runner", "--dry-run"),
    ("views",),
    ("views", "save", "early", "state:waiting"),
    ("views", "delete", "early"),
    ("delay", "state:waiting", "--by", "1h", "--dry-run"),
    ("delay", 1, "--by", "1h"),
    ("undo", "--dry-run"),
    ("retry", 1),
    ("retry", "state:waiting", "--dry-run"),
    ("unblock", "state:blocked", "--dry-run"),
    ("unblock", 1),
    ("edit", 1, "--priority", 3, "--dry-run"),
    ("edit", 1, "--priority", 3),
    ("edit", "state:waiting", "--priority", 4, "--dry-run"),
    ("signal", "state:waiting", "approved", "--dry-run"),
    ("signal", 1, "approved", "7"),
    ("terminate", "state:waiting", "--dry-run"),
    ("terminate", 1),
    ("rewind", 1),
    ("rewind", 1, "--to", 1, "--dry-run"),
    ("resume", "--handler", "sms"),
    ("copy", 1, "--dry-run"),
    ("copy", 1),
    ("undo", 1),
    ("migrate",),
    ("prune", "--retention-succeeded", "1d", "--dry-run"),
    ("prune", "--archive", "archive", "--retention-cancelled", "1ms"),
    ("restore", "state:cancelled", "--archive", "archive"),
    ("pull", 1, "--to", "case.db", "--redact"),
    ("erase", "state:dead", "--dry-run"),
    ("erase", 1),
    ("rekey", "state:dead", "--dry-run"),
    ("rekey", 1),
    ("check",),
    ("submit", "a.b"),
)


async def _work(tx: Transaction) -> None:
    minute = Minute(await clock(tx), "mail", "a.b")
    minute.counts |= {"succeeded": 3, "first_try": 2, "died": 1, "submitted": 4}
    minute.durations.add([4.0])
    minute.waits.add([300.0])
    await write_statistics(tx, 1, [minute], {})
    await register(tx, Identity("here", 1, "test", ["sms"], 10, breakers={"sms": Breaker("10/min").columns}), 60.0)


@pytest.fixture
def busy(cli: Call, store: Store) -> Call:
    """A database with something for each command."""
    tenant = NewTask("a.b", queue="mail", tenant="acme")
    store.submit(NewTask("a.b", payload='{"to": "x"}'), tenant, tenant)
    store.submit(NewTask("a.c", workflow=NewWorkflow("order 17")))
    store.claim("a.b", outcome=Retry("0s", failure=Failure("TimeoutError", "no answer", "trace")))
    store.use(lambda database: add_live(database, "a.b", queue="mail", tenant="acme", state="running", fence=1))
    store.write(_work)
    for command in ARRANGED:
        assert cli(*command).code == 0, command
    return cli


@pytest.mark.one_database
@pytest.mark.parametrize("name", NAMES)
def test_the_committed_schema_describes_the_documents_of_a_command(name: str) -> None:
    """Run with SCHEMAS=write to write the files anew; git diff shows the changes. Add keys; never rename or remove."""
    path, schema = SCHEMAS / f"{name}.json", schema_of_command(name)
    text = json.dumps(schema, indent=1) + "\n" if schema else None
    if os.environ.get("SCHEMAS") == "write" and text is not None:
        path.write_text(text)
    advice = "a key of --json changed; to accept it: SCHEMAS=write uv run pytest tests/cli/test_schemas.py"
    assert (path.read_text() if path.exists() else None) == text, advice


@pytest.mark.one_database
def test_every_command_that_prints_json_has_a_schema() -> None:
    printing = [
        command.name
        for command in CLI_COMMANDS
        if "json: bool" in getsource(module := import_module(f"runner.cli.{command.module}"))
        or hasattr(module, "DOCUMENTS")
    ]
    assert sorted(path.stem for path in SCHEMAS.glob("*.json")) == sorted(printing)


@pytest.mark.one_database
def test_the_page_links_to_every_schema() -> None:
    links = re.findall(r"\(\.\./runner/cli/schemas/(\w+)\.json\)", (DOCS / "json.md").read_text())
    assert sorted(links) == sorted(path.stem for path in SCHEMAS.glob("*.json"))


@pytest.mark.one_database
@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_a_schema_is_valid_and_describes_each_number_with_a_fraction(path: Any) -> None:
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    for name, definition in schema["$defs"].items():
        for key, value in definition.get("properties", {}).items():
            assert "number" not in value.get("type", ()) or value.get("description"), f"{name}.{key} has no unit"


CHECKER = FormatChecker(formats=())


@CHECKER.checks("date-time", raises=ValueError)  # type: ignore[untyped-decorator]
def is_time(value: object) -> bool:
    """True for an aware time, and for values of other types."""
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def strict(schema: Any) -> Any:
    """The same schema, which allows no key that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema and "required" in schema else {}
    return {name: strict(each) for name, each in schema.items()} | closed


JOBS = """
from runner import handler

@handler(name="fail")
def fail() -> None:
    raise OSError("no route")
"""

UNTRIED = {
    "alerts: TrialDocument",
    "demo: DemoReport",
    "serve: JsonLine",
    "work: JsonLine",
    "bench: BenchDocument",
    "check: PayloadReport",
    "show: StackDocument",
    "submit: EndDocument",
    "submit: LinesDocument",
    "rebalance: Rebalanced",
    "tasks: ShardTaskList",
    "runners: ShardRunnerList",
    "failures: ShardFailureList",
}
"""Documents of which other tests have real output."""


@pytest.mark.one_database
def test_the_output_of_every_command_fits_its_schema(busy: Call) -> None:
    tried = set[str]()
    for command in COMMANDS:
        result = busy(*command, "--json")
        assert result.out, (command, result.err)
        schema = strict(json.loads((SCHEMAS / f"{command[0]}.json").read_text()))
        matching = []
        for reference in schema.get("anyOf", [schema]):
            validator = Draft202012Validator({**reference, "$defs": schema["$defs"]}, format_checker=CHECKER)
            errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(result.document)]
            matching += [] if errors else [reference["$ref"].rpartition("/")[2]]
        assert len(matching) == 1, (command, errors)
        tried.add(f"{command[0]}: {matching[0]}")
    documents = {
        f"{command.name}: {document.__name__}"
        for command in CLI_COMMANDS
        for document in getattr(import_module(f"runner.cli.{command.module}"), "DOCUMENTS", ())
    }
    assert documents - tried == UNTRIED


def test_the_lines_of_a_runner_fit_their_schema(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    store.submit(NewTask("fail", max_attempts=1, key="k", headers=f'{{"traceparent": "00-{"a" * 32}-{"b" * 16}-01"}}'))
    monkeypatch.setenv("TASKTUI_URL", store.url)
    with running("work", "-H", "jobs", "--until-idle", "--log-format", "json") as program:
        lines = [json.loads(line) for line in program.wait().err.splitlines()]
    validator = Draft202012Validator(json.loads((SCHEMAS / "work.json").read_text()), format_checker=CHECKER)
    assert [error.message for line in lines for error in validator.iter_errors(line)] == []
    assert [line["event"] for line in lines if "event" in line] == ["started", "stopped"]
    (dead,) = [line for line in lines if line["level"] == "error"]
    assert (dead["handler"], dead["key"], dead["error_type"], dead["trace_id"]) == ("fail", "k", "OSError", "a" * 32)
    assert "OSError: no route" in dead["exception"]
