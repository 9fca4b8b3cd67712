"""Every query works with rows of any content that a foreign client can insert."""

from datetime import UTC, datetime

import pytest

from runner.db.database import Database
from runner.filter.parse import parse_filter
from runner.queries.audit import audit
from runner.queries.counts import counts
from runner.queries.failures import failures
from runner.queries.registries import pauses
from runner.queries.runners import runners, unknown_handlers
from runner.queries.task.detail import task_detail
from runner.queries.task.results import endings
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import page
from runner.queries.why.why import why
from tests.shells import Shell
from tests.store.test_plain_inserts import (
    ENDS,
    IDLE_ROWS,
    ODD_NAMES,
    ODD_PAYLOADS,
    ODD_ROWS,
    STOPPERS_BY_DATABASE,
    accepts,
    insertion,
    quoted,
    shell,
    work,
)

__all__ = ["shell"]

EVERYTHING = parse_filter("", datetime(2026, 1, 1, tzinfo=UTC), UTC)


async def look(database: Database) -> dict[int, TaskRow]:
    """Run every query, and return the listed tasks."""
    listed = await database.read(page, EVERYTHING, None, 500)
    for shown in listed.tasks:
        detail = await database.read(task_detail, shown.id)
        assert detail.task.handler == shown.handler
        assert (await database.read(why, shown.id, UTC)).verdict
    for verb in (counts, failures, audit, pauses, runners, unknown_handlers):
        await database.read(verb)
    ids = [shown.id for shown in listed.tasks]
    database.threads.read(endings, ids)
    return {shown.id: shown for shown in listed.tasks}


def written(shell: Shell, kind: str) -> int:
    """Insert every odd row that the database accepts, and return their number."""
    rows: list[dict[str, str]] = [
        *({"queue": quoted(name), "key": quoted(name)} for name in ODD_NAMES),
        *({"handler": quoted(name)} for name in ODD_NAMES),
        *({"payload": quoted(payload)} for payload in ODD_PAYLOADS),
        *ODD_ROWS,
        *IDLE_ROWS,
    ]
    shell(";\n".join(insertion(row) for row in rows))
    for statement in STOPPERS_BY_DATABASE[kind].values():
        accepts(shell, statement)
    return int(shell("SELECT count(*) FROM (SELECT id FROM task UNION SELECT id FROM task_history) AS ids"))


@pytest.mark.slow
async def test_odd_rows_can_be_queried_live_and_finished(database: Database, shell: Shell) -> None:
    number = written(shell, database.dialect.name)
    before = await look(database)
    outcome, verb = ENDS[-1]
    claimed, settled = await work(database, outcome)
    assert len(claimed) > len(ODD_NAMES) + len(ODD_PAYLOADS) + len(ODD_ROWS)
    assert set(settled.verbs.values()) == {verb}
    after = await look(database)
    assert before.keys() == after.keys()
    assert len(before) == number


async def test_an_unknown_handler_is_shown_as_one(database: Database, shell: Shell) -> None:
    shell(insertion({"handler": "'nobody.knows'", "queue": "'lost & found'"}))
    shell(insertion({}))
    await work(database, ENDS[0][0])
    (entry,) = await database.read(unknown_handlers)
    assert (entry.handler, entry.queues) == ("nobody.knows", ("lost & found",))
    (waiting,) = (await database.read(page, parse_filter("handler:nobody.knows", datetime.now(UTC), UTC))).tasks
    answer = await database.read(why, waiting.id, UTC)
    assert "nobody.knows" in " ".join([answer.verdict, *(str(cause) for cause in answer.causes)])
