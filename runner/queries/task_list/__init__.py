"""The task list: search, pages, sorting, cursors."""
