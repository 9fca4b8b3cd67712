"""The store: one module per verb, each with an open transaction as its first parameter."""
