"""The environment: RUNNER_* variables, and those among them that nobody would ever read."""

from collections.abc import Iterable, Mapping
from typing import Any

from runner.errors import InvalidSettings
from runner.settings.sources import PREFIX, resembling, variable

# Continuous-integration services set these for their own runners. Source: "Variables reference" of GitHub Actions and
# "Predefined CI/CD variables" and "Configuring runners" of GitLab.
FOREIGN = frozenset(
    {
        *("RUNNER_ARCH", "RUNNER_DEBUG", "RUNNER_ENVIRONMENT", "RUNNER_NAME", "RUNNER_OS", "RUNNER_TEMP"),
        *("RUNNER_TOOL_CACHE", "RUNNER_TRACKING_ID", "RUNNER_USER", "RUNNER_WORKSPACE", "RUNNER_PERFLOG"),
        *("RUNNER_ALLOW_RUNASROOT", "RUNNER_MANUALLY_TRAP_SIG", "RUNNER_TEMP_PROJECT_DIR"),
        *("RUNNER_SCRIPT_TIMEOUT", "RUNNER_AFTER_SCRIPT_TIMEOUT", "RUNNER_EXECUTOR", "RUNNER_LIMIT"),
    }
)

TEXTS = frozenset({"profile", "config", "url"})
"""Settings whose text is the value, or is read by those who need it."""


def read_environment(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, Any]:
    """Return the settings in the environment, as text and by name; empty ones count as not given.

    Args:
        environ: the environment of this process.
        known: names of all settings.
    """
    ours = {name.lower(): environ[name] for name in environ if name.upper().startswith(PREFIX)}
    named = {name: ours[variable(name).lower()] for name in known if variable(name).lower() in ours}
    if named.keys() <= TEXTS:
        return {name: value for name, value in named.items() if value}
    from runner.settings.variables import read_variables  # pydantic-settings takes a tenth of a second to load

    return read_variables(known)


def stray_names(environ: Iterable[str], known: Iterable[str]) -> list[str]:
    """Find names in the environment that look like ours and are not.

    Args:
        environ: names of environment variables.
        known: names of all settings.

    Returns:
        Those that resemble no setting and belong to nobody we know: to be mentioned, because they do nothing.

    Raises:
        InvalidSettings: one resembles a setting closely, so it is most likely mistyped.
    """
    known = list(known)
    ours = [name for name in environ if name.upper().startswith(PREFIX) and name.upper() not in FOREIGN]
    stray = [name for name in ours if name[len(PREFIX) :].lower() not in known]
    for name in sorted(stray):
        if meant := resembling(name[len(PREFIX) :], known):
            why = f"there is no such setting; did you mean {variable(meant)}? Correct or remove it"
            raise InvalidSettings(where=f"{name} in the environment", why=why)
    return sorted(stray)
