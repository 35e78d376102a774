"""Results of the protocol's pure functions, remembered: thousands of schedules read and write the same objects.

What is remembered is found by all of a function's input, so a schedule goes as if each result were computed again.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.storage.runs import commit_copies, commits, copying
from penstock.storage.runs.commit_schema import decode_commit, encode_commit
from penstock.storage.runs.lease_state import Lease
from penstock.storage.shards import verify
from penstock.tasks.driver import open_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.digest import Buffer
    from penstock.storage.refs import Ref
    from penstock.storage.runs.commit_schema import Commit

_MOST = 2048
"""Results of one function: of a few hundred schedules."""

decode_once = lru_cache(_MOST)(decode_commit)
_decode_lease = lru_cache(_MOST)(Lease.decode)
_encoded: dict[int, tuple[Commit, bytes]] = {}
_verified: set[tuple[bytes, Ref]] = set()


def encode_once(commit: Commit) -> bytes:
    """Return what `encode_commit` does, for the same object at once; its metrics can't be hashed."""
    found = _encoded.get(id(commit))
    if found is None:
        if len(_encoded) == _MOST:
            _encoded.clear()
        found = _encoded[id(commit)] = (commit, encode_commit(commit))
    return found[1]


def check_once(content: Buffer, ref: Ref, place: str = "the simulated store") -> None:
    """Verify a content as `check_content` does; one that is right is right everywhere."""
    key = bytes(content), ref
    if key not in _verified:
        verify.check_content(content, ref, place)
        if len(_verified) == _MOST:
            _verified.clear()
        _verified.add(key)


_REMEMBERED: tuple[tuple[object, str, object], ...] = (
    (commits, "decode_commit", decode_once),
    (commits, "encode_commit", encode_once),
    (commits, "check_content", check_once),
    (commit_copies, "decode_commit", decode_once),
    (copying, "check_content", check_once),
    (open_stage, "check_content", check_once),
    (Lease, "decode", _decode_lease),
)


@contextmanager
def remembering() -> Iterator[None]:
    """Let the protocol's code remember results within the context."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in _REMEMBERED]
    for owner, name, function in _REMEMBERED:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
