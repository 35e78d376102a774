"""Verifies bytes against references; only this module knows what the digest of each kind of object covers."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError, StoreError
from penstock.storage.refs import Ref, ShardRef

if TYPE_CHECKING:
    from penstock.storage.digest import Buffer
    from penstock.storage.stores.protocol import Store


def read_whole(store: Store, ref: Ref) -> bytes:
    """Read an object to verify all of it. It is not mapped: a sector that can't be read would end the process.

    Raises:
        CorruptObjectError: the disk can't read it.
        ObjectNotFoundError: there is none.
        StoreError: the store can't be read.
    """
    try:
        return store.read(ref.name)
    except StoreError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EIO:
            raise
        raise CorruptObjectError(
            f"'{ref.name}' in '{store.url}' can't be read, as where a disk is damaged ({error.__cause__.strerror}): "
            f"restore it, or resume from an older commit"
        ) from error


def check_content(content: Buffer, ref: Ref, place: str) -> None:
    """Verify every byte of an object. `place` is its location, for the message.

    Raises:
        CorruptObjectError: it is altered or cut short.
    """
    content = memoryview(content)
    if isinstance(ref, ShardRef):
        from penstock.storage.shards.codec import check_shard  # noqa: PLC0415  (pyarrow: most objects need none)

        check_shard(content, f"{ref.name}' in '{place}", ref.digest)
        return
    found = digest(content)
    if found != ref.digest:
        raise CorruptObjectError(
            f"'{ref.name}' in '{place}' has the digest {found} ({content.nbytes} bytes), expected {ref.digest} "
            f"({ref.nbytes or 'unknown'} bytes); it was altered or cut short: restore it, or resume from an older "
            "commit"
        )
