"""The ticks of a runner: scans, schedules, expiry and maintenance."""
