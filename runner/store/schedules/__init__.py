"""The verbs of schedules: register them, find the due ones, and submit the tasks of their ticks."""
