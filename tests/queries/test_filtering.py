import re

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidFilter
from runner.filter.fields import FIELDS, Field
from runner.filter.parse import Filter
from runner.filter.sort import NEWEST
from runner.model.task import State
from runner.operations.edit import edit_all
from runner.operations.edit_values import Changes
from runner.operations.results import Actor, Target, with_change_group
from runner.queries.failures import failures
from runner.queries.task_list.compile import indexed
from runner.queries.task_list.search import find, page
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead, filtered

pytestmark = pytest.mark.both_databases


async def ids(database: Database, text: str) -> list[int]:
    listing = await database.read(page, filtered(text))
    return [task.id for task in listing.tasks]


USER_7 = '{"user_id": 7, "urgent": true}'


@pytest.fixture
async def zoo(database: Database) -> Database:
    """One task in every displayed state, with ids 1 to 9."""
    alive, lost = await add_runner(database), await add_runner(database, lease=-5)
    await add_live(database, queue="mail", run_at=ahead(-60), key="order-1", priority=5)  # 1 ready
    await add_live(database, run_at=ahead(3600), submitted_by="ana", payload=USER_7)  # 2 scheduled
    there = '{"to": {"city": "Bonn"}, "user_id": "8"}'
    await add_live(
        database, run_at=ahead(600), attempt=2, max_attempts=4, error="OSError: Timeout 5", payload=there
    )  # 3 retrying
    await add_live(database, state=State.BLOCKED.value, blocked_by=1, tags='["slow", "a\\"b"]')  # 4 blocked
    await add_live(database, state=State.RUNNING.value, runner_id=alive, attempt=1, host="web-1")  # 5 running
    await add_live(database, state=State.RUNNING.value, runner_id=lost, attempt=1, host="web-2")  # 6 lost
    await add_past(database, 7, State.SUCCEEDED, handler="smtp.send", key="order-7")
    await add_past(database, 8, State.DEAD, handler="smtp.bounce", error="50% of a_b/c lost", attempt=4)
    await add_past(database, 9, State.CANCELLED, finished_at=ahead(-7200), submitted_at=ahead(-7300))
    return database


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
async def test_every_field_selects_tasks(zoo: Database, field: Field) -> None:
    assert set(await ids(zoo, field.examples)) <= set(range(1, 10))


EXPECTED: dict[str, list[int]] = {
    "": [9, 8, 7, 6, 5, 4, 3, 2, 1],
    "state:ready": [1],
    "state:scheduled": [2],
    "state:retrying": [3],
    "state:waiting": [3, 2, 1],
    "state:blocked": [4],
    "state:running": [6, 5],
    "state:lost": [6],
    "state:succeeded": [7],
    "state:dead,retrying": [8, 3],
    "-state:dead,retrying": [9, 7, 6, 5, 4, 2, 1],
    "-state:waiting -state:succeeded": [9, 8, 6, 5, 4],
    "-state:succeeded": [9, 8, 6, 5, 4, 3, 2, 1],
    "state:dead,ready -state:succeeded": [8, 1],
    "-state:succeeded state:cancelled": [9],
    "-state:succeeded key:order-1,order-7": [1],
    "-state:succeeded -state:succeeded id>=6": [9, 8, 6],
    "id:2..4": [4, 3, 2],
    "id:9,1,77": [9, 1],
    "id>=8": [9, 8],
    "-id:2..8": [9, 1],
    "queue:mail": [1],
    "-queue:default,other": [1],
    "handler:smtp.*": [8, 7],
    "handler:*.send": [7],
    "handler:s*n*e": [8],
    "handler:Smtp.*": [],
    "handler~SMTP": [8, 7],
    "key:order-1": [1],
    "key:order-7,order-1": [7, 1],
    "key:*": [7, 1],
    "-key:*": [9, 8, 6, 5, 4, 3, 2],
    "error~timeout": [3],
    "error:OSError*": [3],
    "-error~timeout": [9, 8, 7, 6, 5, 4, 2, 1],
    "by:ana": [2],
    "host:web-2": [6],
    "runner:1": [5],
    "payload.user_id:7": [2],
    "payload.user_id:7,8": [3, 2],
    "payload.user_id!=7": [9, 8, 7, 6, 5, 4, 3, 1],
    "payload.to.city:Bonn": [3],
    "payload.to.city:B*": [3],
    "payload.to.city~ONN": [3],
    "payload.urgent:true": [2],
    "payload.user_id:* payload.urgent:*": [2],
    "payload.User_Id:*": [],
    "tag:slow": [4],
    "tag:SLOW": [],
    "tag:slo": [],
    'tag:"a\\"b"': [4],
    "-tag:slow,other": [9, 8, 7, 6, 5, 3, 2, 1],
    "attempts>1": [8, 3],
    "attempts:2..3": [3],
    "max_attempts:4": [3],
    "-max_attempts:4": [9, 8, 7, 6, 5, 4, 2, 1],
    "priority>=5": [1],
    "due<5m": [1],
    "due<-30s": [1],
    "due>30m": [2],
    "-due>30m": [9, 8, 7, 6, 5, 4, 3, 1],
    "age>2h": [9],
    "age<1h": [8, 7, 6, 5, 4, 3, 2, 1],
    "since:1h": [8, 7, 6, 5, 4, 3, 2, 1],
    "until:1h": [9],
    "order-7": [7],
    "BOUNCE": [8],
    "-smtp": [9, 6, 5, 4, 3, 2, 1],
    "state:dead error~lost -handler:other": [8],
    "state:dead state:ready": [],
    "state:ready queue:mail priority:5 key~order": [1],
    "error~50%": [8],
    "error~5%f": [],
    "error~a_b": [8],
    "error~a.b": [],
    "error~b/c": [8],
}
"""The tasks of the zoo that match each filter."""


@pytest.mark.slow
async def test_filters_match_the_expected_tasks(zoo: Database) -> None:
    assert {text: await ids(zoo, text) for text in EXPECTED} == EXPECTED


async def test_the_signs_of_patterns_are_ordinary_beside_a_star(database: Database) -> None:
    odd = ["100%", "a_b", "a/b", "a[b]c", "a?b", "x", "a\\b", "axb"]
    for number, key in enumerate(odd, 1):
        await add_past(database, number, key=key)
    assert await ids(database, "key:100%*") == [1]
    assert await ids(database, "key:a_*") == [2]
    assert await ids(database, "key:a/*") == [3]
    assert await ids(database, "key:a[b]*") == [4]
    assert await ids(database, "key:a?*") == [5]
    assert await ids(database, "key:*\\b") == [7]
    assert await ids(database, "key:*b") == [8, 7, 5, 3, 2]


async def test_a_value_is_never_part_of_the_statement(database: Database) -> None:
    evil = "x'; delete from task_history; --"
    await add_past(database, 1, key=evil)
    await add_past(database, 2, key="other")
    for text in (f'key:"{evil}"', f'key:"{evil}",b', f'key:"{evil}"*', f'error~"{evil}"', f'tag:"{evil}"'):
        await ids(database, text)
    assert await ids(database, f'key:"{evil}"') == [1]
    assert await ids(database, "") == [2, 1]


async def test_tags_that_are_no_array_of_texts_break_nothing(database: Database) -> None:
    for number, tags in enumerate(['{"slow": 1}', "7", '"slow"', '["slow", 3, null]', '["fast"]', None, "[]"], 1):
        await add_past(database, number, tags=tags)
    assert 4 in await ids(database, "tag:slow")
    assert set(await ids(database, "-tag:fast")) == {1, 2, 3, 4, 6, 7}


async def test_a_tag_is_found_in_any_json_notation(database: Database) -> None:
    await add_past(database, 1, tags='["\\u00fcber", "x"]')
    await add_past(database, 2, tags='["über"]')
    await add_past(database, 3, tags='["say \\"über\\" loud"]')
    assert await ids(database, "tag:über") == [2, 1]


async def test_a_list_of_a_thousand_values_is_one_parameter(database: Database) -> None:
    await add_past(database, 5, key="k5")
    many = ",".join(f"k{number}" for number in range(1_000))
    numbers = ",".join(str(number) for number in range(1, 1_001))
    assert await ids(database, " ".join([f"key:{many}"] * 40 + [f"id:{numbers}"])) == [5]


async def test_a_filter_on_one_side_reads_only_that_side(zoo: Database) -> None:
    assert await tables_read(zoo, "state:dead error~x") == {"task_history"}
    assert await tables_read(zoo, "state:retrying error~x") == {"task"}
    assert await tables_read(zoo, "due<1h") == {"task"}
    assert await tables_read(zoo, "state:dead state:retrying") == set()
    assert await tables_read(zoo, "-state:dead") == {"task", "task_history"}


async def tables_read(database: Database, text: str) -> set[str]:
    """The task tables that a search reads."""
    wait_for_event: list[str] = []

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        wait_for_event.append(statement)

    async with database.reading() as tx:
        sa.event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
        await find(tx, filtered(text), 5)
        sa.event.remove(database.engine.sync_engine, "before_cursor_execute", hear)
    return {name for statement in wait_for_event for name in re.findall(r"FROM (task|task_history)\b", statement)}


async def test_failures_know_only_what_an_attempt_has(database: Database) -> None:
    await add_attempt(database, 1)
    with pytest.raises(InvalidFilter, match="priority"):
        await database.read(failures, filtered("priority:5"))


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("", True),
        ("id:5", True),
        ("key:a,b error~x", True),
        ("state:dead", True),
        ("state:lost,running queue:mail", True),
        ("-id:5", False),
        ("key:a*", False),
        ("state:ready", False),
        ("state:dead,ready", False),
        ("-state:dead", False),
        ("-state:succeeded", True),
        ("-state:succeeded error~x", True),
        ("error~x", False),
        ("queue:mail", False),
    ],
)
def test_a_page_states_whether_an_index_serves(text: str, served: bool) -> None:
    assert indexed(filtered(text)) is served


async def test_the_oldest_can_come_first(zoo: Database) -> None:
    listing = await zoo.read(page, Filter(), sort=NEWEST.reverse, limit=4)
    assert [task.id for task in listing.tasks] == [1, 2, 3, 4]
    rest = await zoo.read(page, Filter(), listing.next, sort=NEWEST.reverse)
    assert [task.id for task in rest.tasks] == [5, 6, 7, 8, 9]
    assert rest.next is None


async def test_the_members_of_a_batch_and_of_a_change_group_are_found_by_index(database: Database) -> None:
    members = [await add_live(database) for _ in range(3)]
    callback = await add_live(database, state=State.BLOCKED.value, blocked_by=3)
    async with database.writing() as tx:
        rows = [{"task_id": callback, "parent_id": id, "on_failure": "run"} for id in members[:2]]
        await tx.execute(sa.insert(tx.tables.dependency), rows)
    by = with_change_group(Actor("ana", "desk-1"))
    await database.write(edit_all, [Target(members[1]), Target(members[2])], Changes(priority=7), by)
    assert await ids(database, f"batch:{callback}") == [members[1], members[0]]
    assert await ids(database, f"change:{by.change_group}") == [members[2], members[1]]
    assert await ids(database, f"change:{by.change_group} batch:{callback}") == [members[1]]
    assert await ids(database, f"change:{by.change_group} -batch:{callback}") == [members[2]]
    assert (indexed(filtered("batch:4")), indexed(filtered("change:a")), indexed(filtered("payload.n:1"))) == (
        True,
        True,
        False,
    )


async def test_a_payload_that_only_one_database_can_store_breaks_no_search(database: Database) -> None:
    await add_live(database, payload='{"user_id": "a\\u0000b"}')
    good = await add_live(database, payload='{"user_id": "ab"}')
    assert await ids(database, "payload.user_id:ab") == [good]
    assert await ids(database, "payload.user_id.more:*") == []
