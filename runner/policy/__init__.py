"""Decisions without I/O: rows and the time are arguments, and the result is data.

The conditions and the order of a claim give SQL expressions, because the database evaluates them. They execute nothing.
"""
