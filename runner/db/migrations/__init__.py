"""Migrations: create and upgrade the tables of a database by applying the revisions in `versions` in order.

Importing this does not load Alembic, which takes a third of a second; applying a revision does.
"""
