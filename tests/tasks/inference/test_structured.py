"""A policy takes the observations of a Dict environment as the environment gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces.utils import flatten

from penstock.tasks.inference.export import export_policy

from ...support.environments.seeing_teams import SEEING, Seeing
from ...support.environments.structured import ID, Explorer
from .support import commit, policy_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..conftest import MakeContext


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array:UserWarning")
@pytest.mark.parametrize("masked", ["", "observation"])
def test_an_environments_own_observation_gives_the_action_of_its_array(make_context: MakeContext, masked: str):
    """One, a list of them, and their arrays; forbidden choices are not taken."""
    environment = {"id": ID, "structured": True, "settings": {"masked": masked}, "max_episode_steps": None}
    if masked:
        environment["action_mask"] = masked
    context = make_context({"environment": environment, "algorithm": {"network": "leaves", "features": 4}})
    commit(context, None)
    policy, theirs = policy_of(context), Explorer(masked=masked)
    seen = [theirs.reset(seed=seed)[0] for seed in range(8)]
    arrays = policy.as_rows(seen)[0]
    assert arrays.dtype == np.float32
    width = 3 if masked else 0
    plain = Explorer().observation_space
    for array, each in zip(arrays, seen, strict=True):
        assert np.array_equal(array[width:], flatten(plain, each))
        if masked:
            assert np.array_equal(array[:3], each["action_mask"])
    actions = policy.act(seen)
    assert np.array_equal(actions, policy.act(arrays))
    assert [int(policy.act(each)) for each in seen] == actions.tolist()
    if masked:
        assert all(each["action_mask"][action] for each, action in zip(seen, actions, strict=True))
    with pytest.raises(
        ValueError, match=r"an observation that is not in Dict.*correct its keys, types, shapes or bounds"
    ):
        policy.act({**seen[0], "shift": 9})
    with pytest.raises(ValueError, match="an observation that is not in Dict"):
        policy.act([seen[0], {}])
    listed = {**seen[0], "camera": seen[0]["camera"].tolist()}
    assert policy.act(listed) == policy.act(seen[0])
    with pytest.raises(ValueError, match=r"a fraction where Dict.* has whole numbers"):  # it would act on black images
        policy.act({**seen[0], "camera": (seen[0]["camera"] / 256).tolist()})


def test_a_leaf_with_a_number_that_is_not_finite_is_named(make_context: MakeContext):
    """With the row of the list, or of the array, in which it is the first."""
    environment = {"id": ID, "structured": True, "max_episode_steps": None}
    context = make_context({"environment": environment, "algorithm": {"network": "leaves", "features": 4}})
    policy, theirs = policy_of(context), Explorer()
    seen = [theirs.reset(seed=seed)[0] for seed in range(3)]
    arrays = policy.as_rows(seen)[0]
    policy.act(arrays)
    first, *_, last = policy.environment.observation.leaves
    arrays[2, -1] = np.nan
    with pytest.raises(ValueError, match=rf"with nan \(row 2, number {last.width - 1} of leaf '{last.name}'\)"):
        policy.act(arrays)
    arrays[1, 0] = np.inf
    with pytest.raises(ValueError, match=rf"with inf \(row 1, number 0 of leaf '{first.name}'\)"):
        policy.act(arrays)


def test_minigrids_own_observation_without_its_words_gives_the_action_of_its_array(make_context: MakeContext):
    """View and direction, as MiniGrid gives them; the run's pool observes no more."""
    pytest.importorskip("minigrid", reason="comes with penstock-rl[minigrid]")
    environment = {"id": "minigrid/MiniGrid-DoorKey-5x5-v0", "structured": True, "max_episode_steps": None}
    context = make_context({"environment": environment, "algorithm": {"network": "leaves", "features": 4}})
    commit(context, None)
    policy, theirs = policy_of(context), gymnasium.make("MiniGrid-DoorKey-5x5-v0")
    own = [theirs.reset(seed=seed)[0] for seed in range(4)]
    seen = [{name: each[name] for name in ("image", "direction")} for each in own]
    for array, each in zip(policy.as_rows(seen)[0], seen, strict=True):
        assert np.array_equal(array, [*np.eye(4)[each["direction"]], *each["image"].ravel()])
    assert np.array_equal(policy.act(seen), policy.act(policy.as_rows(seen)[0]))
    with pytest.raises(ValueError, match="an observation that is not in Dict"):
        policy.act(own[0])


@pytest.mark.parametrize("masked", [False, True])
def test_what_a_team_observes_gives_the_actions_of_its_array(make_context: MakeContext, masked: bool):
    """One dictionary by the agent's name, a list of them, and their arrays; forbidden choices are not taken."""
    environment = {"id": SEEING, "structured": True, "settings": {"masked": masked}, "max_episode_steps": None}
    context = make_context(
        {"environment": environment, "algorithm": {"name": "mappo", "network": "leaves", "features": 4}}
    )
    commit(context, None)
    policy, theirs = policy_of(context), Seeing(masked=masked)
    seen = [theirs.reset(seed=seed)[0] for seed in range(8)]
    arrays = policy.as_rows(seen)[0]
    assert arrays.shape == (8, *policy.environment.observation.shape)
    actions = policy.act(seen)
    assert np.array_equal(actions, policy.act(arrays))
    assert [policy.act(each).tolist() for each in seen] == actions.tolist()
    if masked:
        for each, chosen in zip(seen, actions, strict=True):
            assert all(agent["action_mask"][one] for agent, one in zip(each.values(), chosen, strict=True))
    with pytest.raises(ValueError, match="an observation that is not in Dict"):
        policy.act({"guide": seen[0]["guide"]})


def test_a_choice_alone_is_taken_as_it_is(make_context: MakeContext):
    """An integer stands for its one-hot array, which is still taken, also with Gymnasium's own type."""
    for structured in (True, False):
        environment = {"id": "FrozenLake-v1", "structured": structured, "max_episode_steps": 100}
        context = make_context({"environment": environment}, name=f"lake-{int(structured)}")
        commit(context, None)
        policy = policy_of(context)
        rows = np.eye(16, dtype=np.float32)
        actions = policy.act(rows).tolist()
        assert [int(policy.act(cell)) for cell in range(16)] == actions
        # Sixteen cells are as many numbers as a row has.
        assert policy.act(list(range(16))).tolist() == policy.act(np.arange(16)).tolist() == actions
        assert policy.act(np.array([3, 5])).tolist() == [actions[3], actions[5]]
        assert int(policy.act(np.array(7))) == actions[7]
        assert policy.act(rows.tolist()).tolist() == actions
        assert policy.act(rows[4].tolist()) == policy.act(rows[4]) == actions[4]
        with pytest.raises(ValueError, match=r"16 whole numbers in an array: choices of .*, or one choice"):
            policy.act(np.eye(16, dtype=np.int64)[4])
        for wrong in ([3, 16], [-1], np.array([16]), 16):
            with pytest.raises(ValueError, match="an observation"):
                policy.act(wrong)


@pytest.mark.parametrize("cells", [{}, {"camera": [256] * 3}])
def test_it_is_exported_with_its_encoders(make_context: MakeContext, tmp_path: Path, cells: dict[str, list[int]]):
    """The file takes the flat array, and acts as the policy does, row by row too."""
    environment = {"id": ID, "structured": True, "max_episode_steps": None}
    algorithm = {"network": "leaves", "features": 4, "cells": cells}
    context = make_context({"environment": environment, "algorithm": algorithm})
    commit(context, None)
    policy, theirs = policy_of(context), Explorer()
    rows = policy.as_rows([theirs.reset(seed=seed)[0] for seed in range(8)])[0]
    about = export_policy(policy, tmp_path / "explorer.pt2", "torch")
    assert [leaf["name"] for leaf in about["inputs"][0]["leaves"]][:2] == ["arm.position", "camera"]
    program = torch.export.load(tmp_path / "explorer.pt2").module()
    (action,) = program(torch.from_numpy(rows), torch.zeros(8, 3))
    assert action.tolist() == policy.act(rows).tolist() == [int(policy.act(row)) for row in rows]
