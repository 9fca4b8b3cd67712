"""The terminal itself: what comes in from it, and what it can display."""
