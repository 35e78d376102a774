"""Drives a run from the flow's process: stages, gangs of Dask tasks, admission, results, commits.

The driving process computes nothing, so no module here imports torch. Entry points: `run.drive_run` for a run,
`stage.StageDriver` for a stage, `cluster.connected` for its clusters.
"""
