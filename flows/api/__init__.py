"""Drives runs in the process that asks for it, for Python and the command, and reads runs: `train`, `resume`, `Run`.

Modules import Prefect, Dask and torch inside functions: runs are read without them, and a drive imports them while its
servers start.
"""
