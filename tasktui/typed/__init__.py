"""What operators type, as it is spelt, completed and read: filters and commands."""
