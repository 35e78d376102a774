"""Environments by id: the registry, installed packages, and Gymnasium's, dm_env's and single-environment interfaces."""
