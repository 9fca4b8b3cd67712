"""shard_page: one page of a task list over several shards, merged from a page of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from runner.errors import InvalidInput
from runner.filter.sort import Sort, SortField
from runner.queries.task_list.cursor import Cursor, written
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import TaskPage

EARLIEST = datetime.min.replace(tzinfo=UTC)

ShardCursors: TypeAlias = Mapping[str, Cursor | None]
"""The cursor of each shard whose list goes on; None for its beginning. The list of another shard has ended."""


class ShardTask(NamedTuple):
    """A task with its shard."""

    shard: str
    task: TaskRow

    def __str__(self) -> str:
        """The id with the shard, such as eu:17."""
        return f"{self.shard}:{self.task.id}"


@dataclass(frozen=True, slots=True)
class ShardPage:
    """One page of a list over shards.

    Args:
        tasks: the tasks of all shards, in the order of the list.
        next: where the next page begins in each shard; empty on the last page.
        pages: the page of each shard that answered; its later tasks are not on this page.
    """

    tasks: list[ShardTask]
    next: ShardCursors
    pages: Mapping[str, TaskPage]

    @property
    def at(self) -> datetime:
        """The latest time of the databases."""
        return max((page.at for page in self.pages.values()), default=EARLIEST)

    @property
    def indexed(self) -> bool:
        """True if an index serves the filter in each shard."""
        return all(page.indexed for page in self.pages.values())

    @property
    def capped(self) -> bool:
        """True if the search of a shard whose list goes on stopped at the scan limit."""
        return any(page.capped for shard, page in self.pages.items() if shard in self.next)

    @property
    def access(self) -> str:
        """The access path of the first shard without an index, or else of the first one, in words."""
        pages = sorted(self.pages.values(), key=lambda page: page.indexed and not page.capped)
        return pages[0].access if pages else ""


def merged(pages: Mapping[str, TaskPage], after: ShardCursors, sort: Sort, limit: int) -> ShardPage:
    """Merge a page of each shard.

    The tasks of a shard keep their order. The page ends before a task that an unread one of another shard may precede.

    Args:
        pages: a page of each shard that answered, of `limit` tasks, unless its search stopped earlier.
        after: the cursors with which the pages were read; the list of a shard without a page goes on from there.
        limit: maximum number of tasks.
    """
    tasks: list[ShardTask] = []
    taken = dict.fromkeys(pages, 0)
    pick = min if is_forward(sort) else max
    while len(tasks) < limit:
        used_up = [shard for shard, page in pages.items() if taken[shard] == len(page.tasks)]
        heads = [ShardTask(shard, page.tasks[taken[shard]]) for shard, page in pages.items() if shard not in used_up]
        if not heads or any(pages[shard].next is not None for shard in used_up):
            break
        tasks.append(pick(heads, key=lambda head: sort_value(head.task, sort)))
        taken[tasks[-1].shard] += 1
    places = {shard: _place(page, taken[shard], after.get(shard)) for shard, page in pages.items()}
    ended = {shard for shard, page in pages.items() if taken[shard] == len(page.tasks) and page.next is None}
    following = {shard: places.get(shard, cursor) for shard, cursor in after.items() if shard not in ended}
    return ShardPage(tasks, following, pages)


def _place(page: TaskPage, taken: int, after: Cursor | None) -> Cursor | None:
    """The cursor behind the tasks that were taken from a page."""
    if taken == len(page.tasks):
        return page.next
    return page.places[page.tasks[taken - 1].id] if taken else after


def is_forward(sort: Sort) -> bool:
    """True if a list begins with the lowest of `sort_value`."""
    return sort.descending is (sort.by in (SortField.AGE, SortField.PRIORITY))


def sort_value(task: TaskRow, sort: Sort) -> Any:
    """The value by which tasks of several shards are compared: ids of different shards have no order, times have."""
    match sort.by:
        case SortField.ATTEMPTS:
            return task.attempt
        case SortField.CLAIMED_AT:
            return task.claimed_at or EARLIEST
        case SortField.FINISHED_AT:
            return task.finished_at or EARLIEST
        case SortField.RUN_AT:
            return task.run_at or EARLIEST
        case SortField.PRIORITY:
            return (-task.priority, task.run_at or EARLIEST)
        case _:
            return task.submitted_at or EARLIEST


def written_cursors(cursors: ShardCursors, sort: Sort) -> str:
    """The text of the cursors of all shards, such as `eu:17,us:9`; empty behind the colon for a beginning."""
    return ",".join(f"{shard}:{'' if each is None else written(each, sort)}" for shard, each in cursors.items())


def split_cursors(text: str, shards: Sequence[str]) -> dict[str, str]:
    """Split the text of cursors: the text of each shard whose list goes on, empty for its beginning.

    Args:
        shards: the shards of the profile.

    Raises:
        InvalidInput: a part names no shard.
    """
    cursors: dict[str, str] = {}
    for part in text.split(","):
        shard, colon, word = part.partition(":")
        if not colon or shard not in shards or shard in cursors:
            why = f"{part[:60]!r} is no cursor of one of the shards {', '.join(shards)}"
            raise InvalidInput(why=f"{why}; use the one that the previous page printed, such as eu:17,us:9")
        cursors[shard] = word
    return cursors
