"""The part of a runner that claims tasks: scans, surveys, and the claims of each kind."""
