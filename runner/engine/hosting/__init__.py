"""The resources, the hooks and the lifetime of a runner in its process."""
