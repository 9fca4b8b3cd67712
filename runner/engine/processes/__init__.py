"""The worker processes of a runner."""
