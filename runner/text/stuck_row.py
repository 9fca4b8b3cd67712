"""Stuck rows as text: the observed fact, the session that holds the lock, the consequence, and the next step."""

from runner.model.stuck_row import BlockingSession, HeldLock, StuckCause, StuckRow, StuckVerb
from runner.text.formatting import age
from runner.text.sanitize import count_noun, one_line

LONGEST_FACT = 300
"""Maximum number of characters of a fact; the database may return a text of any length."""

MISSED: dict[StuckVerb, str] = {
    "settle": "its outcome is not written",
    "complete": "its own transaction cannot be completed",
    "claim": "it is not claimed",
    "start": "its start is not recorded",
    "checkpoint": "its checkpoint is not stored",
    "step": "its step is not stored",
    "note": "its progress and log are not written",
    "rescue": "it is not rescued",
    "expire": "it is neither cancelled nor unbound",
    "resolve": "its dependency is not resolved",
    "schedule": "its schedule does not advance",
    "signal": "its signal does not start it",
    "prune": "it is not pruned",
}
"""The consequence for the task, by verb."""

FATES: dict[StuckVerb, str] = {
    "settle": "The runner keeps the outcome and tries again; if it ends before, the task runs again after a rescue",
    "complete": "The handler waits with its transaction until its timeout",
    "step": "The handler waits for it until its timeout",
    "checkpoint": "The handler goes on, or waits if it asked for the checkpoint; an attempt after a loss of the runner "
    "continues from the last stored checkpoint",
}
"""The future of the task, by verb."""


def stuck_text(row: StuckRow) -> str:
    """One sentence without a full stop: the task, the fact, the consequence, and the session that holds the lock."""
    name = f"task {row.task} ({one_line(row.handler)})"
    return f"{name}: {stuck_fact(row)}: {MISSED[row.verb]}, tried {count_noun(row.tries, 'time')}"


def more_stuck(number: int) -> str:
    """The number of stuck rows that are not listed."""
    verb = "row of a task is" if number == 1 else "rows of tasks are"
    return f"{number:,} more {verb} locked or refused"


def stuck_fact(row: StuckRow) -> str:
    """The observed fact, with the session that holds the lock."""
    fact = one_line(row.fact, LONGEST_FACT)
    return f"{fact}, {holder_text(row.blocker)}" if row.blocker is not None else fact


def holder_text(session: BlockingSession) -> str:
    """Name the session that holds a lock."""
    if session.prepared:
        return f"held by the prepared transaction {one_line(session.prepared)}, open for {age(session.age)}"
    names = [one_line(session.application) or "unnamed program", f"user {one_line(session.user)}"]
    if session.state:
        names.append(one_line(session.state))
    if session.age is not None:
        names.append(f"transaction open for {age(session.age)}")
    last = f", last statement: {one_line(session.statement)}" if session.statement else ""
    return f"{'held' if session.certain else 'probably held'} by process {session.pid} ({', '.join(names)}{last})"


LONGEST_KEY = 80
"""Maximum number of characters of the key of a row."""


def lock_text(lock: HeldLock) -> str:
    """Name a lock and the session that holds it, without a full stop."""
    mode = f" in mode {one_line(lock.mode)}" if lock.mode else ""
    return f"{place_text(lock.table, lock.key)} is locked{mode}, {holder_text(lock.session)}"


def place_text(table: str, key: str) -> str:
    """Name a row, or a whole table without a key."""
    name = one_line(table)
    return f"row {one_line(key, LONGEST_KEY)} of {name}" if key else f"table {name}"


def stuck_advice(row: StuckRow) -> str:
    """The next step, in lower case and without a full stop."""
    if row.cause is StuckCause.REFUSED:
        return f"{refusal_advice(row.fact)}; runners try again at least once a minute"
    return lock_advice(row.blocker)


SOURCES = {
    "tatement timeout": "the statement_timeout of the role or the database, or the trigger",
    "row-level security policy": "the policy",
    "(constraint ": "the constraint",
    "(function ": "the trigger",
    "permission denied": "the rights of this login",
    "a trigger": "the trigger",
}
"""The part of the schema that refuses a change, by a part of the fact."""


def refusal_advice(fact: str) -> str:
    """The next step after a refusal, in lower case and without a full stop.

    Args:
        fact: the observed fact, as the database reports it.
    """
    source = next((source for sign, source in SOURCES.items() if sign in fact), "the trigger, the constraint")
    return f"change {source} or the row"


def lock_advice(session: BlockingSession | None) -> str:
    """The way to release the lock of a session, in lower case and without a full stop."""
    if session is None:
        return "end the transaction that locks the row"
    if session.prepared:
        return f"end it: COMMIT PREPARED or ROLLBACK PREPARED '{one_line(session.prepared)}'"
    return f"end that transaction, or run SELECT pg_terminate_backend({session.pid}), which rolls back its changes"


def stuck_step(row: StuckRow) -> str:
    """The next step as a sentence."""
    step = stuck_advice(row)
    return f"{step[:1].upper()}{step[1:]}."


def stuck_fate(row: StuckRow) -> str:
    """The future of the task; empty if the verb only tries again."""
    return FATES.get(row.verb, "")
