"""The demo: every part of the product at work, on the files of Python's own standard library."""

from runner.demo.play import demo

__all__ = ["demo"]
