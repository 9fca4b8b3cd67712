"""Terminal input and capabilities."""
