"""The engine: ticks, slots, execution and the runner process. The only package that knows APScheduler."""
