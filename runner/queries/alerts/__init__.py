"""Alerts: the rules that find problems, each described once for the console, checks and notices."""
