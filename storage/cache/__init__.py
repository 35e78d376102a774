"""Implements the node cache: one download per node and object, memory-mapped by every process of the node."""
