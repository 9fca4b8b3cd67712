"""The console: the state of the queue, its reasons, and operations on it, in a terminal."""
