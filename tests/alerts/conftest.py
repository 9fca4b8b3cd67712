"""A harness on each kind of database."""

from tests.engine.conftest import harness

__all__ = ["harness"]
