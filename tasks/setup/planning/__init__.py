"""Predicts and checks before anything starts: resolves runs, and predicts traffic, round time and capacity."""
