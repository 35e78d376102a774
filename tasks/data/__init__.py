"""Stored data on its way to a learner: the input pipeline, datasets, replay plans, snapshots and checkpoints."""
