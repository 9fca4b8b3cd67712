"""Operators open and close breakers by hand, with audit, undo, SQL and `runner why`."""

import json
from datetime import UTC, timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.operations.breaker import breaker_of, close_by_hand, open_by_hand
from runner.operations.results import Actor
from runner.operations.sql_export import breaker_script
from runner.operations.undo.undo import undo
from runner.policy.breaker import Breaker
from runner.queries.audit import audit
from runner.queries.why.many import why_many
from runner.queries.why.why import why
from runner.store.breaker import Report, review
from runner.store.registration import Identity, register
from tests.store.table import change as change_rows
from tests.store.table import put

ANA = Actor("ana", "desk-1", "the gateway is down")
BREAKER = Breaker("10/min", probe="30s").columns


@pytest.fixture
async def sms(database: Database) -> None:
    handlers = ["mail", "sms"]
    await database.write(register, Identity("here", 1, "test", handlers, 10, breakers={"sms": BREAKER}), 60.0)


async def open_now(database: Database) -> bool:
    return (await database.read(breaker_of, "sms")).state is not None


@pytest.mark.usefixtures("sms")
class TestByHand:
    async def test_opening_and_closing_are_in_the_audit_and_can_be_undone(self, database: Database) -> None:
        result = await database.write(open_by_hand, "sms", ANA, timedelta(minutes=10))
        assert result.row.state is not None
        assert 590 < result.row.state.next_in <= 600
        assert not (await database.write(open_by_hand, "sms", ANA)).changed
        await database.write(close_by_hand, "sms", ANA)
        closing, opening = await database.read(audit)
        assert (opening.verb, opening.target, opening.operator) == ("open breaker", "handler sms", "ana")
        assert (closing.verb, json.loads(closing.after or "")["breaker_probes"]) == ("close breaker", None)
        assert (await database.write(undo, [closing.id], ANA)).changed == [closing.id]
        assert await open_now(database)
        assert (await database.write(undo, [opening.id], ANA)).changed == [opening.id]
        assert not await open_now(database)

    async def test_no_undo_loses_a_later_change(self, database: Database) -> None:
        await database.write(open_by_hand, "sms", ANA)
        await database.write(close_by_hand, "sms", ANA)
        await database.write(review, Report("sms", opens="QuotaExceeded"))
        closing, opening = await database.read(audit)
        for entry in (opening, closing):
            (skipped,) = (await database.write(undo, [entry.id], ANA)).skipped
            assert skipped.why == "the breaker has been opened or closed again since"
        assert await open_now(database)

    @pytest.mark.parametrize("verb", ["open breaker", "close breaker"])
    async def test_the_undo_names_a_handler_without_a_row_or_a_breaker(self, database: Database, verb: str) -> None:
        await database.write(open_by_hand, "sms", ANA)
        await database.write(close_by_hand, "sms", ANA)
        (entry,) = [entry.id for entry in await database.read(audit) if entry.verb == verb]
        handlers = database.tables.handler
        for change, reason in (
            (sa.update(handlers).values(breaker=None), "handler sms has no breaker any more"),
            (sa.delete(handlers), "the registry has no row of handler sms any more"),
        ):
            async with database.writing() as tx:
                await tx.execute(change)
            answer = await database.write(undo, [entry], ANA)
            assert (answer.changed, answer.stuck) == ([], [])
            assert answer.skipped[0].why == reason

    async def test_a_handler_without_a_breaker_is_refused_with_those_that_have_one(self, database: Database) -> None:
        with pytest.raises(InvalidInput, match=r"handler mail has no breaker; handlers with a breaker: sms"):
            await database.write(open_by_hand, "mail", ANA)
        with pytest.raises(InvalidInput, match=r"did you mean 'sms'"):
            await database.write(close_by_hand, "sns", ANA)

    @pytest.mark.parametrize("wait", [timedelta(0), timedelta(days=366)])
    async def test_a_wait_out_of_bounds_is_refused(self, database: Database, wait: timedelta) -> None:
        with pytest.raises(InvalidInput, match="from 1s to 365d"):
            await database.write(open_by_hand, "sms", ANA, wait)

    async def test_the_sql_makes_the_same_change(self, database: Database) -> None:
        script = await database.write(breaker_script, "sms", lambda tx: open_by_hand(tx, "sms", ANA))
        assert "breaker_probes" in script
        assert "open breaker" in script
        assert not await open_now(database)

    async def test_why_names_the_reason_the_next_probe_and_the_remedy(self, database: Database) -> None:
        await database.write(review, Report("sms", opens="ConnectionError: refused"))
        task = await put(database, "sms")
        answer = await database.read(why, task, UTC)
        texts = " ".join(cause.text for cause in answer.causes)
        assert "The breaker of handler sms opened " in texts
        assert "ConnectionError: refused. The next probe starts in " in texts

    @pytest.mark.slow
    async def test_why_closes_a_breaker_of_an_operator_but_none_that_failures_have_opened(
        self, database: Database
    ) -> None:
        async def advised(task: int) -> str:
            answer = await database.read(why, task, UTC)
            many = await database.read(why_many, Filter(), UTC)
            commands = [remedy.commands for remedy in answer.remedies] + [group.command for group in many.causes]
            return " ".join([*commands, *(cause.advice for cause in answer.causes)])

        await database.write(review, Report("sms", opens="ConnectionError: refused"))
        task = await put(database, "sms")
        assert "--breaker close" not in await advised(task)
        assert "the next probe that succeeds closes the breaker" in await advised(task)
        await database.write(close_by_hand, "sms", ANA)
        await database.write(open_by_hand, "sms", ANA)
        assert "runner limit handler sms --breaker close" in await advised(task)
        handler = database.tables.handler
        await change_rows(database, sa.update(handler).values(breaker_round=2))  # a probe has failed
        assert "--breaker close" not in await advised(task)
