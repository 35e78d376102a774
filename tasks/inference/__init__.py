"""Acting with a trained run outside of it: the policy as an object, and as a file for other runtimes.

Nothing here needs Prefect or Dask, and nothing writes to a run.
"""
