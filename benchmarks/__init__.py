"""Benchmarks: programs that compare Penstock with its peers and with its own bounds; README.md lists them."""
