"""The panels of the screens."""
