"""ScanState: the state of the scans of a runner."""

from enum import Enum


class Gate(Enum):
    """The periods in the life of a runner: it claims only while the gate is open."""

    UNOPENED = "it is not registered, or its initial delay is not over"
    OPEN = "it claims"
    DRAINING = "it claims nothing more"


class ScanState(Enum):
    """The state of the scans of a runner.

    A scan begins as RUNNING and ends as IDLE or WORK_LEFT. An event during a scan, such as a submit or the end of a
    task, may concern a lane that the scan has read before: it makes the state AGAIN, and another scan follows.
    """

    NEW = "no scan has begun", False
    IDLE = "the last scan claimed all due tasks", False
    WORK_LEFT = "due tasks may remain: slots were full, or a scan failed; the next free slot begins a scan", False
    RUNNING = "a scan is running", True
    NO_ROOM = "a scan is running that has found due tasks and no free slot", True
    AGAIN = "a scan is running, and another follows", True

    def __init__(self, _: str, is_running: bool) -> None:
        self.is_running = is_running
