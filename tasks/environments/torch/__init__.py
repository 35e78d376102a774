"""Implements environments whose state is a tensor on a device, stepped as one batch."""
