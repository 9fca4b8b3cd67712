"""The store: one module per verb; every verb takes an open transaction first."""
