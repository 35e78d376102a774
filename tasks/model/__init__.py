"""Algorithms and the pure torch modules and functions that they are made of."""
