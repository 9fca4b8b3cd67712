"""`runner incident`: the report of an incident."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_json
from runner.cli.reports import period_of, write_report
from runner.errors import InvalidInput
from runner.queries.audit import ChangeGroup
from runner.queries.failures import Failures
from runner.queries.past.incident import Happening, Incident, as_markdown, as_page, timeline
from runner.queries.past.incident import incident as read_incident
from runner.queries.summary import SummaryDocument, as_document
from runner.text.operator import local_zone


class IncidentDocument(NamedTuple):
    """The report of an incident.

    Args:
        since: the first minute.
        until: the end, exclusive.
        before: the queues in the period of the same length before.
        failures: the failure groups, the most frequent one first.
        changes: the changes by operators, by change group; None if this login may not read the audit log.
    """

    since: datetime
    until: datetime
    at: datetime
    timeline: Sequence[Happening]
    queues: SummaryDocument
    handlers: SummaryDocument
    before: SummaryDocument
    failures: Sequence[Failures]
    changes: Sequence[ChangeGroup] | None


DOCUMENTS = (IncidentDocument,)


async def incident(
    *,
    begin: Annotated[str, Parameter(name="--from")] = "1h",
    end: Annotated[str, Parameter(name="--to")] = "",
    output: str | None = None,
    json: bool = False,
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
        json: Print one JSON document.
        html: A new file for the report as a page; - for standard output.
        connection: The database.
    """
    since, until = period_of(begin, end)
    if (json, output is not None, html is not None).count(True) > 1:
        raise InvalidInput(why="choose --json, --output or --html")
    if until is not None and until <= since:
        raise InvalidInput(why="--to must be later than --from")
    settings, zone = connection.settings(), local_zone()
    async with open_database(settings) as database:
        report = await database.read(read_incident, since, until)
    if json:
        print_json(_document(report))
    elif html is not None:
        write_report(html, as_page(report, settings.called, zone))
    else:
        write_report(output or "-", as_markdown(report, settings.called, zone))
    return Exit.OK


def _document(report: Incident) -> IncidentDocument:
    return IncidentDocument(
        report.queues.since,
        report.queues.until,
        report.at,
        timeline(report),
        as_document(report.queues),
        as_document(report.handlers),
        as_document(report.before),
        report.failures,
        report.changes,
    )
