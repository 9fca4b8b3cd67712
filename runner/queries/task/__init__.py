"""One task: detail, attempts, timeline, dependency tree, result."""
