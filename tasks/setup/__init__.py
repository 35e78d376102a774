"""Settles a run before it starts: settings, distribution policies, checks and predictions. Starts nothing itself."""
