"""`runner view`, `save`, `forget`: filters under a name, in the file that the console keeps them in."""

from typing import Annotated

from cyclopts import Parameter

from runner.cli.ending import Exit
from runner.cli.printing import Column, print_json, print_line, print_table
from runner.cli.targets import read_filter
from runner.people import views

COLUMNS = (Column("VIEW", whole=True), Column("FILTER"))


def view(name: str | None = None, /, *, json: bool = False) -> int:
    """List the filters that you saved, here or in the console, or show one of them.

    Every verb that takes a filter takes a view in its place: runner tasks @late.

    Args:
        name: Only this one.
        json: Print one JSON document.
    """
    saved = views.load(views.default_path())
    if name is not None:
        saved = {name: views.chosen(saved, name)}
    if json:
        print_json({"views": [{"name": known, "filter": wanted} for known, wanted in saved.items()]})
    elif saved:
        print_table(COLUMNS, [[known, wanted or "all tasks"] for known, wanted in saved.items()])
    else:
        print_line("no view is saved", style="dim")
    return Exit.OK


def save(name: str, /, *words: Annotated[str, Parameter(name="FILTER")], json: bool = False) -> int:
    """Save a filter under a name, for you alone; one of that name is replaced.

    Args:
        name: Of the view.
        words: The filter; none lists all tasks.
        json: Print one JSON document.
    """
    wanted = str(read_filter(words))
    views.save(views.default_path(), name, wanted)
    if json:
        print_json({"name": name, "filter": wanted})
    else:
        print_line(f"saved as {name}: {wanted or 'all tasks'}")
    return Exit.OK


def forget(name: str, /) -> int:
    """Forget a filter that you saved.

    Args:
        name: Of the view.
    """
    views.forget(views.default_path(), name)
    print_line(f"forgot {name}")
    return Exit.OK
