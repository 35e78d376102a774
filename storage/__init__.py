"""Implements the durable objects of a run: stores, shards, tensors, commits, the lease, the node cache.

Nothing is re-exported: import from the module that owns the name, for example `from penstock.storage.stores.open
import open_store`. This package knows no algorithm, no environment, no cluster and no workflow engine.
"""
