"""Objects that follow a run without effect on it: callbacks, trackers of experiments, metrics and traces."""
