"""`runner incident`: the report of an incident."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, refuse_empty
from runner.cli.output import note_model, print_json
from runner.cli.reports import note_retention, write_report
from runner.cli.shard_totals import ShardTotals
from runner.errors import InvalidInput
from runner.queries.audit import ChangeGroup
from runner.queries.counting import Count
from runner.queries.failures import Failures
from runner.queries.past.incident import Happening, Incident, as_markdown, as_page, timeline
from runner.queries.past.incident import incident as read_incident
from runner.queries.summary import SummaryDocument, as_document, total_of
from runner.text import formatting
from runner.text.columns import figure, thousands
from runner.text.operator import local_zone, now
from runner.text.times import parse_period


class IncidentDocument(NamedTuple):
    """The report of an incident.

    Args:
        since: the first minute.
        until: the end, exclusive.
        before: the queues in the period of the same length before.
        backlog: the ready and retrying tasks at the end, by queue.
        cancelled: the tasks that were cancelled in the period and still are, also those that had not started.
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
    backlog: Mapping[str, Count]
    cancelled: Count
    failures: Sequence[Failures]
    changes: Sequence[ChangeGroup] | None


DOCUMENTS = (IncidentDocument,)


class IncidentTotal(NamedTuple):
    """The figures of incidents.

    Args:
        submitted: the tasks submitted in the period.
        retried: failed attempts that were followed by another one.
        died: tasks that became dead.
        causes: the failure groups.
        changes: the number of operations; None if this login may not read the audit log.
    """

    submitted: Count
    succeeded: int
    retried: int
    died: int
    causes: Sequence[str]
    changes: int | None


def _total(incidents: Sequence[Incident]) -> IncidentTotal:
    line = total_of([each.queues for each in incidents])
    causes = sorted({group.fingerprint for each in incidents for group in each.failures})
    changes = [None if each.changes is None else len(each.changes) for each in incidents]
    known = None if None in changes else sum(filter(None, changes))
    return IncidentTotal(line.submitted, line.flow.succeeded, line.flow.retried, line.flow.died, causes, known)


TOTALS = ShardTotals(
    Incident,
    _total,
    (
        figure("IN", lambda total: total.submitted),
        figure("DONE", lambda total: total.succeeded, thousands),
        figure("RETRY", lambda total: total.retried, thousands),
        figure("DEAD", lambda total: total.died, thousands),
        figure("CAUSES", lambda total: len(total.causes), thousands),
        figure("CHANGES", lambda total: total.changes, formatting.text),
    ),
)


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
    of each queue at the end, with its latency beside the period of the same length
    before. Secrets are masked.

    Args:
        begin: Start of the period: 1h, 3:00, 2026-11-20.
        end: End of the period; now if omitted.
        output: A new file; standard output if omitted.
        json: Print one JSON document.
        html: A new file for the report as a page; - for standard output.
        connection: The database.
    """
    refuse_empty({"output": output, "html": html})
    since, until = parse_period(begin, end, now(), local_zone())
    if (json, output is not None, html is not None).count(True) > 1:
        raise InvalidInput(why="choose --json, --output or --html")
    settings, zone = connection.settings(), local_zone()
    note_retention(since, settings)
    async with open_database(settings) as database:
        report = await database.read(read_incident, since, until if end else None)
    note_model(report)
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
        report.backlog,
        report.cancelled,
        report.failures,
        report.changes,
    )
