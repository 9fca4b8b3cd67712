"""What applications call: @handler, submitting, and the way to a result."""
