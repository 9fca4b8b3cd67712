"""Tasks for executors that pull over HTTP."""
