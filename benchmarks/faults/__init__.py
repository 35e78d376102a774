"""Kills at random, and runs of hours."""
