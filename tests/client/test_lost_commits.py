"""A commit whose answer is lost: the error of the submit states that the task may exist, and how to find out."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from runner import connect, disconnect, handler
from runner.cli.app import run
from runner.cli.exit_codes import exit_code_of
from runner.db.database import Database
from runner.errors import DatabaseUnavailable, SubmitUncertain
from runner.filter.parse import parse_filter
from runner.handlers.registry import REGISTRY
from runner.queries.task_list.search import page
from runner.text.operator import local_zone, now
from runner.urls import parse_url
from tests.engine.lost_replies import LostCommits, losing_commits
from tests.store.table import count

pytestmark = pytest.mark.both_databases

INSERT = "INSERT INTO task"


@pytest.fixture
def work() -> Iterator[Any]:
    @handler("mail.send")
    async def send(number: int) -> None: ...

    yield send
    REGISTRY._handlers.pop("mail.send")


@pytest.fixture
async def commits(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LostCommits]:
    async with losing_commits(migrated_url, monkeypatch) as commits:
        connect(url=parse_url(commits.url))
        yield commits
        await asyncio.to_thread(disconnect)


async def matching_ids(database: Database, error: Exception) -> list[int]:
    """The tasks that the search in the message of an error finds."""
    command = re.search(r"Search with: (runner tasks .*?)\. (?:Or|Submit)", str(error))
    assert command is not None, error
    (words,) = shlex.split(command[1])[2:]
    tasks_page = await database.read(page, parse_filter(words, now(), local_zone()), None, 10)
    return [task.id for task in tasks_page.tasks]


def loss(commits: LostCommits, transaction: bool) -> str:
    """What to lose: the answer to the commit, or to the only statement, which commits by itself on PostgreSQL.

    The isolation level READ COMMITTED contains the word too.
    """
    return "COMMIT\0" if transaction and commits.url.startswith("postgresql") else INSERT


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "key": {"key": 'order 7, "fast"'},
    "unique key": {"unique_key": "it's 7"},
}
ADVICE = {
    "unique key": "Or submit again: the unique key prevents a second task while the first one holds it",
    "others": "Submit again only if it is not there; with a unique key you could submit again without a search",
}


@pytest.mark.representatives(2)
@pytest.mark.parametrize("coalesce", [False, True], ids=["alone", "coalesced"])
@pytest.mark.parametrize("kind", OPTIONS)
async def test_the_error_says_that_the_task_may_exist_and_its_search_finds_it(
    commits: LostCommits, database: Database, work: Any, kind: str, coalesce: bool
) -> None:
    connect(url=parse_url(commits.url), coalesce=coalesce)
    first = {"unique_key": "first"} if kind == "unique key" else {}
    await work.options(**first).submit_async(number=0)  # opens the connection, which commits too
    commits.lose(loss(commits, transaction=kind == "unique key"))
    with pytest.raises(
        SubmitUncertain, match=r"broke before it confirmed the commit: .*\. The task may exist\."
    ) as lost:
        await work.options(**OPTIONS[kind]).submit_async(number=1)
    assert commits.lost == 1
    assert await count(database, database.tables.task) == 2
    assert (await matching_ids(database, lost.value))[0] == 2
    assert str(lost.value).endswith(f"{ADVICE.get(kind, ADVICE['others'])}.")
    again = await work.options(**OPTIONS[kind]).submit_async(number=1)
    assert again.duplicate is (kind == "unique key")


async def test_tasks_of_one_submit_exist_all_or_none(commits: LostCommits, database: Database, work: Any) -> None:
    await work.submit_async(number=0)
    commits.lose(loss(commits, transaction=False))
    with pytest.raises(SubmitUncertain, match="All 3 tasks, or none of them, may exist") as lost:
        await work.options().submit_many_async({"number": number} for number in range(1, 4))
    assert await matching_ids(database, lost.value) == [4, 3, 2, 1]


async def test_a_connection_that_breaks_before_the_commit_leaves_no_doubt(
    commits: LostCommits, database: Database, work: Any
) -> None:
    if commits.url.startswith("sqlite"):
        pytest.skip("a file has no connection that breaks")
    await work.submit_async(number=0)
    commits.lose(INSERT)
    with pytest.raises(DatabaseUnavailable) as lost:
        await work.options(unique_key="7").submit_async(number=1)
    assert type(lost.value) is DatabaseUnavailable
    assert commits.lost == 1
    assert await count(database, database.tables.task) == 1


async def test_a_command_reports_it_too(
    commits: LostCommits, database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_URL", commits.url)
    commits.lose(loss(commits, transaction=False))
    arguments = ["submit", "mail.send", '{"number": 1}', "--key", "order-7"]
    assert await asyncio.to_thread(exit_code_of, lambda: run(arguments)) == 4
    assert "Search with: runner tasks 'handler:mail.send key:order-7'" in capsys.readouterr().err
    assert await count(database, database.tables.task) == 1
