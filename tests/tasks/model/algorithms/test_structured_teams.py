"""MAPPO and IPPO of agents with structured observations: an encoder for each leaf, masks, critics, and learning."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.storage.errors import ConfigError
from penstock.storage.shards.leaves import split_leaves
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.on_policy import IPPOSettings, MAPPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, Leaf, Spec, State, Trajectory

from ....support.algorithms.ppo_cases import random
from ....support.environments.seeing_teams import CHOICES, SEEING
from ....support.slow import slow_after

if TYPE_CHECKING:
    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

AGENTS, STEPS, ENVS, ROWS = 3, 4, 2, 5
LEAVES = (
    Leaf("arm.position", "numbers", "float32", (AGENTS, 2)),
    Leaf("camera", "image", "uint8", (AGENTS, 5, 6, 3)),
    Leaf("shift", "choice", "int64", (AGENTS,), (4,) * AGENTS),
    Leaf("large", "image", "uint8", (AGENTS, 36, 36)),
)
TEAM = EnvironmentSpec(
    "team",
    Spec("float32", (sum(leaf.width for leaf in LEAVES),), leaves=LEAVES),
    ActionSpec("discrete", n=CHOICES, shape=(AGENTS,)),
    None,
    None,
    agents=AGENTS,
)
POSITION, CAMERA, LARGE = slice(0, 2), slice(2, 92), slice(96, 96 + 36 * 36)
"""Places of leaves in what one agent observes."""


def made(*, central: bool = True, **settings: object) -> MAPPO:
    kind = MAPPOSettings if central else IPPOSettings
    return MAPPO(kind(network="leaves", features=4, hidden=(8,), **settings), TEAM)  # type: ignore[arg-type]


def seen(*lead: int, seed: int = 1) -> torch.Tensor:
    """Return observations with pixels, choices that are one-hot, and numbers."""
    drawn = torch.Generator().manual_seed(seed)
    parts = []
    for leaf in LEAVES:
        if leaf.kind == "choice":
            chosen = torch.randint(4, (*lead, AGENTS), generator=drawn)
            parts.append(torch.nn.functional.one_hot(chosen, 4).flatten(-2).float())
        elif leaf.kind == "image":
            parts.append(torch.randint(256, (*lead, leaf.width), generator=drawn).float())
        else:
            parts.append(torch.randn(*lead, leaf.width, generator=drawn))
    return torch.cat(parts, -1)


def posted(mappo: MAPPO, state: State) -> dict[str, torch.Tensor]:
    """Return the training rows of a round, in which the first environment's episode terminates."""
    observation = seen(STEPS + 1, ENVS)
    with torch.no_grad():
        noise = random(STEPS, ENVS, *mappo.noise.shape)
        acted = [mappo.act(state.params, None, observation[step], noise[step])[0] for step in range(STEPS)]
        columns = {name: torch.stack([rows[name] for rows in acted]) for name in mappo.rows}
        flags = torch.zeros(2, STEPS, ENVS, dtype=torch.uint8)
        flags[0, 1, 0] = 1
        columns |= {"observation": observation[:-1], "reward": random(STEPS, ENVS, AGENTS, seed=2)}
        columns |= {"terminated": flags[0], "truncated": flags[1]}
        after = torch.cat([observation[2, :1], observation[-1]])
        return mappo.post(state.params, Trajectory(columns, torch.tensor([2, 6, 7]), after))


@pytest.mark.parametrize("central", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_every_leaf_is_trained(central: bool, shared: bool):
    """Gradients of each loss reach every image's convolutions, and the weights of numbers, choices and features.

    There is one encoder for a leaf, whichever agents a critic sees.
    """
    mappo = made(central=central, shared_parameters=shared)
    state = mappo.init(1)
    batch = posted(mappo, state)
    stats = {name: float(value) for name, value in mappo.stats(batch).items()}
    for loss in mappo.losses:
        gradient, _ = minibatch_gradient(loss, state, batch, stats, STEPS * ENVS, STEPS * ENVS)
        place, encoders = 0, set()
        for name, value in state.params[loss.group].items():
            slope = gradient[place : place + value.numel()].view(value.shape)
            place += value.numel()
            if name.startswith("body."):
                encoders.add(name.split(".")[1])
            if name.startswith("body.") and name.endswith("weight"):
                assert slope.abs().max() > 0, f"{loss.name} does not train {name}"
            if name == "0.weight":
                # Numbers, choices and two images of every agent that the network sees, and the id of shared ones.
                all_seen = AGENTS if central and loss.name.startswith("value") else 1
                assert slope.shape[1] == all_seen * (2 + 4 + 2 * 4) + AGENTS * shared
                inputs = slope[:, : all_seen * 14].abs().amax(0).view(all_seen, 14)
                assert inputs[:, :2].all(), f"{loss.name} does not train numbers"
                assert inputs[:, 2:6].any(1).all(), f"{loss.name} does not train choices"
                assert inputs[:, 6:].unflatten(1, (2, 4)).any(-1).all(), f"{loss.name} does not train features"
        assert encoders == {"1", "3"}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("leaf", [POSITION, CAMERA, LARGE])
def test_agents_act_by_their_own_leaves_and_a_central_critic_sees_all(leaf: slice, shared: bool):
    """Changing a leaf of one agent changes no other agent's action; values of all in MAPPO, and its own in IPPO."""
    for central in (True, False):
        mappo = made(central=central, shared_parameters=shared)
        params = mappo.init(1).params
        observed, _ = TEAM.split(seen(ROWS))
        changed = observed.clone()
        changed[:, 1, leaf] = 5.0
        for kind, networks, only in (("policy", mappo._policies, True), ("value", mappo._critics, not central)):
            same = []
            for suffix, agents in mappo._shares:
                group = params[f"{kind}{suffix}"]
                found = [
                    networks.step(group, None, networks.inputs(group, each, agents))[0] for each in (observed, changed)
                ]
                same.append((found[0] - found[1]).abs().amax((0, 2)) < 1e-7)
            assert torch.cat(same).tolist() == [only, False, only]


@pytest.mark.parametrize("central", [True, False])
def test_agents_read_cells(central: bool):
    """Policies and critics have a kernel for each category of the leaf that the settings name."""
    mappo = made(central=central, cells={"camera": (256, 256, 256)})
    observed, _ = TEAM.split(seen(ROWS))
    for kind, networks in (("policy", mappo._policies), ("value", mappo._critics)):
        params = mappo.init(1).params[kind]
        assert params["body.1.0.weight"].shape[1] == 768
        assert networks.inputs(params, observed, range(AGENTS)).shape[:2] == (ROWS, AGENTS)


def test_what_an_agent_that_has_left_observes_changes_nothing():
    """Neither its own inputs nor the others'; all are zeros there, and its own but the id."""
    for central in (True, False):
        mappo = made(central=central)
        critic = mappo.init(1).params["value"]
        observed, _ = TEAM.split(seen(ROWS))
        junk, present = observed.clone(), torch.tensor([1.0, 0.0, 1.0]).expand(ROWS, AGENTS)
        junk[:, 1] = torch.nan
        found = [mappo._critics.inputs(critic, each, range(AGENTS), present) for each in (observed, junk)]
        assert torch.equal(*found)
        assert not found[0][:, 1, :-AGENTS].any()
        assert found[0][:, 1, -AGENTS:].tolist() == [[0, 1, 0]] * ROWS
        if central:
            width = (found[0].shape[-1] - AGENTS) // AGENTS
            assert not found[0][:, 0, width : 2 * width].any()
            assert found[0][:, 0, :width].any()


def settings(name: str, *, environment: dict[str, Any], **algorithm: Any) -> dict[str, Any]:
    return {
        "environment": {
            "id": SEEING,
            "structured": True,
            "num_envs": 16,
            "envs_per_tile": 16,
            "max_episode_steps": None,
            "settings": environment,
        },
        "algorithm": {"name": name, "network": "leaves", "features": 16, "hidden": [32], **algorithm},
        "schedule": {"round_steps": 24},
    }


def acted(context: RunContext, actor: TileActor, state: State, number: int) -> Trajectory:
    buffers = RoundBuffers(context, 0)
    groups = {name: state.params[name] for name in context.algorithm.actor_groups}
    end = actor.act_round(number, groups, buffers).end
    columns = {name: torch.from_numpy(array) for name, array in buffers.arrays.items()}
    return Trajectory(columns, torch.from_numpy(end.bootstrap_rows), torch.from_numpy(end.bootstrap_observation))


@pytest.mark.parametrize("name", ["mappo", "ippo"])
def test_masks_hold_and_shards_have_a_column_for_each_leaf(make_context: MakeContext, name: str):
    """The team refuses what its masks forbid; of an agent that has left, images are zeros and choices 0."""
    context = make_context(settings(name, environment={"masked": True, "leaving": True}))
    actor = TileActor(context, 0)
    actor.start()
    found = acted(context, actor, context.algorithm.init(1), 0)
    observation = found.columns["observation"].numpy()
    leaves = split_leaves("observation", context.columns["observation"], observation)
    masks = leaves["observation.action_mask"]
    there, chosen = masks.any(-1), found.columns["action"].numpy()
    assert masks.shape == (24, 16, AGENTS, CHOICES)
    assert np.take_along_axis(masks, chosen[..., None], -1)[..., 0][there].all()
    assert not there[..., 0].all()
    assert there[..., 1:].all()
    assert (leaves["observation.camera"].dtype, leaves["observation.shift"].dtype) == (np.uint8, np.int64)
    gone = ~there[1:] & ~there[:-1]  # the environment still shows something in the step in which it leaves
    assert gone.any()
    for leaf in ("camera", "shift", "arm.position"):
        assert not leaves[f"observation.{leaf}"][1:][gone].any()
    assert not leaves["observation.camera"][..., 2, :, :, :].any()  # a pilot has none
    actor.close()


@pytest.mark.parametrize("name", slow_after(1, ["mappo", "ippo"]))
def test_a_team_learns_what_only_its_pictures_show(make_context: MakeContext, name: str):
    """A guide is paid by its picture alone, a pilot by its shift; both share networks, and chance is 1/3."""
    torch.set_num_threads(1)
    learning = {"learning_rate": 5e-3, "discount": 0.1, "epochs": 8, "minibatches": 2, "team_reward": False}
    context = make_context(settings(name, environment={"members": "guide,pilot"}, **learning))
    algorithm = context.algorithm
    actor, state, rewards = TileActor(context, 0), algorithm.init(1), []
    actor.start()
    for number in range(14):
        found = acted(context, actor, state, number)
        rewards.append(found.columns["reward"].flatten(0, 1).mean(0).tolist())
        with torch.no_grad():
            batch = algorithm.post(state.params, found)
            stats = {key: float(value) for key, value in algorithm.stats(batch).items()}
        for places in algorithm.plan(torch.Generator().manual_seed(number), RoundWindow.of_round(24 * 16)):
            part = {key: column[places] for key, column in batch.items()}
            for loss in algorithm.losses:
                gradient, _ = minibatch_gradient(loss, state, part, stats, len(places))
                with torch.no_grad():
                    state = algorithm.update(state, loss, gradient)
    actor.close()
    assert rewards[0][0] < 0.45
    assert rewards[-1][0] > 0.8
    assert rewards[-1][1] > 0.8


@pytest.mark.parametrize(
    ("environment", "algorithm", "message"),
    [
        ({"id": "simple_spread_v3"}, {}, r"'leaves': simple_spread_v3 observes \[3, 18\], whose leaves are not known"),
        ({"id": SEEING}, {}, r"expected Tuple or Dict observations with environment\.structured = true"),
        ({"id": SEEING, "structured": True, "settings": {"other": True}}, {}, r"the leaf 'shift' of pilot is numbers"),
        ({"id": "simple_spread_v3", "structured": True}, {}, r"structured = True: simple_spread_v3 observes one array"),
    ],
)
def test_what_has_no_leaves_is_refused(environment: dict[str, Any], algorithm: dict[str, Any], message: str):
    """By name, before a run starts; the network needs the option, and the option leaves that agree."""
    config = build_config(
        {"environment": environment, "algorithm": {"name": "mappo", "network": "leaves", **algorithm}}
    )
    with pytest.raises(ConfigError, match=message):
        make_pool(config, 1).close()


def test_without_the_network_leaves_are_flat(make_context: MakeContext):
    """A perceptron gets the numbers of all leaves, so an option of the environment alone changes no algorithm."""
    context = make_context(settings("mappo", environment={}) | {"algorithm": {"name": "mappo", "hidden": [8]}})
    assert context.environment.policy_input.shape == (AGENTS, 2 + 108 + CHOICES)
    with closing(make_pool(context.config, 1)):
        params = context.algorithm.init(1).params["policy"]
    assert [name for name in params if name.startswith("body.")] == []
    assert params["0.weight"].shape == (8, 113 + AGENTS)


def test_normalised_observations_are_refused():
    """Pixels are scaled already."""
    with pytest.raises(ConfigError, match="network = 'leaves' takes pixels as they are"):
        build_config({"algorithm": {"name": "ippo", "network": "leaves", "normalize_observation": True}})
