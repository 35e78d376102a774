"""The `penstock` command, one module per group of commands.

Modules import Prefect, Dask and torch inside functions, so that the command starts immediately.
"""
