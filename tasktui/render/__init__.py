"""Rendering: pure functions from values to text and style."""
