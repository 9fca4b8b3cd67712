"""debug: due tasks run one at a time, with the debugger of Python where a handler fails."""

import asyncio
import pdb
import traceback
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from math import inf

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import open_database
from runner.cli.output import print_line
from runner.handlers.context import Context
from runner.handlers.hooks import around_execute
from runner.handlers.registry import Handler
from runner.model.outcome import HandlerOutcome
from runner.settings import Settings
from runner.testing.drain import Drain
from runner.text.sanitize import one_line


def debug(settings: Settings, handlers: Mapping[str, Handler]) -> int:
    """Run the due tasks until none is due.

    Timeouts do not apply, and handlers of processes run in threads: a debugger takes its time, in this process.
    """
    around_execute(_post_mortem)
    for handler in handlers.values():
        handler.defaults = replace(handler.defaults, timeout=inf, executor=None, memory_limit=None)
    return asyncio.run(_run(settings, handlers))


async def _post_mortem(ctx: Context) -> AsyncIterator[None]:
    """Open the debugger at the exception of a handler."""
    try:
        yield
    except HandlerOutcome:
        raise
    except Exception as error:
        print_stderr(f"task {ctx.id} ({one_line(ctx.handler)}), attempt {ctx.attempt}; q continues with the next task")
        print_stderr("".join(traceback.format_exception_only(error)).rstrip())
        pdb.post_mortem(error.__traceback__)
        raise


async def _run(settings: Settings, handlers: Mapping[str, Handler]) -> int:
    async with open_database(settings) as database:
        ran = await Drain(database, settings, handlers).run()
    for each in ran:
        why = f": {one_line(each.reason)}" if each.reason else ""
        print_line(f"task {each.id} ({one_line(each.handler)}): {each.verb}{why}")
    if not ran:
        print_line("No task of these handlers is due.")
    return Exit.OK
