"""Chip placement: methods at equal processor time, and what makes them better."""
