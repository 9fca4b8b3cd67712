"""The peers: one program per system, called by the verbs of `benchmarks.contract`."""
