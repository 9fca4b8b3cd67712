"""`runner incident`: the report of an incident."""

from typing import Annotated

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_line
from runner.cli.reports import period_of
from runner.errors import InvalidInput
from runner.filter.saved import write_new
from runner.queries.past.incident import as_markdown
from runner.queries.past.incident import incident as read_incident
from runner.text.operator import local_zone


async def incident(
    *,
    begin: Annotated[str, Parameter(name="--from")] = "1h",
    end: Annotated[str, Parameter(name="--to")] = "",
    output: str | None = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Report an incident as Markdown, ready to paste.

    The report has a timeline of starts, breakers, lost runners, first failures and
    changes by operators; the failures by cause with one example; and the backlog
    and the latency of each queue beside the period of the same length before.
    Secrets are masked.

    Args:
        begin: Start of the period: 1h, 3:00, 2026-11-20.
        end: End of the period; now if omitted.
        output: A new file; standard output if omitted.
        connection: The database.
    """
    since, until = period_of(begin, end)
    if until is not None and until <= since:
        raise InvalidInput(why="--to must be later than --from")
    settings = connection.settings()
    async with open_database(settings) as database:
        text = as_markdown(await database.read(read_incident, since, until), settings.called, local_zone())
    if output is None:
        print(text, end="")
    else:
        print_line(f"Wrote {write_new(output, text)}")
    return Exit.OK
