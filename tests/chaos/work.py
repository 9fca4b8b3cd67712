"""A program that is a runner, as `runner work` is one, with nothing around it."""

import os
import socket
import sys

from runner.engine.main import run_process, work
from runner.handlers.discovery import discover
from runner.logs import set_up
from runner.settings import load
from tests.chaos import boundary, clock

MODULE = "CHAOS_MODULE"
"""The environment variable with the module of the handlers, if it is another one."""

HOST = "CHAOS_HOST"
"""The environment variable with the name of the host that the runner believes to be on."""

if __name__ == "__main__":
    set_up("json")
    if HOST in os.environ:
        socket.gethostname = lambda: os.environ[HOST]
    if clock.FILE in os.environ:
        clock.install()
    if boundary.KILL in os.environ:
        boundary.install()
    sys.exit(run_process(work(load(), discover([os.environ.get(MODULE, "tests.chaos.handlers")], installed=False))))
