"""The rest: what the first screen does without, and is loaded once that has something to show."""

import gc

from runner import later
from runner.store import intervene, observe
from tasktui import screens


def load_rest() -> None:
    """Load what is shown and done later, so that no key waits for it; from then on garbage is looked for.

    What is loaded stays, so it is not looked through.
    """
    from tasktui.obey import palette  # noqa: F401 - to have it

    for package in (screens, observe, intervene):
        later.load(package)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
