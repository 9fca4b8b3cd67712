"""commit: submit tasks in a transaction of their own, and explain a commit whose answer was lost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

from runner.errors import DatabaseUnavailable, SubmitUncertain
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import NewTask, SubmitResult
from runner.text.sanitize import count_noun

if TYPE_CHECKING:
    from runner.db.database import Database

MOST_NAMED = 3
"""Maximum number of handlers in the filter of an error message."""


async def submit_alone(database: "Database", tasks: Sequence[NewTask], *, notify: bool) -> SubmitResult:
    """Submit tasks in a transaction of their own.

    Args:
        database: the database to submit to.
        tasks: any number of tasks.
        notify: wake listening runners.

    Returns:
        The ids and the duplicates; the tasks are durable.

    Raises:
        SubmitUncertain: the connection broke during the commit; the tasks may exist.
        DatabaseUnavailable: the database cannot be reached; the tasks do not exist.
    """
    from runner.store.submit import submit_with_result, takes_one_statement  # importing SQLAlchemy takes 0.25 s

    single = takes_one_statement(tasks)
    write = database.write_single if single else database.write
    with _explained(tasks, single and database.dialect.isolates_rows):
        return await write(submit_with_result, tasks, notify=notify)


def submit_in_thread(database: "Database", tasks: Sequence[NewTask], *, notify: bool) -> SubmitResult:
    """Same as `submit_alone`, in the thread of the caller."""
    from runner.store.submit import submit_steps, takes_one_statement

    single = takes_one_statement(tasks)
    with _explained(tasks, single and database.dialect.isolates_rows):
        return database.threads.run(lambda frame: submit_steps(frame, tasks, notify), single=single)


@contextmanager
def _explained(tasks: Sequence[NewTask], commits_itself: bool) -> Iterator[None]:
    """Raise SubmitUncertain for a connection that broke during the commit.

    Args:
        tasks: the tasks of the submit.
        commits_itself: True if the only statement is the commit.
    """
    try:
        yield
    except DatabaseUnavailable as error:
        from runner.db.errors import is_answered

        committing = error.stage == "commit" or (commits_itself and error.stage == "statement")
        if not committing or is_answered(error.__cause__):
            raise
        raise uncertain(error, tasks) from error.__cause__


def uncertain(error: DatabaseUnavailable, tasks: Sequence[NewTask]) -> SubmitUncertain:
    """Return the error of a submit that may have been committed.

    Args:
        error: the error of the connection, or an error for more tasks than these.
        tasks: the tasks of the submit.
    """
    subject = "The task" if len(tasks) == 1 else f"All {count_noun(len(tasks), 'task')}, or none of them,"
    url, why = error.fields["url"], error.fields["why"]
    return SubmitUncertain(url=url, why=why, tasks=subject, search=_command(tasks), remedy=_remedy(tasks))


def _command(tasks: Sequence[NewTask]) -> str:
    """The shell command that lists the tasks if they exist."""
    handlers = list(dict.fromkeys(task.handler for task in tasks))
    terms = [Term("handler", Operator.EQ, handlers[0])] if len(handlers) == 1 else []
    if 1 < len(handlers) <= MOST_NAMED:
        terms = [Term("handler", Operator.IN, tuple(handlers))]
    if len(tasks) == 1 and tasks[0].unique is not None:
        terms.append(Term("unique", Operator.EQ, tasks[0].unique.key))
    elif len(tasks) == 1 and tasks[0].key is not None:
        terms.append(Term("key", Operator.EQ, tasks[0].key))
    return f"runner tasks {quote(str(Filter(tuple(terms))))}"


def _remedy(tasks: Sequence[NewTask]) -> str:
    if all(task.unique is not None for task in tasks):
        return "Or submit again: the unique key prevents a second task while the first one holds it"
    return "Submit again only if it is not there; with a unique key you could submit again without a search"
