"""The door to the store for applications: their own connections, and those that we keep for them."""
