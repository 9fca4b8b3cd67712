"""The console: what the queue is doing, why, and a way to set it right from a terminal."""
