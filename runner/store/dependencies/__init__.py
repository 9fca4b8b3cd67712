"""Dependencies: tasks that wait until others have ended.

What a task waits for stands in `task_dependency`, one row ("edge") for each parent. The task itself is blocked until no
edge of it is open. Three look after the edges:

- submitting (`edges`) writes them, and leaves none open whose parent has ended as it should;
- the runner that has ended tasks (`resolving`) finds the edges that wait for these, by index, and lets their tasks go;
- every runner, every two seconds (`sweeping`), looks at open edges themselves. Nobody locks a parent to wait for
  it, so a parent may end while a transaction that adds a child to it is open, and neither sees the other. Whatever was
  missed, by this or by a runner that died, is found here: what becomes of an edge follows from what stands in the
  tables, not from having been told.
"""

from runner.store.dependencies.resolving import Ended, Resolved, resolve, waiting_for
from runner.store.dependencies.sweeping import Strays, any_open, forget, strays

__all__ = ["Ended", "Resolved", "Strays", "any_open", "forget", "resolve", "strays", "waiting_for"]
