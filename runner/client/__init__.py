"""The client: applications submit tasks through it."""
