"""Grids of cells among leaves are refused before a run starts where the leaf does not suit, and old runs have none."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.preflight import check_acting

ID = "test/Grids-v0"
ALGORITHMS = ("ppo", "impala", "dqn", "qr_dqn", "sac", "td3", "mappo", "ippo")


class Grids(gymnasium.Env[Any, Any]):
    """Shows a view of bytes that are 0 to 7, a board whose bounds are 0 and 4, and squares of 3 and 2 choices."""

    observation_space = Dict(
        {
            "board": Box(0, 4, (3, 4), np.int64),
            "squares": MultiDiscrete(np.full((3, 3, 2), [3, 2])),
            "view": Box(0, 255, (5, 5, 2), np.uint8),
            "weights": Box(-1, 1, (5, 5), np.float32),
        }
    )
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        zeros = {name: np.zeros(space.shape, space.dtype) for name, space in self.observation_space.items()}
        view = zeros["view"] + np.arange(5, dtype=np.uint8)[:, None, None]
        view[..., 1] += 3
        return {**zeros, "view": view}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


gymnasium.register(ID, Grids, max_episode_steps=9)


def check(cells: dict[str, Any]) -> str:
    environment = {"id": ID, "structured": True, "num_envs": 4, "envs_per_tile": 4}
    return check_acting(build_config({"environment": environment, "algorithm": {"network": "leaves", "cells": cells}}))


def test_bytes_integers_and_choices_are_taken():
    """Bounds of the type say nothing, and the first observation is within the categories."""
    assert check({"view": [5, 8], "board": [5], "squares": [3, 2]}) == ""


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            {"vew": [5, 8]},
            r"cells\.vew = \[5, 8\]: test/Grids-v0 has no leaf 'vew', expected one of board, squares, vi",
        ),
        ({"weights": [2]}, r"has the leaf 'weights' of float32 \[5, 5\], expected whole numbers \[height, width\]"),
        ({"view": [8]}, r"the leaf 'view' of uint8 \[5, 5, 2\], expected the number of .* each of its 2 channel\(s\)"),
        ({"squares": [3, 3]}, r"the leaf 'squares' of int64 \[3, 3, 2\], expected the choices .*, \[\[3\], \[2\]\]"),
        ({"board": [4]}, r"channel 0 of the leaf 'board', test/Grids-v0 has numbers from 0 to 4 .* from 0 to 3; corr"),
        ({"view": [5, 7]}, r"channel 1 of the leaf 'view', test/Grids-v0 has numbers from 0 to 7 .* from 0 to 6; corr"),
    ],
)
def test_what_does_not_suit_is_refused(cells: dict[str, Any], said: str):
    """With the leaf, what was found and what was expected: names, types, channels, choices, bounds and numbers."""
    with pytest.raises(ConfigError, match=said):
        check(cells)


@pytest.mark.parametrize("wrong", [{"view": []}, {"view": [0]}, {"view": [257]}, {"view": 5}])
def test_numbers_of_categories_are_from_1_to_256(wrong: dict[str, Any]):
    """A list with one for each channel."""
    with pytest.raises(ConfigError, match=r"algorithm\.cells\.view"):
        build_config({"algorithm": {"network": "leaves", "cells": wrong}})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_runs_without_cells_keep_their_identity(name: str):
    """The setting is part of it once it names a leaf."""
    plain = {"name": name, "network": "leaves"}
    assert "cells" not in build_config({"algorithm": plain}).identity()["algorithm"]
    named = build_config({"algorithm": {**plain, "cells": {"view": [5, 8]}}}).identity()["algorithm"]
    assert named["cells"] == {"view": [5, 8]}
