"""Checks an environment against its contract: the checks behind `penstock check-env`."""
