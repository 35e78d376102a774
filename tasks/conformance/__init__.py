"""Checks an algorithm against its contract: the checks behind `penstock check-algorithm`."""
