"""A new file of the operator."""

from pathlib import Path

from runner.errors import InvalidInput
from runner.model.home import expand_home


def write_new(name: str, text: str) -> Path:
    """Write a report to a new file.

    Returns:
        The absolute path.

    Raises:
        InvalidInput: the file exists, or cannot be written.
    """
    path = expand_home(name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(why=f"{name} exists already: delete it, or choose another name or period") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(why=f"cannot write {name}: {why}") from None
    return path.resolve()
