"""Report: all that there is to say of a run of the demo, as data."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from runner.demo.findings import Findings, Total


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the demo led to.

    Args:
        database: its URL, without a password.
        place: the database as people know it: a file by its whole path.
        first: the lowest id of the round.
        seconds: that it took.
        interrupted: it was stopped before its end.
        notes: what is special about it.
        findings: what became of its tasks.
        advice: commands to try next, each with what it does.
    """

    database: str
    place: str
    first: int
    seconds: float
    interrupted: bool
    notes: Sequence[str]
    findings: Findings
    advice: Sequence[tuple[str, str]]

    @property
    def whole(self) -> Total:
        """The sum over all handlers."""
        return summed(self.findings.totals)


def summed(totals: Iterable[Total]) -> Total:
    """Add up what became of the tasks of several handlers."""
    columns = [asdict(total) for total in totals]
    names = [name for name in Total.__dataclass_fields__ if name != "handler"]
    return Total("all", **{name: sum(column[name] for column in columns) for name in names})


def to_json(report: Report) -> str:
    """Write a report as one JSON object.

    Its names are those of Report and Findings; `whole` is the sum of `totals`, and `advice` the commands alone.
    """
    data = asdict(report)
    findings = data.pop("findings")
    commands = [command for command, _ in report.advice]
    return json.dumps(data | {"whole": asdict(report.whole)} | findings | {"advice": commands}, indent=2)
