"""The longest waits for locks of rows, each a value for `Dialect.lock_limit`."""

ATTEMPT_LOCKS = "10ms"
"""A settle or a record of a running task: it goes on with the other rows."""

OPERATION_LOCKS = "500ms"
"""An operation of a person, for a row of another table than its target."""

UPKEEP_LOCKS = "2s"
"""A rescue, a schedule, a registration, retention: work that another runner or the next round may do instead."""
