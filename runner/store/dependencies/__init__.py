"""Dependencies: tasks that run after others.

Each dependency is a row of `task_dependency`. The dependent task is blocked until none of its dependencies is open:

- `submit` writes the rows; a dependency whose parent has already ended as required is not open.
- `resolve`, called by the runner that finished a parent, finds its dependents by index and unblocks or cancels them.
- `sweep`, called by every runner every two seconds, checks the open rows themselves. At READ COMMITTED no transaction
  locks a parent to add a dependent, so a parent may finish while a transaction that adds a dependent is open, and
  neither sees the other. The sweep finds such dependencies, and those of runners that died: it depends only on the
  stored rows.
"""
