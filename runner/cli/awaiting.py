"""Waiting for a task from the command line: its result on standard output, or why there is none."""

import json as jsons
from dataclasses import dataclass

from cyclopts import Group, Parameter

from runner.cli.ending import Exit, complain
from runner.cli.printing import print_block, print_json
from runner.door.door import connect, disconnect
from runner.errors import NoResult, ResultNotKept
from runner.people.times import parse_duration
from runner.producer.ticket import ended, kept
from runner.settings import Settings


@Parameter(name="*", group=Group("Waiting", sort_key=60))
@dataclass(frozen=True, slots=True)
class Patience:
    """Whether to wait for the task, and for how long.

    Args:
        wait: Wait for the task, and print what its handler returns.
        wait_timeout: Wait so long at most: 30s, 5m.
    """

    wait: bool = False
    wait_timeout: str | None = None

    def __post_init__(self) -> None:
        if self.wait_timeout is not None:
            parse_duration(self.wait_timeout)

    def __bool__(self) -> bool:
        return self.wait or self.wait_timeout is not None


AT_ONCE = Patience()
"""Do not wait."""


def awaited(settings: Settings, id: int, patience: Patience, *, json: bool) -> int:
    """Wait for a task and print what it led to.

    Args:
        settings: say where it is.
        id: the task's.
        patience: how long at most.
        json: print one JSON document.

    Returns:
        The exit code.

    Raises:
        TimedOut: it has not ended in time.
        TaskFailed: it is dead.
        TaskCancelled: it was terminated.
    """
    connect(settings)
    try:
        ending = ended(id, patience.wait_timeout)
    finally:
        disconnect()
    why: NoResult | None = None
    try:
        result = kept(ending)
    except NoResult as error:
        result, why = None, error
    value = jsons.loads(result) if result else None
    if json:
        print_json(
            {
                "id": id,
                "state": ending.state,
                "attempts": ending.attempt,
                "result": value,
                "error": why and ending.error,
            }
        )
    elif value is not None:
        print_block(jsons.dumps(value, indent=2, ensure_ascii=False), indent="")
    if why is not None:
        complain(f"runner: {why}")
    return Exit.OK if why is None or isinstance(why, ResultNotKept) else Exit(why.exit_code)
