"""The demo: sample tasks from the source files of Python's standard library."""

from runner.cli.demo.demo import demo

__all__ = ["demo"]
