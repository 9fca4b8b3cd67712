"""Widgets of the screens. They show data that they receive and never read the database."""
