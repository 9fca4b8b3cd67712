"""The part of a runner that executes tasks: attempts, deadlines, contexts and outcomes."""
