"""Decisions without I/O: functions of rows and of the time that return data.

The conditions and the order of a claim give SQL expressions, because the database evaluates them. They execute nothing.
"""
