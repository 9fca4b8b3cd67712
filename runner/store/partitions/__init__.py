"""Partitions of the history: create them ahead of the ids, assess them, drop them. SQLite has none.

A transaction that changes partitions takes an advisory lock, reads the layout again, and waits for table locks only
briefly. If another transaction has the lock, or a table is in use, it changes nothing; the next tick tries again.
"""
