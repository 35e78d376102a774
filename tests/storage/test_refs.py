"""A reference that was read names an object as its fields do, and never leads out of a run's folder."""

import pytest

from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import (
    Ref,
    ShardRef,
    SnapshotRef,
    StateRef,
    check_ref,
    checkpoint_name,
    choice_name,
    is_digest,
    order_name,
    shard_name,
    stage_of_name,
    state_name,
    version_of_name,
)

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


@pytest.mark.parametrize("attempt", [0, 2])
def test_names_have_the_number_of_their_stage_or_version(attempt):
    """Those of any attempt have it; other names, such as those of another program, have none."""
    staged = [shard_name(3, attempt, 150, 2, A), state_name(3, attempt, 150, 2, A), checkpoint_name(3, A)]
    staged += [choice_name(3, attempt, 150), order_name(3, attempt, 150)]
    assert [(stage_of_name(name), version_of_name(name)) for name in staged] == [(3, None)] * len(staged)
    folder = f"attempt-{attempt}/" if attempt else ""
    versioned = [f"snapshots/{folder}00000151-{A}.safetensors", f"differences/00000151-{A}.zst"]
    assert [(stage_of_name(name), version_of_name(name)) for name in versioned] == [(None, 151)] * len(versioned)
    for name in (f"{staged[0]}x", f"shards/00000003/00000150-0002-{A}.safetensors", f"shards/00000003/notes-{A}.arrow",
                 f"initial/{A}.safetensors", "states/00000003.0/notes.txt", ""):  # fmt: skip
        assert (stage_of_name(name), version_of_name(name)) == (None, None)


def test_a_digest_is_32_hexadecimal_digits():
    """Nothing else becomes a file's name in the cache."""
    assert is_digest(A)
    for text in ("", A[1:], A + "a", A[1:] + "g", A[1:] + "\n", "/" + A[1:]):
        assert not is_digest(text)
