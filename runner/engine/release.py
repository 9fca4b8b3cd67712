"""Release: whether the tables are still those of this program, which somebody may migrate while it runs."""

import logging

from runner.errors import DatabaseAway, StoreError
from runner.migrations import check
from runner.store.database import Database

log = logging.getLogger("runner.release")

GOES_ON = "this runner goes on as far as the tables take what it writes; one that is started now would not"


class Release:
    """Says so when the tables become others than this program knows, and when they fit again.

    A runner does not stop claiming for that: releases are rolled out by migrating first, and restarting runners then.

    Args:
        database: whose tables they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._said: str | None = None

    async def look(self) -> None:
        """Look at the tables, and say what is new about them."""
        try:
            await check(self._database)
        except DatabaseAway:  # claims and beats say so already
            return
        except StoreError as error:
            why: str | None = str(error)
        else:
            why = None
        if why is not None and why != self._said:
            log.error("%s (%s)", why, GOES_ON)
        if why is None and self._said is not None:
            log.warning("the tables are again those that this runner knows")
        self._said = why
