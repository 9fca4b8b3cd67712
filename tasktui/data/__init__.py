"""Data: the frozen snapshots that screens show."""
