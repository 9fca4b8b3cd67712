"""Operators set, remove and undo limits; each change is audited, and can be printed as SQL."""

import json
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidInput
from runner.operations.limit import LimitEdit, preview_limits, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor, Result, Skipped
from runner.operations.sql_export import limit_script
from runner.operations.undo.undo import undo
from runner.policy.limits import SharedLimits
from runner.policy.rate import Rate
from runner.queries.audit import audit
from runner.queries.limits import limit_usages
from tests.store.table import put

ANA, BEN = Actor("ana", "desk-1", "relay limits us"), Actor("ben", "desk-2")
MAIL = PauseTarget(PauseKind.QUEUE, "mail")


async def limit(database: Database, by: Actor = ANA, **values: str) -> Any:
    return await database.write(set_limits, MAIL, LimitEdit({k.replace("_", "-"): v for k, v in values.items()}), by)


async def current(database: Database) -> SharedLimits:
    return next((usage.limits for usage in await database.read(limit_usages)), SharedLimits())


@pytest.fixture
async def used(database: Database) -> Database:
    await put(database, queue="mail")
    return database


async def test_a_limit_is_audited_with_its_author_and_reason(used: Database) -> None:
    await limit(used, concurrency="5", rate="100/min")
    assert await current(used) == SharedLimits(5, None, Rate(100, 60.0))
    (usage,) = await used.read(limit_usages)
    assert (usage.by, usage.why, usage.total) == ("ana", "relay limits us", 0)
    (entry,) = await used.read(audit)
    assert (entry.verb, entry.target, entry.operator, entry.reason) == ("limit", "queue mail", "ana", "relay limits us")
    assert json.loads(entry.after or "")["max_running"] == 5


async def test_an_undo_restores_the_limits_before(used: Database) -> None:
    await limit(used, concurrency="5")
    await limit(used, BEN, concurrency="9", per_tenant="2")
    second, first = await used.read(audit)
    assert await used.write(undo, [first.id], BEN) == Result(
        skipped=[Skipped(first.id, "its limits have been changed again since", "change")]
    )
    assert (await used.write(undo, [second.id], BEN)).changed == [second.id]
    assert await current(used) == SharedLimits(5)
    (usage,) = await used.read(limit_usages)
    assert usage.by == "ana"


async def test_a_misspelled_queue_is_refused_with_the_similar_one(used: Database) -> None:
    target = PauseTarget(PauseKind.QUEUE, "mial")
    with pytest.raises(InvalidInput, match=r"did you mean 'mail'.*--new"):
        await used.write(set_limits, target, LimitEdit({"concurrency": "5"}), ANA)
    assert await used.read(limit_usages) == []
    await used.write(set_limits, target, LimitEdit({"concurrency": "5"}, new=True), ANA)
    assert [usage.name for usage in await used.read(limit_usages)] == ["mial"]


async def test_a_preview_changes_nothing(used: Database) -> None:
    result = await used.read(preview_limits, MAIL, LimitEdit({"concurrency": "5"}))
    assert result == (SharedLimits(), SharedLimits(5))
    assert await current(used) == SharedLimits()


async def test_the_sql_names_every_value_and_changes_nothing(used: Database) -> None:
    await limit(used, concurrency="5")
    text = await used.write(limit_script, MAIL, LimitEdit({"concurrency": "9"}), BEN)
    assert "max_running = 9" in text
    assert "the limits of queue mail have changed since" in text
    assert await current(used) == SharedLimits(5)


async def test_an_unreadable_declaration_counts_as_none(used: Database) -> None:
    handler = used.tables.handler
    async with used.writing() as tx:
        await tx.execute(sa.insert(handler).values(name="work", max_running=3, declared_limits='["odd"]'))
    target = PauseTarget(PauseKind.HANDLER, "work")
    assert (await used.write(set_limits, target, LimitEdit({}, default=True), ANA)).after == SharedLimits()
