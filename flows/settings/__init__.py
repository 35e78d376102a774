"""Turns settings into command-line options, a listing and the reference page."""
