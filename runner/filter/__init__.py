"""The filter language of lists: parse, fields, sort, saved views."""
