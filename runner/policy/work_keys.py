"""WorkKeys: the queues and handlers that an exporter lists one by one."""

from typing import TypeAlias

WorkKey: TypeAlias = tuple[str, str]
"""Queue and handler."""

MOST_LISTED = 100
"""Maximum number of pairs that are listed: the first ones, so that no count moves from one label to another."""

MOST_COUNTED = 10_000
"""Maximum number of pairs that are counted as left out."""

OTHERS: WorkKey = ("other", "other")
"""The name of all further ones together."""


class WorkKeys:
    """The pairs that were seen so far."""

    def __init__(self) -> None:
        self.listed = set[WorkKey]()
        self._others = set[WorkKey]()

    @property
    def left_out(self) -> int:
        """The number of pairs that count together as OTHERS; it stops at MOST_COUNTED."""
        return len(self._others)

    def name(self, work_key: WorkKey) -> WorkKey:
        """The pair itself if it is listed; otherwise OTHERS."""
        if work_key in self.listed:
            return work_key
        if len(self.listed) < MOST_LISTED:
            self.listed.add(work_key)
            return work_key
        if len(self._others) < MOST_COUNTED:
            self._others.add(work_key)
        return OTHERS
