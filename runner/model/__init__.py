"""The model: a task, its states, and the outcome of an attempt."""
