"""home: the home folder of the user who runs this process, and the configuration folder in it.

A service may run without HOME, with the HOME of another user, or as a user id without an entry in the user database.
"""

import os
from pathlib import Path

FOLDER = "tasktui"

WITHOUT_HOME = Path("/")
"""The home folder of a user who has none."""


def config_folder() -> Path:
    """Return the folder of this user's own files: the configuration, and the views of the console."""
    try:
        import platformdirs

        # Versions before 4.12 return `~` for a user without a home folder.
        return expand_home(platformdirs.user_config_path(FOLDER))
    except ModuleNotFoundError:  # an installation that only submits may lack it
        return Path(os.environ.get("XDG_CONFIG_HOME") or expand_home("~/.config")) / FOLDER
    except (RuntimeError, KeyError):
        return WITHOUT_HOME / ".config" / FOLDER


def expand_home(path: str | Path) -> Path:
    """Replace a leading `~` by the home folder, as a shell does: `~name` of an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first, *others = Path(path).parts
        return WITHOUT_HOME.joinpath(*others) if first == "~" else Path(path)
