"""Stores trajectory shards as Arrow IPC files: layout, compression, checksums, episode index, reading."""
