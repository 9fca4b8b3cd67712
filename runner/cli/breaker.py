"""`runner limit handler NAME --breaker`: the breakers of handlers, which an operator opens and closes."""

from datetime import timedelta
from functools import partial
from typing import Literal, NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.options import SingleChangeOptions
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.operations.breaker import BreakerResult, breaker_of, close_by_hand, open_by_hand
from runner.operations.results import local_actor
from runner.operations.sql_export import breaker_script
from runner.policy.breaker import OpenBreaker
from runner.queries.breakers import BreakerRow
from runner.text import formatting
from runner.text.columns import Column
from runner.text.sanitize import one_line

BREAKER_COLUMNS: tuple[Column[BreakerRow], ...] = (
    Column("HANDLER", lambda row: row.handler),
    Column("BREAKER", lambda row: row.state, lambda state: _open_for(state) if state else "closed", fixed=True),
    Column("NEXT PROBE", lambda row: row.state, lambda state: _next_probe(state) if state else ""),
    Column("OPENS AFTER", lambda row: row.definition or "not readable"),
    Column("WHY", lambda row: formatting.text(row.state.why) if row.state else ""),
)


class BreakerChange(NamedTuple):
    """A breaker that an operator opened or closed.

    Args:
        changed: False if it was already open or closed.
    """

    verb: str
    changed: bool
    dry_run: bool
    breaker: BreakerRow


async def change_breaker(
    database: Database,
    action: Literal["open", "close"],
    handler: str,
    wait: timedelta | None,
    options: SingleChangeOptions,
) -> int:
    """Open or close the breaker of a handler, and print the result. Returns the exit code."""
    by = local_actor(options.reason)
    if action == "open":
        change = partial(open_by_hand, handler=handler, by=by, wait=wait)
    else:
        change = partial(close_by_hand, handler=handler, by=by)
    if options.sql:
        await database.read(breaker_of, handler)
        print(await database.write(breaker_script, handler, change), end="")
        return Exit.OK
    if options.dry_run:
        row = await database.read(breaker_of, handler)
        result = BreakerResult((row.state is None) == (action == "open"), row)
    else:
        result = await database.write(change)
    if options.json:
        print_json(BreakerChange(f"breaker {action}", result.changed, options.dry_run, result.row))
    else:
        print_line(_sentence(action, result, dry_run=options.dry_run))
    return Exit.OK if result.changed else Exit.CONFLICT


def _sentence(action: str, result: BreakerResult, *, dry_run: bool) -> str:
    subject = f"breaker of {one_line(result.row.handler)}"
    if not result.changed:
        return f"{subject} {'is' if dry_run else 'was'} already {'open' if action == 'open' else 'closed'}"
    if dry_run:
        return f"{subject} would be {'opened' if action == 'open' else 'closed'}"
    if result.row.state is None:
        return f"{subject} closed: its tasks start again"
    return f"{subject} opened: the next probe starts in {formatting.age(round(result.row.state.next_in))}"


def _open_for(state: OpenBreaker) -> str:
    return f"open for {state.since}{f' by {state.by}' if state.by else ''}"


def _next_probe(state: OpenBreaker) -> str:
    return f"in {formatting.age(state.next_in)}" if state.next_in > 0 else "now"
