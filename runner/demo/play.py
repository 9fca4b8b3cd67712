"""demo: submit the files of the standard library as tasks, run them to the end, and report."""

import asyncio
import contextlib
import platform
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.demo.advice import SAMPLES, advise
from runner.demo.bar import Bar
from runner.demo.deal import HANDLERS, deal
from runner.demo.findings import find
from runner.demo.interruption import Interruption
from runner.demo.report import Report, to_json
from runner.demo.round import Round
from runner.demo.sources import LIBRARY, Source, is_complete, library, substitutes
from runner.demo.tables import announce, show
from runner.engine.process import Runner
from runner.errors import DatabaseAway, InvalidInput, InvalidSettings
from runner.handlers import Handler, discover
from runner.migrations import ensure
from runner.people.terminal import counted
from runner.settings import Settings
from runner.store.database import Database
from runner.task import NewTask

LOOK_EVERY = 0.2
"""Seconds between two looks at how far the round is."""

FEW, HANDFUL = 20, 5
"""With fewer tasks left than the first, a demo that keeps running submits as many as the second at each look."""

INCOMPLETE = "This Python comes without its own broken test files: a few of the demo's take their place."


async def demo(
    settings: Settings, *, keep_running: bool = False, as_json: bool = False, tasks: int | None = None
) -> int:
    """Show everything at work, on real files: submit, run, fail, retry, report.

    Args:
        settings: which database, and how to run.
        keep_running: go on submitting until somebody stops it.
        as_json: print the report as JSON, and nothing else on standard output.
        tasks: submit so many at first, those that will fail before others; None for all files.

    Returns:
        The exit code: 0, or 128 and the number of the signal that stopped it.

    Raises:
        InvalidInput: when there is nothing to submit.
        InvalidSettings: when the database is one of production.
        StoreError: when the database cannot be used.
    """
    _check(settings, tasks)
    sources, notes = _gather()
    handlers = _handlers()
    database = Database.of(settings)
    try:
        await ensure(database)
        demo_round = Round(database)
        deck = deal(sources, handlers, demo_round.by)[:tasks]
        if not as_json:
            announce(len(deck), _place(settings), notes)
        started = time.monotonic()
        await demo_round.submit(deck, notify=settings.notify)
        code = await _run(Runner(settings, handlers), demo_round, deck if keep_running else ())
        seconds = time.monotonic() - started
        findings = await database.read(find, demo_round)
    finally:
        await database.dispose()
    report = Report(
        database=database.url,
        place=_place(settings),
        first=demo_round.first,
        seconds=round(seconds, 3),
        interrupted=code != 0,
        notes=notes,
        findings=findings,
        advice=advise(settings, findings),
    )
    print(to_json(report)) if as_json else show(report)
    return code


def _check(settings: Settings, tasks: int | None) -> None:
    if tasks is not None and tasks < 1:
        raise InvalidInput(why=f"{counted(tasks, 'task')}: too few for a demo")
    if settings.production:
        why = "the demo fills its database with tasks to play with; name another database with --url or --profile"
        raise InvalidSettings(where="production", why=why)


def _place(settings: Settings) -> str:
    url = settings.url
    return str(Path(url.database).resolve()) if url.kind == "sqlite" else str(url)


def _gather() -> tuple[list[Source], list[str]]:
    sources = library()
    notes = [
        f"One task for each of the {len(sources):,} source files of Python {platform.python_version()} in {LIBRARY}."
    ]
    if not is_complete(sources):
        sources += substitutes()
        notes.append(INCOMPLETE)
    return sources, notes


def _handlers() -> Mapping[str, Handler]:
    known = discover([SAMPLES], installed=False)
    return {name: known.find(name) for name in HANDLERS}


async def _run(runner: Runner, demo_round: Round, deck: Sequence[NewTask]) -> int:
    """Run a round to its end, or, with a deck to go on submitting from, until somebody stops it."""
    with Interruption(runner.stop) as interruption, Bar(endless=bool(deck)) as bar:
        running = asyncio.ensure_future(runner.run())
        try:
            while not running.done():
                await _look(runner, demo_round, deck, bar)
                await asyncio.wait([running], timeout=LOOK_EVERY)
        finally:
            runner.stop()
            await running
    return interruption.exit_code


async def _look(runner: Runner, demo_round: Round, deck: Sequence[NewTask], bar: Bar) -> None:
    with contextlib.suppress(DatabaseAway):  # the runner waits until it is back, and so does the demo
        standing = await demo_round.standing()
        bar.show(standing)
        if not (standing.left or deck):
            runner.stop()
        if deck and standing.left < FEW and not runner.stopping:
            await demo_round.submit(random.sample(deck, min(HANDFUL, len(deck))), notify=runner.settings.notify)
