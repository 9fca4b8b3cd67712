"""The parts of manage.py."""
