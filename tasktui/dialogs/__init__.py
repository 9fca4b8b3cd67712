"""Dialogs: modal screens."""
