"""`runner capacity`: the capacity of the runners, and when each queue is drained, also by simulation."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Annotated, Literal, NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_json, print_line, print_table
from runner.cli.simulation import PRESENT, SimulationDocument, SimulationOptions
from runner.cli.simulation import simulate as run_simulation
from runner.errors import InvalidInput
from runner.policy.capacity import CapacityRow, KeyPart
from runner.queries.capacity import CAPACITY_COLUMNS, TENANT_COLUMNS, Capacity, TenantRow, drained_in
from runner.queries.capacity import capacity as read_capacity
from runner.text.document import Flat
from runner.text.formatting import age
from runner.text.operator import local_zone, now
from runner.text.times import parse_moment

MINUTE, LONGEST = timedelta(minutes=1), timedelta(days=7)
"""The bounds of the period of a capacity."""


class CapacityFigures(NamedTuple):
    """The capacity for a queue or a handler.

    Args:
        name: the queue or the handler.
        submitted_per_minute: submitted tasks per minute.
        attempts_per_minute: attempts per minute that these tasks and their retries need.
        can_per_minute: attempts per minute that the runners can do; None if unknown.
        tasks_per_day: tasks per day that the runners can do; None if unknown.
        can_at_least: True if the runners can do more than these numbers.
        used: the attempts that arrive, as a share of the capacity, 1 for all of it; None if unknown or without end.
        slots: the slots of the live runners that serve it.
        mean_duration: the mean duration of an attempt in seconds; None if unknown.
        ready: due tasks.
        ready_capped: True if there may be more due tasks.
        oldest: seconds since the first of them became due.
        work_minutes: minutes that the runners need for the due tasks alone; None if unknown or without end.
        drained_in_minutes: minutes until the backlog is done while tasks arrive as now; None if unknown or never.
        decided_by: the bound that decides.
        drains: False if the backlog is never done; None if unknown.
    """

    name: str
    submitted_per_minute: float
    attempts_per_minute: float
    can_per_minute: float | None
    tasks_per_day: float | None
    can_at_least: bool
    used: float | None
    slots: int
    mean_duration: float | None
    ready: int
    ready_capped: bool
    oldest: float
    work_minutes: float | None
    drained_in_minutes: float | None
    decided_by: str
    drains: bool | None


class TenantFigures(NamedTuple):
    """A tenant that waits at its limit.

    Args:
        limit: the queue or the handler.
        drained_in_minutes: minutes until its backlog is done if no more of its tasks arrive; None if unknown.
    """

    tenant: Annotated[TenantRow, Flat()]
    limit: str
    drained_in_minutes: float | None


class CapacityDocument(NamedTuple):
    """The capacity of the live runners.

    Args:
        period_minutes: the period of the rates in minutes.
    """

    at: datetime
    period_minutes: float
    by: KeyPart
    rows: Sequence[CapacityFigures]
    tenants: Sequence[TenantFigures]


DOCUMENTS = (CapacityDocument, SimulationDocument)


async def capacity(
    *,
    by: Literal["handler", "queue"] = "queue",
    since: str = "10m",
    simulate: bool = False,
    simulation: SimulationOptions = PRESENT,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Report the capacity of the live runners, and when each queue is drained.

    IN/MIN are the submitted tasks, CAN/MIN the attempts that the runners can do:
    their slots, divided by the mean duration, within limits, rates, pauses and
    breakers. PER DAY are the tasks that this finishes in a day, with as many
    attempts per task as in the period. USED is the share of CAN/MIN that arrivals
    need, retries included. WORK is the time for the due tasks alone, DRAINED IN the
    time while tasks arrive as they do now, and DECIDED BY the bound.

    --simulate replays the last hours with another configuration, beside the present
    one: the tasks that are due now, and arrivals as in these hours, with their
    durations and failures. Failed attempts come back by the retry plan of their
    handler. The claim orders, limits and rates are those of the runners; nothing is
    written. The first column of each pair is the present configuration.

    runner capacity --simulate --concurrency 200 --claim-order aged
    runner capacity --simulate --limit queue:mail=5 --rate handler:sms.send=100/min

    Args:
        by: One line per queue, or per handler.
        since: Period of the rates: 10m, 1h. Durations are those of an hour at least.
        simulate: Replay the last hours with another configuration.
        simulation: The other configuration.
        json: Print one JSON document.
        connection: The database.
    """
    if simulate:
        return await run_simulation(simulation, connection.settings(), json=json)
    if simulation != PRESENT:
        raise InvalidInput(why="a configuration applies to --simulate: runner capacity --simulate --concurrency 200")
    period = now() - parse_moment(since, now(), local_zone(), past=True)
    if not MINUTE <= period <= LONGEST:
        raise InvalidInput(why=f"--since must be between 1m and 7d, not {since}")
    async with open_database(connection.settings()) as database:
        result = await database.read(read_capacity, by, period)
    print_json(_document(result)) if json else _print_capacity(result)
    return Exit.OK


def _document(result: Capacity) -> CapacityDocument:
    rows = tuple(_figures(row) for row in result.rows)
    tenants = [TenantFigures(row, limit.words, row.drained_in) for limit in result.tenants for row in limit.rows]
    return CapacityDocument(result.at, result.minutes, result.by, rows, tenants)


def _figures(row: CapacityRow) -> CapacityFigures:
    return CapacityFigures(
        row.name,
        row.demand.arrivals,
        row.demand.attempts,
        row.per_minute,
        row.per_day,
        row.bound.at_least,
        row.utilisation,
        row.slots,
        row.demand.seconds,
        row.demand.backlog,
        row.demand.more,
        row.demand.oldest,
        row.behind,
        row.drained_in,
        row.deciding.bound.name,
        None if row.drained_in is None else row.drained_in < inf,
    )


def _print_capacity(result: Capacity) -> None:
    print_line(f"rates of the last {age(60 * int(result.minutes))}, by {result.by}", style="dim")
    if not result.rows:
        print_line("No tasks are due, and none ended in the last hour.")
        return
    print_table(CAPACITY_COLUMNS, result.rows)
    for row in result.rows:
        if row.drained_in == inf:
            print_line(f"{row.name}: {drained_in(row)}", style="bold")
    for limit in result.tenants:
        print_line("")
        print_line(str(limit), style="dim")
        print_table(TENANT_COLUMNS, limit.rows)
