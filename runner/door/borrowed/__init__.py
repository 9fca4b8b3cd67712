"""An application's own connection follows the steps of a verb, inside the transaction that the application ends.

Nothing here commits, rolls back, tries again, changes a setting of the session or opens a second connection; what the
driver raises comes out as it is. The libraries are known by the names of their classes, so none is imported for it.
"""

from runner.door.borrowed.frame import Borrowing, Verb
from runner.door.borrowed.kinds import follow, follow_async

__all__ = ["Borrowing", "Verb", "follow", "follow_async"]
