"""The widths of columns: names stay different, and no number is cut."""

import re
from collections.abc import Sequence

import pytest
from rich.cells import cell_len

from runner.db.database import Database
from runner.filter.sort import NEWEST
from tasktui.data.task_list import Listing
from tasktui.render.render import ListColumn, cut_middle, shared_beginnings, widths
from tasktui.render.rows import plain
from tasktui.screens.selection import chips
from tests.store.rows import add_live, add_runner, ahead
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch

COLUMNS = (
    ListColumn("NAME", 9, grow=1, name=True),
    ListColumn("READY", 5, right=True),
    ListColumn("REASON", 10, grow=2),
    ListColumn("AGE", 7, right=True, drop=1),
)


@pytest.mark.parametrize(
    ("room", "needs", "expected"),
    [
        (80, (), [24, 5, 41, 7]),
        (80, (30, 5, 99, 3), [30, 5, 35, 7]),  # The name gets the first spare cells.
        (80, (0, 12, 99, 3), [4, 12, 54, 7]),  # An empty column of names has room for its title.
        (80, (9, 12, 99, 3), [9, 12, 49, 7]),  # The number gets what it needs.
        (40, (30, 5, 99, 3), [23, 5, 10, 0]),  # Another column makes room.
    ],
)
def test_names_and_numbers_get_their_cells_first(room: int, needs: tuple[int, ...], expected: list[int]) -> None:
    assert widths(COLUMNS, room, needs) == expected


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("payments.eu", 11, "payments.eu"),
        ("warehouse-north-picking", 12, "wareho…cking"),
        ("warehouse-north-packing", 12, "wareho…cking"),
        ("中文队列名称很长", 7, "中文…长"),
        ("ab", 1, "…"),
        ("ab", 0, "ab"),
    ],
)
def test_a_name_is_cut_in_the_middle(text: str, width: int, expected: str) -> None:
    cut = "".join(part for part, _ in cut_middle([(text[:3], "muted"), (text[3:], "text")], width))
    assert cut == expected
    assert width == 0 or cell_len(cut) <= width


@pytest.mark.slow
@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_two_long_names_differ_on_the_screen(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    """As far as they differ at the beginning or the end."""
    names = ("warehouse-picking-orders-north", "warehouse-picking-orders-south")
    for name in names:
        await add_live(database, f"stock.{name}.count", queue=name, run_at=ahead(300))
    await add_runner(database, handlers='["h"]', host="ip-10-12-14-16.eu-central-1.compute.internal", pid=1234567)
    async with watch("overview", size) as operator:
        await operator.sees("orders-north", "orders-south")
        await operator.press("2")
        await operator.sees("h.count")
        assert len(set(re.findall(r"stock\S+h\.count", operator.text))) == 2
        await operator.press("5")
        await operator.sees(":1234567")


AUDIT = (
    ListColumn("ID", 5, right=True),
    ListColumn("CHANGE", 18, grow=2),
    ListColumn("REASON", 12, grow=2, drop=1),
)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [((5, 40, 15), [5, 44, 19]), ((5, 90, 15), [5, 48, 15]), ((5, 90, 0), [5, 51, 12]), ((5, 10, 90), [5, 18, 45])],
)
def test_a_text_gets_the_room_that_another_one_does_not_need(needs: tuple[int, ...], expected: list[int]) -> None:
    assert widths(AUDIT, 70, needs) == expected


def test_a_number_without_room_is_hidden_and_never_cut() -> None:
    columns = (
        ListColumn("NAME", 9, grow=1, name=True),
        ListColumn("READY", 7, right=True),
        ListColumn("END", 9, right=True),
    )
    assert widths(columns, 27, (9, 7, 9)) == [9, 7, 9]
    assert widths(columns, 24, (9, 7, 9)) == [16, 7, 0]
    assert widths(columns, 15, (9, 7, 9)) == [15, 0, 0]


def test_the_filter_never_touches_the_number_of_its_tasks() -> None:
    listing = Listing(ids=(1,), access="indexed")
    for width in range(30, 120):
        text = plain([chips(listing, "state:dead handler:payments.charge queue:payments", NEWEST, width)])
        assert re.search(r" (indexed   )?1 task", text), text


def cuts(names: Sequence[str], width: int) -> list[str]:
    shared = shared_beginnings(names, width)
    return ["".join(part for part, _ in cut_middle([(name, "")], width, shared[name])) for name in names]


@pytest.mark.parametrize("width", [8, 12, 16, 40])
def test_names_that_differ_in_the_middle_stay_different(width: int) -> None:
    places = ("eu-west-1", "eu-west-2", "us-east-1", "us-east-10")
    shown = cuts([*(f"payments.of.{place}.settle_accounts" for place in places), "mail"], width)
    assert len({*shown}) == 5
    assert max(map(cell_len, shown)) <= width
    assert shown[-1] == "mail"


def test_a_name_is_cut_where_it_differs_only_if_that_is_in_the_middle() -> None:
    names = ["images-of-the-european-shops", "images-of-the-american-shops"]
    assert cuts(names, 16) == ["imag…europ…shops", "imag…ameri…shops"]
    assert cuts(["payments.charge.eu-west-1", "orders"], 16) == ["payments…-west-1", "orders"]


@ON_ONE_DATABASE
async def test_long_names_of_queues_differ_on_a_narrow_overview(database: Database, watch: Watch) -> None:
    for place in ("european", "american"):
        await add_live(database, queue=f"images-of-the-{place}-shops")
    async with watch(size=(72, 24)) as operator:
        await operator.sees("…europe…", "…americ…")
