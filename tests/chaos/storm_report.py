"""StormReport: the table of faults and checks that a storm publishes, as Markdown and JSON."""

import json
import os
import platform
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from runner.model.task import State
from tests.chaos.check import check, duplicates
from tests.chaos.dump import Dump
from tests.chaos.evidence import OK, PROMISES, RUNNER_LOST, Evidence
from tests.chaos.journal import Event
from tests.chaos.recovery import Recovery, idle_attempts, recoveries, restarts
from tests.chaos.relations import first_starts, outcomes

KILLER = "chaos.kill"
"""The handler that kills its runner: the only one whose tasks may die in a storm."""

BYSTANDERS = "other tasks that died"


@dataclass(frozen=True)
class StormReport:
    """The result of one storm.

    Args:
        database: name of the database.
        command: the command that repeats the choices of the storm.
        machine: processors, system and Python.
        faults: number of injected faults by name.
        figures: measured values by name.
        checks: number of cases and of violations by promise.
        violations: at most the first 20, as text.
    """

    database: str
    command: str
    machine: str
    faults: Mapping[str, int]
    figures: Mapping[str, Any]
    checks: Mapping[str, tuple[int, int]]
    violations: Sequence[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        database: str,
        command: str,
        faults: Mapping[str, int],
        history: Sequence[Event],
        dump: Dump,
        recovery: Recovery,
        seconds: float,
    ) -> Self:
        """Check a storm and collect its figures.

        Args:
            database: name of the database.
            command: the command that repeats the choices.
            faults: number of injected faults by name.
            history: the events of all processes.
            dump: the database at rest.
            recovery: the figures that bound the recovery.
            seconds: duration of the storm with its repair.
        """
        violations = check(history, dump, recovery=recovery)
        evidence = Evidence(history, dump)
        broken = Counter(violation.promise for violation in violations)
        checks = {PROMISES[promise]: (cases, broken[promise]) for promise, cases in _cases(evidence).items()}
        figures = _figures(evidence, seconds)
        shown = [str(violation) for violation in violations[:20]]
        return cls(database, command, _machine(), dict(faults), figures, checks, shown)

    def markdown(self) -> str:
        """The report as tables."""
        lines = [f"{self.database}, {self.machine}: `{self.command}`", ""]
        lines += _table(("injected", "number"), self.faults.items())
        lines += _table(("measured", "value"), self.figures.items())
        lines += _table(("checked", "cases", "violations"), ((name, *counts) for name, counts in self.checks.items()))
        return "\n".join([*lines, *(f"- {violation}" for violation in self.violations)]) + "\n"

    def write(self, folder: Path) -> None:
        """Write `storm-DATABASE.md` and `storm-DATABASE.json` into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"storm-{self.database.lower()}"
        (folder / f"{name}.md").write_text(self.markdown())
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


def _cases(evidence: Evidence) -> dict[int, int]:
    """The number of cases that each check compared."""
    dump, starts = evidence.dump, len(evidence.starts)
    lost = sum(attempt.error_type == RUNNER_LOST for attempt in dump.attempts)
    return {
        1: len(evidence.submits),
        2: len(dump.rows),
        3: sum(row.finished_at is not None for row in dump.rows),
        4: starts,
        5: len(dump.attempts),
        6: starts,
        7: len(dump.rows),
        8: lost,
        9: len(evidence.edits),
        10: sum(row.unique_key is not None for row in dump.rows),
        11: sum(len(event.data.get("parents", [])) for event in evidence.submits.values()),
        14: starts,
        15: starts,
        16: len(evidence.terminations),
        18: len(dump.paid),
        19: sum(outcomes(evidence).values()),
    }


def _figures(evidence: Evidence, seconds: float) -> dict[str, Any]:
    dump, history = evidence.dump, evidence.history
    again = restarts(evidence)
    rescued = [attempt for attempt in dump.attempts if attempt.error_type == RUNNER_LOST]
    idle = idle_attempts(evidence)
    causes = Counter(attempt.fault for attempt in idle)
    answered = {event.data["task"]: event.at for event in evidence.submits.values() if event.data["answer"] == OK}
    planned = {event.data["task"] for event in evidence.submits.values() if event.data.get("run_at")}
    starts = first_starts(evidence)
    waits = [max(0.0, at - answered[task]) for task, at in starts.items() if task in answered and task not in planned]
    return {
        "duration, s": round(seconds),
        "tasks ended": len(dump.history),
        "tasks ended per second, mean of the whole storm": round(len(dump.history) / seconds, 1),
        "tasks ended per second, best 10 seconds": _best_rate([row.finished_at for row in dump.history]),
        "submits with an unknown answer": sum(
            event.data["answer"] not in (OK, "duplicate") for event in evidence.submits.values()
        ),
        "bodies that ended again": duplicates(history),
        "submit to first start, s: p50 / p99 / max": spread(waits),
        "fault to rescue, s: p50 / p99 / max": spread(recoveries(history, dump)),
        "fault to next start, s: p50 / p99 / max": spread([restart.seconds for restart in again]),
        "last fault to next start, s: p50 / p99 / max": spread([restart.calm for restart in again]),
        "attempts counted for lost runners": len(rescued),
        "of these, attempts whose body never started": len(idle),
        "their runners: killed / frozen / neither": f"{causes['kill']} / {causes['freeze']} / {causes['connection']}",
        "claim to the kill of such a runner, s: p50 / p99 / max": spread(
            [attempt.seconds for attempt in idle if attempt.fault == "kill"]
        ),
        "attempts that lost runners cost one task, at most": max(
            Counter(attempt.task_id for attempt in rescued).values(), default=0
        ),
        "tasks that killed their runner until they died": sum(
            row.state == State.DEAD and row.handler == KILLER for row in dump.history
        ),
        BYSTANDERS: sum(row.state == State.DEAD and row.handler != KILLER for row in dump.history),
    }


def spread(times: list[float]) -> str:
    """The median, the 99th percentile and the maximum of some times."""
    if len(times) < 2:
        return str([round(time, 2) for time in times])
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return f"{cuts[49]:.2f} / {cuts[98]:.2f} / {max(times):.2f}"


def _best_rate(times: Sequence[float | None]) -> float:
    buckets = Counter(int(time // 10) for time in times if time is not None)
    return max(buckets.values(), default=0) / 10


def _machine() -> str:
    return f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"


def _table(heading: tuple[str, ...], rows: Any) -> list[str]:
    def cell(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else str(value)

    lines = ["| " + " | ".join(heading) + " |", "|---" + "|---:" * (len(heading) - 1) + "|"]
    return [*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""]
