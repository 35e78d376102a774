"""Moves objects concurrently with the work: prefetching, ranged reads, uploads in the background."""
