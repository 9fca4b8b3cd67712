"""SchemaWatch: notices that the tables belong to another version."""

import logging

from runner.db.database import Database
from runner.db.migrations.revisions import check
from runner.db.migrations.sequences import late_sequences, repair_sequences
from runner.errors import DatabaseRefused, DatabaseUnavailable, SequenceLate, StoreError

log = logging.getLogger("runner.maintenance")


ADVICE = "this runner continues; a runner of this version that starts now fails"


class SchemaWatch:
    """Logs when the schema stops matching this version, and when it matches again.

    The runner continues to claim: a deployment migrates first and then restarts the runners.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.problem: str | None = None
        """Why the tables do not fit, by the last check; None if they do."""

    async def check_schema(self) -> None:
        """Check the schema and log a change."""
        try:
            await check(self._database)
        except DatabaseUnavailable:  # claims and heartbeats already log this
            return
        except StoreError as error:
            problem: str | None = str(error)
        else:
            problem = None
        if problem is None:
            problem = await self._late_sequences()
        if problem is not None and problem != self.problem:
            log.error("%s (%s)", problem, ADVICE)
        if problem is None and self.problem is not None:
            log.warning("the schema matches this runner again")
        self.problem = problem

    async def check_sequences(self) -> None:
        """Advance the sequences of ids that are behind the rows, and log those that this login may not change."""
        if (problem := await self._late_sequences()) is not None:
            log.error("%s", problem)

    async def _late_sequences(self) -> str | None:
        late = await self._database.read(late_sequences)
        if not late:
            return None
        text = "; ".join(sequence.text for sequence in late)
        try:
            await self._database.write(repair_sequences)
        except DatabaseRefused:
            return str(SequenceLate(why=text))
        log.warning("repaired the sequences of ids: %s", text)
        return None
