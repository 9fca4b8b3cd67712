"""`runner views`: saved filters."""

from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import read_filter
from runner.cli.output import print_answer, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter import saved
from runner.text.columns import Column


class SavedFilter(NamedTuple):
    """A saved filter.

    Args:
        filter: its terms; empty for all tasks.
    """

    name: str
    filter: str


class SavedFilters(NamedTuple):
    """The saved filters."""

    views: list[SavedFilter]


class DeletedFilter(NamedTuple):
    """The name of a deleted filter."""

    deleted: str


DOCUMENTS = (SavedFilters, SavedFilter, DeletedFilter)

VIEW_COLUMNS: tuple[Column[SavedFilter], ...] = (
    Column("VIEW", lambda view: view.name, fixed=True),
    Column("FILTER", lambda view: view.filter, lambda text: text or "all tasks"),
)


def views(
    action: Literal["show", "save", "delete"] = "show",
    name: str | None = None,
    /,
    *words: Annotated[str, Parameter(name="FILTER")],
    json: bool = False,
) -> int:
    """List, show, save or delete saved filters.

    runner views show [NAME]            list the saved filters, or show one
    runner views save NAME [FILTER...]  save a filter, or replace the saved one
    runner views delete NAME            delete a saved filter

    Commands that take a filter also take a saved one: runner tasks @late.

    Args:
        action: show, save or delete.
        name: The name of the saved filter.
        words: The filter to save; none saves a filter that matches all tasks.
        json: Print one JSON document.
    """
    if words and action != "save":
        raise InvalidInput(why=f"views {action} takes one name; quote a name with spaces")
    if action == "show":
        return _show(name, as_json=json)
    if name is None:
        raise InvalidInput(why=f"name the saved filter: runner views {action} NAME")
    if action == "save":
        return _save(name, words, as_json=json)
    saved.delete(saved.default_path(), name)
    print_answer(DeletedFilter(name), f"deleted {name}", json=json)
    return Exit.OK


def _show(name: str | None, *, as_json: bool) -> int:
    filters = saved.load(saved.default_path())
    if name is not None:
        filters = {name: saved.get(filters, name)}
    rows = [SavedFilter(*item) for item in filters.items()]
    if as_json:
        print_json(SavedFilters(rows))
    elif rows:
        print_table(VIEW_COLUMNS, rows)
    else:
        print_line("No filters are saved.", style="dim")
    return Exit.OK


def _save(name: str, words: tuple[str, ...], *, as_json: bool) -> int:
    filter_text = str(read_filter(words))
    saved.save(saved.default_path(), name, filter_text)
    print_answer(SavedFilter(name, filter_text), f"saved {name}: {filter_text or 'all tasks'}", json=as_json)
    return Exit.OK
