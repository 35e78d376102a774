"""Tests for stores that others write: `StoreContract` is what Penstock's own stores pass.

Importing this needs pytest, which Penstock does not install; nothing else of `penstock.storage` imports it.
"""

from penstock.storage.testing.store_contract import StoreContract

__all__ = ["StoreContract"]
