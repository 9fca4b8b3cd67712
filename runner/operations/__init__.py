"""The operations of operators, each guarded by the row's version and recorded in the audit log.

Every function takes a writing transaction; the change and its audit entry commit together.
"""
