"""Modules and pure functions that algorithms are made of: networks, distributions, returns, normalisers."""
