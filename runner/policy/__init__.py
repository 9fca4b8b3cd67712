"""Decisions as pure functions: rows and the time are arguments, and the result is data."""
