"""What a handler's author says of its tasks: which are unique, in which bucket they stand, what they wait for."""
