"""The part of a runner that writes outcomes, and resolves their dependents."""
