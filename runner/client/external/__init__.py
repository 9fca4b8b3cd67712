"""External connections: run the statements of a store verb inside a transaction that the application ends.

Nothing here commits, rolls back, retries, changes session settings or opens a second connection, and the driver's
exceptions pass through. Libraries are recognized by their class names, so that none is imported for this.
"""

from runner.client.external.registry import explained, follower, follower_async

__all__ = ["explained", "follower", "follower_async"]
