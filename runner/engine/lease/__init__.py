"""The lease of a runner: its heartbeat, its watchdog, and the rescue of lost runners' tasks."""
