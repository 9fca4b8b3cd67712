"""A new file of the operator."""

from pathlib import Path

from runner.errors import InvalidInput
from runner.model.home import expand_home

MOST_NUMBERS = 100
"""Files of one name, after which a further one is refused."""


def write_new(name: str, text: str, *, numbered: bool = False) -> Path:
    """Write a report to a new file.

    Args:
        numbered: write `NAME-2.md` if `NAME.md` exists, and so on.

    Returns:
        The absolute path.

    Raises:
        InvalidInput: the file exists, or cannot be written.
    """
    path = first = expand_home(name)
    if numbered:
        others = (first.with_stem(f"{first.stem}-{number}") for number in range(2, MOST_NUMBERS))
        path = next((each for each in (first, *others) if not each.exists()), first)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(why=f"{name} exists already: delete it, or choose another name or period") from None
    except (OSError, ValueError) as error:
        why = f"{error.strerror} (errno {error.errno})" if isinstance(error, OSError) else error
        raise InvalidInput(why=f"{why}: cannot write {name}; name another file") from None
    return path.resolve()
