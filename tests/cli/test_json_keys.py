"""The keys of every JSON document, beside the recorded ones: programs read them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.db.transaction import Transaction, clock
from runner.model.outcome import Failure, Retry
from runner.model.task import NewTask
from runner.policy.breaker import Breaker
from runner.store.heartbeat import Identity, register
from tests.cli.conftest import Call, Store
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_live

RECORDED = Path(__file__).with_name("json_keys.txt")

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
    ("why", 1),
    ("why", "state:waiting"),
    ("stats",),
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
    ("delay", "state:waiting", "--by", "1h", "--dry-run"),
    ("delay", 1, "--by", "1h"),
    ("undo", "--dry-run"),
    ("prune", "--retention-succeeded", "1d", "--dry-run"),
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


def _paths(document: Any, path: str = "") -> Iterator[str]:
    """The path of each key, in the order of the document."""
    for name, value in document.items() if isinstance(document, dict) else ():
        yield f"{path}.{name}".lstrip(".")
        yield from _paths(value, f"{path}.{name}")
    for value in document if isinstance(document, list) else ():
        yield from _paths(value, f"{path}[]")


@pytest.fixture
def busy(cli: Call, store: Store) -> Call:
    """A database with something for each command."""
    tenant = NewTask("a.b", queue="mail", tenant="acme")
    store.submit(NewTask("a.b", payload='{"to": "x"}'), tenant, tenant)
    store.claim("a.b", outcome=Retry("0s", failure=Failure("TimeoutError", "no answer", "trace")))
    store.use(lambda database: add_live(database, "a.b", queue="mail", tenant="acme", state="running", fence=1))
    store.write(_work)
    for command in ARRANGED:
        assert cli(*command).code == 0, command
    return cli


def test_the_keys_of_every_json_document_stay(busy: Call) -> None:
    """Delete json_keys.txt to record the keys anew; git diff shows the changed ones."""
    lines = list[str]()
    for command in COMMANDS:
        result = busy(*command, "--json")
        assert result.out, (command, result.err)
        lines += [f"{' '.join(map(str, command))}: {path}" for path in dict.fromkeys(_paths(result.document))]
    if not RECORDED.exists():
        RECORDED.write_text("\n".join(lines) + "\n")
    assert lines == RECORDED.read_text().splitlines()
