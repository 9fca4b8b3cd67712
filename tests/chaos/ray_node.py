"""A program that is a head node of Ray, with a session of its own: all processes of the node are in it."""

import os
import runpy

if __name__ == "__main__":
    os.setsid()
    runpy.run_module("ray.scripts.scripts", run_name="__main__", alter_sys=True)
