"""What an intervention answers, said to the person who asked for it."""

from runner.cli.ending import Exit, complain
from runner.cli.printing import plain, print_json, print_line
from runner.store.intervene import Result
from runner.store.intervene.locking import MISSING

MOST_LINES = 50
"""Tasks that were left alone are listed up to so many."""


def tell(verb: str, result: Result, *, json: bool, batch: str | None = None) -> int:
    """Say what was done.

    Args:
        verb: what was asked for.
        result: of it.
        json: print one JSON document instead of words.
        batch: what all changes have in common; None for one that was made alone.

    Returns:
        The exit code: all was done, some, or nothing.
    """
    if json:
        print_json({"verb": verb, **plain(result), "batch": batch if result.changed else None})
    else:
        back = f"; runner undo --batch {batch} takes it back" if batch and result.changed else ""
        print_line(f"{verb}: {result}{back}")
    lines = result.left_alone()
    for line in lines[:MOST_LINES]:
        complain(line)
    if len(lines) > MOST_LINES:
        complain(f"and {len(lines) - MOST_LINES:,} more were left alone")
    return code(result)


def code(result: Result) -> int:
    """The exit code of what was done."""
    if not (result.moved_on or result.refused):
        return Exit.OK
    if result.changed:
        return Exit.PARTLY
    missing = not result.moved_on and all(left.why == MISSING for left in result.refused)
    return Exit.NOT_FOUND if missing else Exit.MOVED_ON
