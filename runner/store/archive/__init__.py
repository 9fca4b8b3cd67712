"""archive: finished tasks in a folder of files."""
