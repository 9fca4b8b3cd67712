"""Handlers: the functions that execute tasks, and the options of the tasks they get."""
