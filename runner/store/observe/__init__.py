"""observe: frozen read models for people, which the console and the command line share.

Every function takes an open transaction, counts up to a cap, and reads a row whatever a foreign client wrote into it.
"""

from typing import TYPE_CHECKING

from runner.later import names_of

if TYPE_CHECKING:
    from runner.store.observe.audit import Audited, audit, audited, undoable
    from runner.store.observe.bookmark import Bookmark
    from runner.store.observe.cause import Cause, Sight
    from runner.store.observe.circles import circles
    from runner.store.observe.counts import QueueCounts, counts
    from runner.store.observe.counts import waiting as backlog
    from runner.store.observe.deeds import Deed, deeds
    from runner.store.observe.evidence import Attempt
    from runner.store.observe.failures import Failures, failures
    from runner.store.observe.family import Family, Kin
    from runner.store.observe.filtering import indexed
    from runner.store.observe.found import Found
    from runner.store.observe.health import Health, Worry, health, worries
    from runner.store.observe.legible import clock
    from runner.store.observe.pages import Page, page
    from runner.store.observe.particulars import particulars
    from runner.store.observe.pauses import Pause, Pauses, Registered, pauses, registered
    from runner.store.observe.ping import Ping, ping
    from runner.store.observe.reports import Flow, MinuteFlow, Total, per_minute, pulses, totals
    from runner.store.observe.rights import Standing, staleness, standing
    from runner.store.observe.runners import RunnerRow, UnknownHandler, runner_of, runners, unknown_handlers
    from runner.store.observe.script import page_script
    from runner.store.observe.search import find
    from runner.store.observe.story import Story, forecast, story
    from runner.store.observe.summary import By, Summary, summary
    from runner.store.observe.summary import Line as SummaryLine
    from runner.store.observe.tallies import Count, Waiting
    from runner.store.observe.tasks import TaskRow, task_rows
    from runner.store.observe.timeline import Event, entry_told, timeline
    from runner.store.observe.unfinished import unfinished
    from runner.store.observe.unique import UniqueKey
    from runner.store.observe.why import Why, why

__all__ = [
    "Attempt",
    "Audited",
    "Bookmark",
    "By",
    "Cause",
    "Count",
    "Deed",
    "Event",
    "Failures",
    "Family",
    "Flow",
    "Found",
    "Health",
    "Kin",
    "MinuteFlow",
    "Page",
    "Pause",
    "Pauses",
    "Ping",
    "QueueCounts",
    "Registered",
    "RunnerRow",
    "Sight",
    "Standing",
    "Story",
    "Summary",
    "SummaryLine",
    "TaskRow",
    "Total",
    "UniqueKey",
    "UnknownHandler",
    "Waiting",
    "Why",
    "Worry",
    "audit",
    "audited",
    "backlog",
    "circles",
    "clock",
    "counts",
    "deeds",
    "entry_told",
    "failures",
    "find",
    "forecast",
    "health",
    "indexed",
    "page",
    "page_script",
    "particulars",
    "pauses",
    "per_minute",
    "ping",
    "pulses",
    "registered",
    "runner_of",
    "runners",
    "staleness",
    "standing",
    "story",
    "summary",
    "task_rows",
    "timeline",
    "totals",
    "undoable",
    "unfinished",
    "unknown_handlers",
    "why",
    "worries",
]

__getattr__ = names_of(__name__)
