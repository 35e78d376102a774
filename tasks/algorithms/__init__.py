"""One readable file an algorithm. Each imports torch, the spec types and the pure-torch helpers, and nothing else."""
