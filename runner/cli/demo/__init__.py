"""The demo: sample tasks from the source files of Python's standard library."""
