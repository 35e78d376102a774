"""Trackers: callbacks that send a run's curves, settings, clip and report to TensorBoard, W&B or MLflow.

`open.open_followers` makes those that the settings name. A tracker reads committed facts and writes nothing to a run.
"""
