"""Frozen read models for people, shared by the console and the command line.

Every function takes an open transaction, counts up to a cap, and reads rows with any content from foreign clients.
"""
