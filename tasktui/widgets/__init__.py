"""Widgets: what screens are made of; each is told what to show and knows no database."""
