"""Workflows: their list, the graph of one, and its drawings."""
