"""Actions: keys, the operations they perform, and their forms."""
