"""BenchFailed: what a bench raises when there is nothing to report."""

from runner.errors import RunnerError


class BenchFailed(RunnerError):
    """The measurement could not be made: {why}."""
