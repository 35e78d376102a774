"""Environments get the blocks that settings name, and errors name files that can't be used."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from penstock.native.floorplan import BlockSpec, generate_block
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.floorplan_blocks import require_whole_episodes, with_digests
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.tasks.setup.config.run import TrainConfig


def configured(*blocks: dict[str, Any], **settings: Any) -> TrainConfig:
    table = {"id": "Floorplan-v0", "num_envs": 4, "envs_per_tile": 4, "blocks": blocks, **settings}
    return build_config({"environment": table})


def made(folder: Path, **spec: Any) -> dict[str, str]:
    netlist, placement = generate_block(folder, BlockSpec(hard_macros=3, soft_macros=4, ports=6, **spec))
    return {"netlist": str(netlist), "placement": str(placement)}


def test_a_run_needs_no_file():
    """Without blocks, a synthetic one is used; its digest is recorded, and is the same in every process."""
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


def test_unusable_files_are_one_line_errors(tmp_path):
    """A missing, malformed or changed file, and unlike grids, are errors that name the file."""
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


def test_a_time_limit_that_leaves_macros_is_refused():
    """Each episode would end with macros to place, and with the best return that there is: that of none at all."""
    with pytest.raises(
        ConfigError, match=r"max_episode_steps = 6: each step places one hard macro, and a block has 12"
    ):
        require_whole_episodes(configured(max_episode_steps=6).environment)
    require_whole_episodes(configured(max_episode_steps=12).environment)
