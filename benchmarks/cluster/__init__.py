"""Hundreds and thousands of actors on Dask's schedulers."""
