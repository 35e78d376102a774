"""What several benchmarks share: tables of results, a store of objects, processor time."""
