"""Rows written by hand are shown as what they are: whatever a hand can write, every look at the queue works."""

from datetime import UTC, datetime

from runner.people.filters import parse_filter
from runner.store.database import Database
from runner.store.observe import (
    TaskRow,
    audit,
    counts,
    failures,
    page,
    pauses,
    runners,
    story,
    unknown_handlers,
    why,
)
from runner.store.observe.endings import endings
from tests.shells import Shell
from tests.store.test_plain_inserts import (
    ENDS,
    IDLE_ROWS,
    ODD_NAMES,
    ODD_PAYLOADS,
    ODD_ROWS,
    STOPPERS_BY_DATABASE,
    insertion,
    quoted,
    shell,
    taken,
    work,
)

__all__ = ["shell"]

EVERYTHING = parse_filter("", datetime(2026, 1, 1, tzinfo=UTC), UTC)


async def look(database: Database) -> dict[int, TaskRow]:
    """Look at everything in every way, and return what is listed."""
    listed = await database.read(page, EVERYTHING, None, 500)
    for shown in listed.tasks:
        told = await database.read(story, shown.id)
        assert told.task.handler == shown.handler
        assert (await database.read(why, shown.id, UTC)).verdict
    for verb in (counts, failures, audit, pauses, runners, unknown_handlers):
        await database.read(verb)
    await database.read(endings, [shown.id for shown in listed.tasks])
    return {shown.id: shown for shown in listed.tasks}


def written(shell: Shell, kind: str) -> int:
    """Write every odd row that the database takes, and return how many tasks they are."""
    rows: list[dict[str, str]] = [
        *({"queue": quoted(name), "key": quoted(name)} for name in ODD_NAMES),
        *({"handler": quoted(name)} for name in ODD_NAMES),
        *({"payload": quoted(payload)} for payload in ODD_PAYLOADS),
        *ODD_ROWS,
        *IDLE_ROWS,
    ]
    shell(";\n".join(insertion(row) for row in rows))
    for statement in STOPPERS_BY_DATABASE[kind].values():
        taken(shell, statement)
    return int(shell("SELECT count(*) FROM (SELECT id FROM task UNION SELECT id FROM task_history) AS ids"))


async def test_odd_rows_can_be_looked_at_before_and_after_their_end(database: Database, shell: Shell) -> None:
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
    (found,) = await database.read(unknown_handlers)
    assert (found.handler, found.queues) == ("nobody.knows", ("lost & found",))
    (waiting,) = (await database.read(page, parse_filter("handler:nobody.knows", datetime.now(UTC), UTC))).tasks
    told = await database.read(why, waiting.id, UTC)
    assert "nobody.knows" in " ".join([told.verdict, *(str(cause) for cause in told.causes)])
