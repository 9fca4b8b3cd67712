"""Starting: what `tasktui` is called with, and the way from there to a console and back out of it."""
