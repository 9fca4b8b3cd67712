"""Decisions: no I/O and no clock; rows and the time are arguments, and what comes back is data."""
