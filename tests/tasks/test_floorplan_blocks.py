"""Blocks that settings name: which environment has which, and what is said of files that can't be taken."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from native.floorplan import BlockSpec, generate_block
from storage.errors import ConfigError
from tasks.config import TrainConfig, build_config
from tasks.environments import make_pool
from tasks.floorplan_blocks import with_digests

if TYPE_CHECKING:
    from pathlib import Path


def configured(*blocks: dict[str, Any]) -> TrainConfig:
    table = {"id": "Floorplan-v0", "num_envs": 4, "envs_per_tile": 4, "blocks": blocks}
    return build_config({"environment": table})


def made(folder: Path, **spec: Any) -> dict[str, str]:
    netlist, placement = generate_block(folder, BlockSpec(hard_macros=3, soft_macros=4, ports=6, **spec))
    return {"netlist": str(netlist), "placement": str(placement)}


def test_a_run_needs_no_file():
    """Without blocks, one is made up; its digest is written down, and is the same in every process."""
    config = with_digests(configured())
    assert [block.digest for block in config.environment.blocks] == ["9607cb1c917d326f30aafe59d8096dcc"]
    with closing(make_pool(config, 2)) as pool:
        assert pool.environment["action"]["n"] == 256


def test_environments_take_turns_with_blocks(tmp_path):
    """Environment i has block i modulo their number, wherever the pool is made."""
    config = with_digests(configured(made(tmp_path / "a"), made(tmp_path / "b", seed=1)))
    with closing(make_pool(config, 4)) as pool:
        observation, _ = pool.reset(seed=0)
        assert observation[:, 256].tolist() == [0, 1, 0, 1]


def test_what_cannot_be_taken_is_one_line(tmp_path):
    """A missing or malformed file, other bytes than a run began with, and unlike grids are said by the file's name."""
    good, coarse = made(tmp_path / "good"), made(tmp_path / "coarse", columns=12, hard_share=0.2)
    (tmp_path / "bad.pb.txt").write_text("node }")
    config = with_digests(configured(good))
    (tmp_path / "good/initial.plc").write_text((tmp_path / "good/initial.plc").read_text() + "# more\n")
    for wrong, said in (
        (configured({"netlist": "absent.pb.txt"}), "absent.pb.txt: cannot be read"),
        (configured({"netlist": str(tmp_path / "bad.pb.txt")}), "bad.pb.txt:1: found '}'"),
        (configured(good, coarse), "found a grid of 12 x 16 cells, expected 16 x 16"),
        (config, "good/initial.plc: found bytes with the digest"),
    ):
        with pytest.raises(ConfigError, match=r"^environment\.blocks: ") as caught:
            make_pool(wrong, 1)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
