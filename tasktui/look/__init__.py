"""Looking: what screens ask the database for, when, and the frozen answers in lines."""
