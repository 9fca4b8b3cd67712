"""Why a task is not running: facts, blockers, remedies."""
