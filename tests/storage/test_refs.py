"""A reference that was read names an object as its fields do, and never leads out of a run's folder."""

import pytest

from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import Ref, ShardRef, SnapshotRef, StateRef, check_ref, is_digest

A, B = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    "ref",
    [
        ShardRef(f"shards/00000003/00000150-0002-{A}.arrow", A, 10, 150, 2, 8),
        ShardRef(f"shards/00000003.2/00000150-0002-{A}.arrow", A, 10, 150, 2, 8),
        StateRef(f"states/00000003/00000150-0002-{A}.safetensors", A, 10, 150, 2),
        SnapshotRef(f"snapshots/00000151-{A}.safetensors", A, 10, 151),
        SnapshotRef(f"snapshots/attempt-1/00000151-{A}.safetensors", A, 10, 151),
        Ref(f"checkpoints/00000003-{A}.safetensors", A, 10),
    ],
)
def test_references_as_runs_have_them_are_accepted(ref):
    """Also those of a later attempt."""
    check_ref(ref)


@pytest.mark.parametrize(
    "ref",
    [
        ShardRef(f"shards/00000003/00000150-0002-{A}.arrow", B, 10, 150, 2, 8),
        ShardRef(f"shards/00000003/00000150-0002-{A}.arrow", A, 10, 151, 2, 8),
        ShardRef(f"shards/00000003/00000150-0002-{A}.arrow", A, 10, 150, 1, 8),
        ShardRef(f"states/00000003/00000150-0002-{A}.safetensors", A, 10, 150, 2, 8),
        ShardRef(f"shards/../../00000150-0002-{A}.arrow", A, 10, 150, 2, 8),
        StateRef(f"shards/00000003/00000150-0002-{A}.arrow", A, 10, 150, 2),
        SnapshotRef(f"snapshots/00000151-{A}.safetensors", A, 10, 152),
        SnapshotRef("snapshots/x/etc/passwd", "/etc/passwd", 10, 151),
        Ref("checkpoints//etc/passwd", "/etc/passwd", 10),
        Ref(f"checkpoints/00000003-{A}.safetensors\n", A, 10),
        Ref("", "", 0),
    ],
)
def test_other_references_are_refused_by_name(ref):
    """Another kind, round, tile, version or digest, or a path."""
    with pytest.raises(CorruptObjectError, match="expected"):
        check_ref(ref)


def test_a_digest_is_32_hexadecimal_digits():
    """Nothing else becomes a file's name in the cache."""
    assert is_digest(A)
    for text in ("", A[1:], A + "a", A[1:] + "g", A[1:] + "\n", "/" + A[1:]):
        assert not is_digest(text)
