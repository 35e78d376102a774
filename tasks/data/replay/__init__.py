"""The plan of a replay: which committed rounds of which runs are trained on, in which order."""
