"""Comparison: two databases side by side, or one at two times."""

import re

import pytest

from runner.db.database import Database
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.queries.comparison import QueueFigures, Side, differs
from runner.queries.counting import Count
from tasktui.dialogs.compare import CompareScreen, chosen_heads
from tasktui.session.session import Session
from tests.store.rows import add_live, add_runner, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.test_colours import pale_texts
from tests.tasktui.test_databases import eu, eu_url

__all__ = ["eu", "eu_url"]


def figures(ready: int, oldest: float | None = None) -> QueueFigures:
    return QueueFigures(Count(ready), Count(0), Count(0), Count(0), oldest, 0, 0, "")


@pytest.mark.parametrize(
    ("one", "other", "expected"), [(5, 9, False), (0, 10, True), (100, 199, False), (100, 200, True), (200, 100, True)]
)
def test_figures_differ_if_one_is_twice_the_other_and_ten_more(one: int, other: int, expected: bool) -> None:
    assert differs(figures(one), figures(other), "ready") is expected
    assert differs(figures(one), None, "ready")


def test_a_bound_differs_only_if_it_is_the_larger_figure() -> None:
    unknown, many = figures(0)._replace(ready=Count(0, True)), figures(0)._replace(ready=Count(10_000, True))
    assert not differs(unknown, figures(500), "ready")
    assert differs(figures(500), many, "ready")
    assert not differs(many, figures(50_000), "ready")


def test_figures_that_differ_have_the_room_of_a_narrow_screen() -> None:
    one, other = (Side(name, {"mail": figures(5)}, {}) for name in ("eu", "us"))
    assert [head.title for head in chosen_heads((one, other), 30)] == ["READY", "RETRY", "RUN"]
    dead = figures(5)._replace(dead=Count(28), done=40)
    many = one._replace(queues={"mail": dead})
    assert [head.title for head in chosen_heads((many, other), 30)] == ["READY", "DEAD", "DONE/M"]
    assert [head.title for head in chosen_heads((many, other._replace(queues={})), 30)] == ["READY", "DEAD", "DONE/M"]


def test_a_figure_takes_the_room_of_its_texts_and_is_not_cut() -> None:
    side = Side("eu", {"mail": figures(1_234_567)}, {})
    ready, retry, *_ = chosen_heads((side, side), 200)
    assert (ready.cells, retry.cells) == (len("1,234,567") + 1, 4)
    assert [head.title for head in chosen_heads((side, side), 3)] == ["READY"]


@ON_ONE_DATABASE
@pytest.mark.representatives(2)
@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_two_databases_are_compared(database: Database, watch: Watch, eu: Session, size: tuple[int, int]) -> None:
    for _ in range(12):
        await add_live(database, queue="parcels", run_at=ahead(-5))
    await add_live(database, queue="mail")
    await add_runner(database, version="4.12.0")
    limits = LimitEdit({"concurrency": "5"})
    await database.write(set_limits, PauseTarget(PauseKind.QUEUE, "parcels"), limits, Actor("ana", "ops-1"))
    async with watch("overview", size, beside=[eu], profile="home") as operator:
        await operator.command("compare eu")
        await operator.sees("home beside eu", "2 of 2 queues differ", "READY", "escape closes")
        await operator.sees("at most 5 running  |  no limit", "4.12.0  |  none")
        assert re.search(r"≠ mail +1 ", operator.text)
        assert re.search(r"≠ parcels +12 +1≠", operator.text)
        assert pale_texts(operator.console) == {}
        await operator.press("escape")
        await operator.command("compare eu home")
        await operator.sees("eu beside home")
        await operator.press("escape")
        await operator.command("compare")
        await operator.sees_notice(":compare eu us")
        await operator.command("compare asia")
        await operator.sees_notice("asia is not a past time")
        assert not isinstance(operator.screen, CompareScreen)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_two_times_of_a_database_are_compared(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail", submitted_at=ahead(-7200), run_at=ahead(-7200))
    for _ in range(20):
        await add_live(database, queue="mail", run_at=ahead(-5))
    async with watch("overview", WIDE) as operator:
        await operator.command("compare 1h ago")
        await operator.sees("beside now", "1 of 1 queues differ")
        assert "versions" not in operator.text  # They are not recorded for past times.
        assert re.search(r"≠ mail +1 +21≠", operator.text)
