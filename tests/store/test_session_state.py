"""Behind a pooler that shares sessions between transactions, session state would leak to other clients."""

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Done, Retry
from runner.queries.queues import counts
from runner.store.lanes import survey
from runner.store.rescue import any_lost, rescue
from tests.store.runners import Runner
from tests.store.table import put

KEPT = {
    "prepared statements": "SELECT count(*) FROM pg_prepared_statements",
    "settings": "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%'",
    "listeners": "SELECT count(*) FROM pg_listening_channels()",
    "advisory locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "temporary tables": "SELECT count(*) FROM pg_class WHERE relpersistence = 't'",
}


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_the_verbs_leave_nothing_behind_in_their_sessions(database: Database, runner: Runner) -> None:
    for outcome in (Done(), Retry("1h")):
        await put(database)
        (task,) = await runner.claim(1)
        await runner.end(task, outcome)
    await database.write_single(survey)
    await database.write_single(any_lost, runner.rescuer, 1.0)
    await database.write(rescue, runner.rescuer, 1.0)
    await database.read(counts)
    for opened in (database.single, database.writing, database.reading):
        async with opened() as tx:
            left = {name: await tx.scalar(sa.text(question)) for name, question in KEPT.items()}
        assert left == dict.fromkeys(KEPT, 0)
