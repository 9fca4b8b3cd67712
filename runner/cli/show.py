"""`runner show`: the whole story of one task."""

import json as jsons
from datetime import datetime, tzinfo
from typing import Any

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.handlers import Modules, load_handlers
from runner.cli.printing import (
    plain,
    print_block,
    print_json,
    print_line,
    print_pairs,
    print_title,
)
from runner.cli.stats import paused_line
from runner.cli.targets import TaskId
from runner.cli.tasks import listed
from runner.people import cells
from runner.people.person import local_zone
from runner.people.redaction import audited, decoded, masked
from runner.people.terminal import one_line
from runner.people.times import format_moment
from runner.settings import Settings
from runner.store.database import Database
from runner.store.intervene import reveal as write_down
from runner.store.intervene import who
from runner.store.observe import Story, particulars, timeline
from runner.store.observe import story as read_story

JSON_TEXTS = ("payload", "result", "checkpoint")


async def show(
    id: TaskId, /, *, reveal: bool = False, handlers: Modules = (), json: bool = False, connection: Connection = NOWHERE
) -> int:
    """Tell the whole story of one task, live or finished.

    What stands under names such as password or token, or looks like a secret, is
    masked, in the payload as in errors. The next runs are known when the task or its handler (-H) has a retry
    plan.

    Args:
        id: The task's number.
        reveal: Show secrets, and write down in the audit that they were shown.
        handlers: A module that defines handlers; may be repeated.
        json: Print one JSON document.
        connection: Which database.
    """
    settings = connection.settings(handlers=handlers or None)
    async with opened(settings) as database:
        told = await _told(database, settings, id)
        if reveal:
            await database.write(write_down, id, who(None))
    print_json(_document(told, reveal), reveal=reveal) if json else _print(told, reveal)
    return Exit.OK


async def _told(database: Database, settings: Settings, id: int) -> Story:
    found = await database.read(read_story, id)
    if found.retry is not None or not settings.handlers:
        return found
    known = load_handlers(settings).get(found.task.handler)
    return await database.read(read_story, id, known.defaults.retry or settings.retry) if known else found


def _document(told: Story, reveal: bool) -> dict[str, Any]:
    rest = plain(told)
    rest |= {name: decoded(getattr(told, name), reveal=reveal) for name in JSON_TEXTS}
    rest["timeline"] = plain(timeline(told, reveal=reveal))
    rest["audit"] = [
        plain(entry) | {name: audited(getattr(entry, name), reveal=reveal) for name in ("before", "after")}
        for entry in told.audit
    ]
    return {**listed(told.task), **{name: value for name, value in rest.items() if name != "task"}}


def _print(told: Story, reveal: bool) -> None:
    print_pairs(particulars(told, local_zone()))
    _print_pauses(told)
    for title, lines in told.family.sections():
        print_title(title)
        for line in lines:
            print_line(line)
    for name in JSON_TEXTS:
        value = decoded(getattr(told, name), reveal=reveal)
        if value is not None:
            print_title(name)
            print_block(jsons.dumps(value, indent=2, ensure_ascii=False))
    _print_failures(told, reveal)
    if told.next_runs:
        print_title("next runs, if every attempt fails at once")
        print_block("\n".join(_when(run, told.at, local_zone()) for run in told.next_runs))


def _print_pauses(told: Story) -> None:
    if told.task.state.final:
        return
    places = {f"Queue {told.task.queue}": told.queue_pause, f"Handler {told.task.handler}": told.handler_pause}
    for place, pause in places.items():
        if pause is not None:
            print_line(paused_line(place, pause, told.at))


def _print_failures(told: Story, reveal: bool) -> None:
    if told.error:
        print_title("last error")
        print_block(masked(told.error, reveal=reveal))
    print_title("timeline")
    for event in timeline(told, reveal=reveal, zone=local_zone()):
        print_line(f"{cells.distance(event.at, told.at) if event.at else '':>13}  {event.text}")
        for detail in event.details:
            print_line(f"{'':15}{one_line(detail)}")
    if told.attempts and (last := told.attempts[-1].traceback):
        print_title("traceback of the last failure")
        print_block(masked(last, reveal=reveal))


def _when(moment: datetime, at: datetime, zone: tzinfo) -> str:
    return f"{format_moment(moment, zone)}  {cells.distance(moment, at)}"
