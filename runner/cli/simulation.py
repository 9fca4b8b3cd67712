"""`runner capacity --simulate`: the last hours with another configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import open_database
from runner.cli.output import print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.operations.names import name_warning
from runner.operations.pause import PauseKind, PauseTarget
from runner.policy.claim_order import parse_order
from runner.policy.simulation import Configuration, QueueResult, Simulation
from runner.queries.simulation import Present, changed, present, read_changes
from runner.settings import Settings
from runner.text.columns import Column, figure, thousands
from runner.text.formatting import age
from runner.text.sanitize import count_noun


class BesideResult(NamedTuple):
    """The results of a queue.

    Args:
        today: with the present configuration.
        then: with the other one.
    """

    queue: str
    today: QueueResult
    then: QueueResult


class SimulationDocument(NamedTuple):
    """The last hours with another configuration.

    Args:
        minutes: the replayed period.
        claim_order: that of the other configuration.
        batch: the number of tasks that the simulation treats as one.
    """

    at: datetime
    minutes: int
    claim_order: str
    batch: int
    queues: list[BesideResult]


def _drained(result: QueueResult) -> str:
    return "never" if result.drained is None else age(result.drained)


SIMULATION_COLUMNS: tuple[Column[BesideResult], ...] = (
    Column("QUEUE", lambda row: row.queue),
    figure("TASKS", lambda row: row.then.tasks, thousands),
    figure("DRAINED", lambda row: row.today, _drained),
    figure("THEN", lambda row: row.then, _drained),
    figure("LONGEST", lambda row: row.today.longest, age),
    figure("THEN", lambda row: row.then.longest, age),
    figure("LEFT", lambda row: row.today.remaining, thousands),
    figure("THEN", lambda row: row.then.remaining, thousands),
)


MOST_HOURS, MOST_SLOTS = 24, 1_000_000


@Parameter(name="*", group=Group("With --simulate", sort_key=40))
@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The other configuration.

    Args:
        claim_order: The claim order: strict, fresh, aged, aged:10s, weighted:mail=3,sms=1.
        concurrency: The slots of all runners together.
        runners: The number of runners, each like the present ones.
        limit: Maximum number of running tasks: queue:mail=5, handler:sms.send=none.
        rate: Maximum rate of starts: queue:mail=100/min.
        per_tenant: Maximum number of running tasks per tenant, who then take turns.
        hours: The hours to replay, up to 24.
        seed: Of the random durations, failures and priorities.
    """

    claim_order: str = ""
    concurrency: int | None = None
    runners: int | None = None
    limit: tuple[str, ...] = ()
    rate: tuple[str, ...] = ()
    per_tenant: tuple[str, ...] = ()
    hours: float = 2.0
    seed: int = 1


PRESENT = SimulationOptions()
"""No change."""


async def simulate(options: SimulationOptions, settings: Settings, *, json: bool) -> int:
    """Replay the last hours with another configuration, and print it beside the present one. Returns the exit code."""
    order = parse_order(options.claim_order) if options.claim_order else None
    changes = [
        *read_changes("limit", options.limit),
        *read_changes("rate", options.rate),
        *read_changes("per-tenant", options.per_tenant),
    ]
    hours, concurrency, runners = options.hours, options.concurrency, options.runners
    if not 0 < hours <= MOST_HOURS:
        raise InvalidInput(why=f"--hours must be between 0 and {MOST_HOURS}, not {hours:g}")
    if concurrency is not None and runners is not None:
        raise InvalidInput(why="choose --concurrency or --runners")
    for name, number in (("concurrency", concurrency), ("runners", runners)):
        if number is not None and not 1 <= number <= MOST_SLOTS:
            raise InvalidInput(why=f"--{name} must be between 1 and {MOST_SLOTS:,}, not {number}")
    async with open_database(settings) as database:
        today = await database.read(present, hours, settings.retry, settings.max_attempts)
        for target in dict.fromkeys(PauseTarget(PauseKind(kind), name) for (kind, name), _ in changes):
            if warning := await database.read(name_warning, target):
                print_stderr(f"runner: {warning}; its limit changes nothing")
    other = changed(today, order, concurrency, runners, changes)
    before = Simulation(today.workload, today.configuration, options.seed)
    after = Simulation(today.workload, other, options.seed)
    results = before.run(), after.run()
    if json:
        queues = [BesideResult(queue, results[0][queue], results[1][queue]) for queue in sorted(results[1])]
        print_json(SimulationDocument(today.at, today.workload.minutes, str(other.order), after.batch, queues))
    else:
        _print_simulation(today, other, after.batch, results)
    return Exit.OK


Results: TypeAlias = tuple[Mapping[str, QueueResult], Mapping[str, QueueResult]]
"""The results by queue today, and with the other configuration."""


def _print_simulation(today: Present, other: Configuration, batch: int, results: Results) -> None:
    work, now_setup = today.workload, today.configuration
    print_line(f"today: {_setup(now_setup)}; then: {_setup(other)}", style="dim")
    if batch > 1:
        print_line(f"{work.tasks:,} tasks, in batches of {batch} that run one after the other", style="dim")
    retries = [sum(result.retries for result in each.values()) for each in results]
    if any(retries):
        number, then = retries
        print_line(f"attempts fail as often as in these hours: {number:,} retries, then {then:,}", style="dim")
    if not work.tasks:
        print_line("No tasks are due, and none arrived in these hours.")
        return
    queues = sorted(results[1], key=lambda name: (-results[1][name].longest, name))
    print_table(SIMULATION_COLUMNS, [BesideResult(name, results[0][name], results[1][name]) for name in queues])


def _setup(configuration: Configuration) -> str:
    slots = sum(pool.size for pool in configuration.pools)
    return f"{count_noun(slots, 'slot')}, {configuration.order}"
