"""The partitions of the history: create them ahead, weigh them, drop them. SQLite's history is one table and has none.

Whoever changes them holds a lock of the transaction, looks anew, and waits for tables but a moment: whoever finds that
another one is at it, or that a table is in use for long, does nothing and tries again at the next tick.
"""

from runner.store.partitions.drop import Dropped, drop
from runner.store.partitions.extend import extend
from runner.store.partitions.look import Layout, look
from runner.store.partitions.outlook import Outlook, outlook
from runner.store.partitions.overtaken import overtaken
from runner.store.partitions.strip import strip

__all__ = ["Dropped", "Layout", "Outlook", "drop", "extend", "look", "outlook", "overtaken", "strip"]
