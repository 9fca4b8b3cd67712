"""Sizes: numbers of bytes among the settings."""

from runner.people import cells


class Bytes(int):
    """A number of bytes, which people are told in KiB, MiB and so on."""

    def __str__(self) -> str:
        return cells.size(self)
