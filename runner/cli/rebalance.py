"""`runner rebalance`: moves waiting tasks to the shards of their routes."""

from contextlib import AsyncExitStack
from math import inf
from typing import NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_json, print_line
from runner.errors import InvalidInput
from runner.operations.rebalance import Rebalance
from runner.operations.results import local_actor
from runner.policy.shard_rule import load_shard_rule
from runner.settings.shards import shard_settings
from runner.text.sanitize import count_noun


class ShardMove(NamedTuple):
    """Tasks that moved from one shard to another."""

    source: str
    target: str
    tasks: int


class LeftTasks(NamedTuple):
    """Tasks that belong to another shard and cannot move.

    Args:
        reason: what keeps them, such as a unique key.
    """

    shard: str
    reason: str
    tasks: int


class Rebalanced(NamedTuple):
    """The moves of one run."""

    dry_run: bool
    moved: list[ShardMove]
    left: list[LeftTasks]


DOCUMENTS = (Rebalanced,)


async def rebalance(
    *,
    limit: int | None = None,
    dry_run: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Move waiting tasks to the shards of their routes, after a change of the shards.

    Waiting tasks that have a route move with their attempts, checkpoints and steps.
    Tasks of a workflow, with dependencies, with an order key that other tasks have,
    or with a unique key that the new shard has, stay: these hold within a shard.

    A task that a runner claims in the meantime stays too. After an interrupt, run
    it again: it first finishes or takes back the moves that were under way.

    Args:
        limit: Stop after this number of tasks.
        dry_run: Only count the tasks.
        reason: The reason; recorded with each move.
        json: Print one JSON document.
        connection: The profile with the shards.
    """
    settings = connection.settings()
    if not settings.shards or settings.shard is not None:
        raise InvalidInput(why=f"the profile {settings.called} has no shards; name the profile that has them")
    if limit is not None and limit < 1:
        raise InvalidInput(why=f"--limit must be at least 1, not {limit}")
    rule = load_shard_rule(settings.shard_rule, settings.shards)
    async with AsyncExitStack() as stack:
        own = shard_settings(settings)
        databases = {name: await stack.enter_async_context(open_database(each)) for name, each in own.items()}
        work = Rebalance(databases, rule, local_actor(reason))
        try:
            if not dry_run:
                await work.resolve()
            await work.run(inf if limit is None else limit, dry_run=dry_run)
        except BaseException:
            print_stderr(f"stopped: {count_noun(work.moved.total(), 'task')} moved; run the same command to go on")
            raise
    moved = [ShardMove(*shards, tasks) for shards, tasks in sorted(work.moved.items()) if tasks]
    left = [LeftTasks(*place, tasks) for place, tasks in sorted(work.left.items()) if tasks]
    print_json(Rebalanced(dry_run, moved, left)) if json else _print(Rebalanced(dry_run, moved, left))
    return Exit.OK


def _print(result: Rebalanced) -> None:
    verb = "Would move" if result.dry_run else "Moved"
    for move in result.moved:
        print_line(f"{verb} {count_noun(move.tasks, 'task')} from {move.source} to {move.target}.")
    if not result.moved:
        print_line("No task has to move.")
    for left in result.left:
        verb = "stays: it has" if left.tasks == 1 else "stay: they have"
        print_line(f"{count_noun(left.tasks, 'task')} of {left.shard} {verb} {left.reason}.")
