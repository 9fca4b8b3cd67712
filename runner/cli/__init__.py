"""The command line, `runner VERB ...`: one module for each group of verbs, imported when one of them is called."""

import gc
import sys

from runner.later import divide

INTERRUPTED = 130


def main() -> int:
    """Run the command line that this process was called with.

    Returns:
        The exit code; see runner.cli.ending.
    """
    try:
        # Looking for garbage among what is loaded, which stays, takes a seventh of the time; see `app.run`.
        gc.disable()
        divide("sqlalchemy.ext.asyncio")  # its sessions bring the ORM along: for handlers that ask for them
        from runner.cli.app import run
        from runner.cli.ending import ended, prepare_streams

        prepare_streams()
        return ended(lambda: run(sys.argv[1:]))
    except KeyboardInterrupt:
        return INTERRUPTED  # somebody was quicker than the imports
