"""`runner capacity`: the capacity of the runners, and when each queue is drained, also by simulation."""

from datetime import timedelta
from math import inf
from typing import Literal

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import plain, print_json, print_line, print_table
from runner.cli.simulation import PRESENT, SimulationOptions
from runner.cli.simulation import simulate as run_simulation
from runner.errors import InvalidInput
from runner.queries.capacity import CAPACITY_COLUMNS, TENANT_COLUMNS, Capacity, drained_in
from runner.queries.capacity import capacity as read_capacity
from runner.text.columns import document
from runner.text.formatting import age
from runner.text.operator import local_zone, now
from runner.text.times import parse_moment

MINUTE, LONGEST = timedelta(minutes=1), timedelta(days=7)
"""The bounds of the period of a capacity."""


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
    print_json(_capacity_document(result)) if json else _print_capacity(result)
    return Exit.OK


def _capacity_document(result: Capacity) -> dict[str, object]:
    rows = [document(CAPACITY_COLUMNS, row) for row in result.rows]
    tenants = [
        {**plain(row), "limit": limit.words, **document(TENANT_COLUMNS, row)}
        for limit in result.tenants
        for row in limit.rows
    ]
    return {"at": result.at, "period_minutes": result.minutes, "by": result.by, "rows": rows, "tenants": tenants}


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
