"""`runner incident`: the report of an incident."""

from typing import Annotated

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.reports import period_of, write_report
from runner.errors import InvalidInput
from runner.queries.past.incident import as_markdown, as_page
from runner.queries.past.incident import incident as read_incident
from runner.text.operator import local_zone


async def incident(
    *,
    begin: Annotated[str, Parameter(name="--from")] = "1h",
    end: Annotated[str, Parameter(name="--to")] = "",
    output: str | None = None,
    html: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
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
        html: A new file for the report as a page; - for standard output.
        connection: The database.
    """
    since, until = period_of(begin, end)
    if until is not None and until <= since:
        raise InvalidInput(why="--to must be later than --from")
    settings, zone = connection.settings(), local_zone()
    async with open_database(settings) as database:
        report = await database.read(read_incident, since, until)
    if html is not None:
        write_report(html, as_page(report, settings.called, zone))
    else:
        write_report(output or "-", as_markdown(report, settings.called, zone))
    return Exit.OK
