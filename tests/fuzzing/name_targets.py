"""Targets for names of objects, references to them, and settings in TOML."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.storage import refs
from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import ConfigError, CorruptObjectError
from penstock.storage.runs.rollups.names import Span, parse_rollup_name
from penstock.tasks.setup.config.loading import PRESETS_FOLDER, build_config, load_preset

from .json_targets import assert_in
from .mutators import mutate_json, mutate_text
from .target import Target

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import TrainConfig

A = "a" * 32
REFS = (
    refs.ShardRef(f"shards/00000003.2/00000150-0002-{A}.arrow", A, 10, 150, 2, 8),
    refs.StateRef(f"states/00000003/00000150-0002-{A}.safetensors", A, 10, 150, 2),
    refs.SnapshotRef(f"snapshots/attempt-1/00000151-{A}.safetensors", A, 10, 151),
    refs.Ref(f"checkpoints/00000003-{A}.safetensors", A, 10),
)
NAMES = (
    *(ref.name for ref in REFS),
    "choices/00000003/00000150.json",
    "orders/00000003.1/00000150.json",
    "commits/rollup-00000000-00000063.arrow",
)
KINDS = {6: refs.ShardRef, 5: refs.StateRef, 4: refs.SnapshotRef, 3: refs.Ref}
"""The class of a reference by the number of its fields."""
STAGED = {
    "shards": (refs.parse_shard_name, refs.shard_name),
    "states": (refs.parse_state_name, refs.state_name),
}


def ref_of(data: bytes) -> refs.Ref:
    value = parse_json(data)
    ref = KINDS.get(len(value) if isinstance(value, dict) else 0, refs.Ref).from_json(value)
    refs.check_ref(ref)
    return ref


def check_ref(ref: refs.Ref, data: bytes) -> None:
    assert_in(ref.to_json(), data)


def name_of(data: bytes) -> tuple[str, Any]:
    """Parse the name of any object."""
    name = data.decode("utf-8", "replace")
    kind = name.partition("/")[0]
    if kind == "commits":
        return name, parse_rollup_name(name)
    if kind == "choices":
        return name, refs.parse_choice_name(name)
    if kind == "orders":
        return name, refs.parse_order_name(name)
    ref = refs.ref_of_name(name)
    return name, STAGED[kind][0](name) if kind in STAGED else ref


def check_name(found: tuple[str, Any], data: bytes) -> None:
    """A name that was accepted is ASCII; the one that its fields compose is parsed as the same fields."""
    name, parsed = found
    assert parsed is None or name.isascii()
    if isinstance(parsed, Span):
        assert parse_rollup_name(parsed.name) == parsed
    elif isinstance(parsed, refs.StagedName):
        parse, compose = STAGED[name.partition("/")[0]]
        assert parse(compose(parsed.stage, parsed.attempt, parsed.round, parsed.tile, parsed.digest)) == parsed


def preset_of(data: bytes) -> TrainConfig:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        Path(file.name).write_bytes(data)
        return build_config({**load_preset(file.name), "name": "fuzzed"})


def check_preset(config: TrainConfig, data: bytes) -> None:
    assert build_config(json.loads(canonical_json(config.model_dump(mode="json")))) == config


NAME_TARGETS = (
    Target("name", name_of, tuple(map(str.encode, NAMES)), (CorruptObjectError,), check_name),
    Target("reference", ref_of, tuple(canonical_json(ref.to_json()) for ref in REFS), (CorruptObjectError, ValueError),
           check_ref, mutate_json),
    Target("preset", preset_of, tuple(path.read_bytes() for path in sorted(PRESETS_FOLDER.glob("*.toml"))),
           (ConfigError,), check_preset, mutate_text),
)  # fmt: skip
