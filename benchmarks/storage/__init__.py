"""Shards, snapshots, the log of commits, and the clients of a store."""
