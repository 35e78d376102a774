"""Verifies bytes against references; only this module knows what the digest of each kind of object covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import Ref, ShardRef

if TYPE_CHECKING:
    from penstock.storage.digest import Buffer


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
