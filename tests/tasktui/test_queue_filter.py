"""The filter and the order of the queues on the overview."""

from functools import partial
from typing import Any

import pytest

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import InvalidInput
from runner.model.task import State
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts, queue_survey
from runner.queries.overview import waits
from runner.queries.reports import Flow
from tasktui.data.queue_order import ORDERS, arranged, matcher, sorted_queues
from tasktui.widgets.table import Table
from tests.store.rows import add_live, add_past, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.test_mouse import click
from tests.tasktui.test_overview import BEHIND, overview_of, queue


def named(name: str, ready: int = 0, dead: int = 0, oldest: float | None = None) -> QueueCounts:
    return queue(name, ready=Count(ready), dead=Count(dead), oldest=oldest)


QUEUES = [named("mail.eu", 5, 2, 700.0), named("mail.us", 50), named("Orders", 500, 1, 3.0)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "mail.eu mail.us Orders"),
        ("mail", "mail.eu mail.us"),
        ("MAIL eu", "mail.eu"),
        ("orders", "Orders"),
        ("*.us", "mail.us"),
        ("-mail", "Orders"),
        ("!mail.eu", "mail.us Orders"),
        ("dead>0", "mail.eu Orders"),
        ("dead:0", "mail.us"),
        ("-dead>0", "mail.us"),
        ("ready>=50 ready<500", "mail.us"),
        ("ready>1,000", ""),
        ("oldest>5m", "mail.eu"),
        ("paused", ""),
        ("[x]*", ""),
    ],
)
def test_the_words_of_a_filter_must_all_match(text: str, names: str) -> None:
    matches = matcher(text)
    assert " ".join(each.queue for each in QUEUES if matches(each)) == names


@pytest.mark.parametrize(
    ("text", "why"),
    [("deed>0", "did you mean 'dead'"), ("dead>many", "is not a number: dead>100"), ("oldest>soon", "soon")],
)
def test_a_wrong_figure_or_bound_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        matcher(text)


def test_every_order_sorts_with_the_highest_first() -> None:
    for order in ORDERS:
        assert len(arranged(QUEUES, order)) == 3
    assert [each.queue for each in arranged(QUEUES, "ready")] == ["Orders", "mail.us", "mail.eu"]
    assert [each.queue for each in arranged(QUEUES, "ready", reverse=True)] == ["mail.eu", "mail.us", "Orders"]
    assert [each.queue for each in arranged(QUEUES, "name")] == ["Orders", "mail.eu", "mail.us"]
    assert arranged(QUEUES, "trouble") == QUEUES
    assert named("a", 9).minute == Flow()
    assert BEHIND.falls_behind
    assert matcher("late")(BEHIND)


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_queues_are_filtered_and_sorted_by_key(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    for name, number in (("alpha", 1), ("beta", 3), ("gamma", 2)):
        for _ in range(number):
            await add_live(database, queue=name, run_at=ahead(-5))
    await add_past(database, 900, State.DEAD, queue="gamma")
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "beta"), Actor("ana", "ops-1"))
    async with watch("overview", size) as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: set(table.keys) == {"alpha", "beta", "gamma"})
        await operator.press("slash")
        await operator.type("a -paused")
        await operator.press("enter")
        await operator.until(lambda: set(table.keys) == {"alpha", "gamma"})
        await operator.sees(" a ", " -paused ", "2 of 3 queues")
        assert operator.screen.focused is table
        await operator.press("slash")
        await operator.type("deed>0")
        await operator.press("enter")
        await operator.sees_notice("did you mean 'dead'")
        await operator.type("dead>0")
        await operator.press("enter")
        await operator.until(lambda: table.keys == ("gamma",))
        await operator.press("slash")
        await operator.type("nothing")
        await operator.press("escape")
        await operator.until(lambda: operator.screen.focused is table)
        assert table.keys == ("gamma",)
        await operator.press("slash")
        await operator.type("")
        await operator.press("enter", "o", "o")
        await operator.until(lambda: table.keys == ("beta", "gamma", "alpha"))
        await operator.sees("↓ ready")


@ON_ONE_DATABASE
async def test_the_first_match_of_a_filter_is_under_the_cursor(database: Database, watch: Watch) -> None:
    for name in ("alpha", "images", "mail"):
        await add_live(database, queue=name, run_at=ahead(-5))
    async with watch("overview") as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: table.cursor == "alpha")
        await operator.press("slash")
        await operator.type("i")
        await operator.press("enter")
        await operator.until(lambda: table.keys == ("images", "mail") and table.cursor == "images")
        await operator.press("M")
        await operator.sees("Limit", "images")


def test_a_named_queue_in_trouble_comes_before_the_listed_ones() -> None:
    found = [queue("alpha"), queue("zeta", lost=Count(1))]
    order = sorted_queues(overview_of(queue("alpha"), queue("beta")), found)
    assert [each.queue for each in order] == ["zeta", "alpha", "beta"]


def spy_on_waits(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The queues whose waits the overview reads, by query."""
    asked = list[set[str]]()

    def read(tx: Transaction, names: tuple[str, ...]) -> Any:
        asked.append(set(names))
        return waits(tx, names)

    monkeypatch.setattr("tasktui.screens.overview.waits", read)
    return asked


async def test_a_filter_finds_queues_that_are_not_listed_by_their_names(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.queries.counts.queue_survey", partial(queue_survey, most=2))
    monkeypatch.setattr("runner.queries.overview.queue_survey", partial(queue_survey, most=2))
    monkeypatch.setattr("runner.queries.overview.MOST_QUEUES", 2)
    for name in ("alpha", "beta", "mail.eu", "mail.us", "paused"):
        await add_live(database, queue=name, run_at=ahead(-5))
    await add_past(database, 1_000, State.DEAD, queue="mail.dead")
    async with watch("overview") as operator:
        table = operator.screen.query_one(Table)
        await operator.sees("2+ queues")
        assert set(table.keys) == {"alpha", "beta"}
        asked = spy_on_waits(monkeypatch)
        for text, found in (
            ("MAIL", {"mail.eu", "mail.us", "mail.dead"}),
            ("mail.* ready>0 -us", {"mail.eu"}),
            ("mail.us", {"mail.us"}),
            ("alpha", {"alpha"}),
            ("nothing", set()),
        ):
            await operator.press("slash")
            await operator.type(text)
            await operator.press("enter")
            await operator.sees(f"{len(found)} of 2+ queues")
            assert set(table.keys) == found
            if text == "MAIL":  # their waits are read too
                await operator.press("r")
                await operator.until(partial(asked.__contains__, found))
        await operator.press("slash")
        await operator.type("dead>0")
        await operator.press("enter")
        await operator.sees("0 of the 2 listed")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_click_on_a_head_sorts_the_queues_and_a_second_one_reverses(database: Database, watch: Watch) -> None:
    for name, number in (("alpha", 1), ("beta", 3)):
        for _ in range(number):
            await add_live(database, queue=name, run_at=ahead(-5))
    async with watch("overview", WIDE) as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: set(table.keys) == {"alpha", "beta"})
        await click(operator, "NAME")
        await operator.sees("↑ name")
        assert table.keys == ("alpha", "beta")
        await click(operator, "NAME")
        await operator.until(lambda: table.keys == ("beta", "alpha"))
        await operator.sees("↓ name")
