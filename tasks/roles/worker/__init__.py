"""Entry points of a gang's Dask tasks on their workers."""
