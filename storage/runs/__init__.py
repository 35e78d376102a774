"""The parts of one run: its folder, commits, lease, roll-ups, readers, garbage collection, copies.

Entry points: `run.RunFolder` for a run, `commits.CommitLog` for its log, `lease.acquire` to drive it. Nothing here
interprets a run's settings.
"""
