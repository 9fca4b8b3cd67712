"""Integrations with other packages, which applications switch on with one line."""
