"""`runner submit --wait`: wait for a task and print its result."""

import json as jsons
from dataclasses import dataclass

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.output import print_block, print_json
from runner.client.client import connect, disconnect
from runner.client.results import ended, kept
from runner.errors import NoResult, ResultNotKept
from runner.model.duration import parse_duration
from runner.settings import Settings


@Parameter(name="*", group=Group("Waiting", sort_key=60))
@dataclass(frozen=True, slots=True)
class WaitOptions:
    """Whether and how long to wait for the task.

    Args:
        wait: Wait for the task and print its result.
        wait_timeout: Wait this long at most: 30s, 5m.
    """

    wait: bool = False
    wait_timeout: str | None = None

    def __post_init__(self) -> None:
        if self.wait_timeout is not None:
            parse_duration(self.wait_timeout)

    def __bool__(self) -> bool:
        return self.wait or self.wait_timeout is not None


NO_WAIT = WaitOptions()
"""Do not wait."""


def wait_for_task(settings: Settings, id: int, wait: WaitOptions, *, json: bool) -> int:
    """Wait for a task and print its result.

    Args:
        settings: the settings, with the database.
        id: the id of the task.
        wait: the time limit.
        json: print one JSON document.

    Returns:
        The exit code.

    Raises:
        TimedOut: the task did not finish in time.
        TaskFailed: the task is dead.
        TaskCancelled: the task was cancelled.
    """
    connect(settings)
    try:
        ending = ended(id, wait.wait_timeout)
    finally:
        disconnect()
    failure: NoResult | None = None
    try:
        result = kept(ending)
    except NoResult as error:
        result, failure = None, error
    value = jsons.loads(result) if result else None
    if json:
        print_json(
            {
                "id": id,
                "state": ending.state,
                "attempts": ending.attempt,
                "result": value,
                "error": failure and ending.error,
            }
        )
    elif value is not None:
        print_block(jsons.dumps(value, indent=2, ensure_ascii=False), indent="")
    if failure is not None:
        print_stderr(f"runner: {failure}")
    return Exit.OK if failure is None or isinstance(failure, ResultNotKept) else Exit(failure.exit_code)
