"""advise: the commands to try when the demo is over."""

import shlex
from collections.abc import Iterator

from runner.demo.findings import Findings
from runner.settings import Settings
from runner.task import State

SAMPLES = "sample_handlers"


def advise(settings: Settings, findings: Findings) -> list[tuple[str, str]]:
    """Choose the commands that show most of what there is now.

    Args:
        settings: of the demo: what was given on its command line is given on the next one too.
        findings: what became of the round.

    Returns:
        Each command with what it does.
    """
    where = _where(settings)
    return [(f"{command}{where}", purpose) for command, purpose in _commands(findings)]


def _commands(findings: Findings) -> Iterator[tuple[str, str]]:
    yield "tasktui", "see and change everything, live"
    if findings.dead:
        yield f"runner tasks state:{State.DEAD}", "what was given up"
        yield f"runner show {findings.dead[0].id}", "the whole story of one of them"
        yield f"runner retry {findings.dead[0].id}", "give it another chance"
    yield "runner stats", "the queues summed up"
    yield f"runner work -H {SAMPLES}", "run whatever waits, until Ctrl-C"
    yield "runner demo --keep-running", "have something live to look at"


def _where(settings: Settings) -> str:
    origins = {row.name: row.origin for row in settings.describe()}
    if origins["url"].startswith("argument"):
        return f" --url {shlex.quote(str(settings.url))}"
    if settings.profile and origins["profile"].startswith("argument"):
        return f" --profile {shlex.quote(settings.profile)}"
    return ""
