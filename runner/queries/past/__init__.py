"""The state of tasks and runners at a past time."""
