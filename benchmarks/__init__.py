"""The comparison of this project with other task systems: `python -m benchmarks`, in a checkout."""
