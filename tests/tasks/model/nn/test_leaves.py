"""The network of structured observations: convolutions for each image and grid, and everything else as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.algorithms.iql import IQL
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.algorithms.td3_bc import TD3BC
from penstock.tasks.model.nn.layers import nature, part, small
from penstock.tasks.model.nn.leaves import packed_leaves, unpacked_leaves
from penstock.tasks.model.nn.network import Network
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, SACSettings, TD3Settings
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings, TD3BCSettings
from penstock.tasks.setup.config.on_policy import IMPALASettings, PPOSettings
from penstock.tasks.specs import EnvironmentSpec, Leaf, Spec, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, VECTORS, random
from ....support.environments.structured import ID

LEAVES = (
    Leaf("position", "numbers", "float32", (2,)),
    Leaf("camera", "image", "uint8", (40, 36, 3)),
    Leaf("shift", "choice", "int64", (), (4,)),
    Leaf("map", "image", "uint8", (3, 3, 7)),
    Leaf("thumb", "image", "uint8", (5, 6)),
)
SEEN = Spec("float32", (sum(leaf.width for leaf in LEAVES),), leaves=LEAVES)
ROWS, FEATURES = 6, 8


def observations(rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randint(256, (rows, SEEN.shape[0]), generator=generator).float()
    pixels[:, :2] = torch.randn(rows, 2, generator=generator)
    return pixels


def network(**changed: Any) -> Network:
    return Network(**{"name": "leaves", "observation": SEEN, "features": FEATURES, "hidden": (5,), **changed})


def test_each_image_has_convolutions_by_its_size():
    """Channels last, none, or first where that axis is shorter; numbers and choices come first, unchanged."""
    made = network()
    params = made.init(3, 1.0, torch.Generator().manual_seed(1))
    rows = observations(ROWS)
    found = made.encoded(params, made.prepared(rows))
    assert found.shape == (ROWS, made.encoded_size) == (ROWS, 2 + 4 + 3 * FEATURES)
    places = rows.split([leaf.width for leaf in LEAVES], 1)
    camera, thumb = places[1].view(-1, 40, 36, 3).movedim(-1, 1), places[4].view(-1, 1, 5, 6)
    expected = [
        places[0],
        places[2],
        nature(part(params, "body.1."), camera),
        small(part(params, "body.3."), places[3].view(-1, 3, 3, 7) / 255),
        small(part(params, "body.4."), thumb / 255),
    ]
    torch.testing.assert_close(found, torch.cat(expected, 1))


def test_grids_of_cells_have_a_plane_for_each_category():
    """Bytes, integers and choices by name; a number that is no category is in no plane, and others stay pixels."""
    leaves = (
        Leaf("view", "image", "uint8", (4, 5, 2)),
        Leaf("squares", "choice", "int64", (3, 4, 1), (3,) * 12),
        Leaf("map", "image", "uint8", (3, 3, 7)),
        Leaf("board", "numbers", "int32", (3, 3)),
    )
    cells = {"view": (6, 3), "squares": (3,), "board": (2,)}
    seen = Spec("float32", (sum(leaf.width for leaf in leaves),), leaves=leaves)
    made, generator = network(observation=seen, cells=cells), torch.Generator().manual_seed(3)
    params = made.init(3, 1.0, generator)
    view = torch.cat([torch.randint(n, (ROWS, 4, 5, 1), generator=generator) for n in (6, 3)], -1)
    squares = one_hot(torch.randint(3, (ROWS, 3, 4), generator=generator), 3)
    pixels, board = (torch.randint(n, (ROWS, *shape)) for n, shape in ((256, (3, 3, 7)), (2, (3, 3))))
    planes = torch.cat([one_hot(view[..., 0], 6), one_hot(view[..., 1], 3)], -1)
    view[0, 0, 0], planes[0, 0, 0] = 7, 0
    rows = torch.cat([leaf.flatten(1) for leaf in (view, squares, pixels, board)], 1).float()
    grids = {
        "0": planes.float(),
        "1": squares.float(),
        "2": pixels.movedim(1, -1) / 255,
        "3": one_hot(board, 2).float(),
    }
    expected = [small(part(params, f"body.{place}."), grid.movedim(-1, 1)) for place, grid in grids.items()]
    found = made.encoded(params, made.prepared(rows))
    assert made.encoded_size == 4 * FEATURES
    torch.testing.assert_close(found, torch.cat(expected, 1))


def test_without_images_it_is_the_perceptron():
    """Same parameters and outputs as `mlp`."""
    seen = Spec("float32", (6,), leaves=(LEAVES[0], LEAVES[2]))
    ours, plain = network(observation=seen), network(observation=seen, name="mlp")
    params = ours.init(3, 1.0, torch.Generator().manual_seed(1))
    expected = plain.init(3, 1.0, torch.Generator().manual_seed(1))
    assert all(torch.equal(params[name], value) for name, value in expected.items())
    rows = random(ROWS, 6)
    assert torch.equal(ours.step(params, None, rows)[0], plain.step(expected, None, rows)[0])


def test_packed_rows_are_bytes_and_unpack_to_the_same_bits():
    """Four bytes a number, one a pixel; also of a single row that begins where no float may, and without numbers."""
    rows = observations(ROWS)
    packed = packed_leaves(LEAVES, rows)
    pixels = 40 * 36 * 3 + 3 * 3 * 7 + 5 * 6
    assert (packed.dtype, packed.shape) == (torch.uint8, (ROWS, 4 * (2 + 4) + pixels))
    assert packed.shape[1] % 4
    assert unpacked_leaves(LEAVES, packed).numpy().tobytes() == rows.numpy().tobytes()
    assert torch.equal(unpacked_leaves(LEAVES, packed[1:2]), rows[1:2])
    images = LEAVES[3:]
    seen = rows[:, -sum(leaf.width for leaf in images) :]
    assert packed_leaves(images, seen).shape == seen.shape
    assert torch.equal(unpacked_leaves(images, packed_leaves(images, seen)), seen)
    assert packed_leaves(LEAVES[:1], rows[:, :2]).dtype == torch.float32
    made = network()
    params = made.init(3, 1.0, torch.Generator().manual_seed(1))
    assert torch.equal(made.encoded(params, made.packed(rows)), made.encoded(params, made.prepared(rows)))


LEARNERS = [
    pytest.param(PPO, PPOSettings(), CHOICES, id="ppo"),
    pytest.param(PPO, PPOSettings(shared_network=True), VECTORS, id="shared ppo, vectors"),
    pytest.param(DQN, DQNSettings(), CHOICES, id="dqn"),
    pytest.param(SAC, SACSettings(), VECTORS, id="sac"),
]
STEPS, ENVS = 3, 2
SEVERAL = (*LEAVES[:3], LEAVES[4], Leaf("grid", "numbers", "uint8", (3, 4)))
CHANGES = {"network": "leaves", "features": FEATURES, "hidden": (6,), "cells": {"grid": (256,)}}


def made_of(kind: Any, settings: Any, spaces: EnvironmentSpec) -> Any:
    seen = Spec("float32", (sum(leaf.width for leaf in SEVERAL),), leaves=SEVERAL)
    environment = EnvironmentSpec("structured", seen, spaces.action, None, None)
    return kind(settings.model_copy(update=CHANGES), environment)


def rows_of(algorithm: Any, state: Any) -> dict[str, torch.Tensor]:
    """Make the training rows of a round that the algorithm acts."""
    generator = torch.Generator().manual_seed(2)
    shape = (STEPS + 1, ENVS, *algorithm.environment.observation.shape)
    observed = torch.randint(256, shape, generator=generator).float()
    acted = [
        algorithm.act(state.params, None, observed[step], random(ENVS, *algorithm.noise.shape)) for step in range(STEPS)
    ]
    columns = {name: torch.stack([rows[name] for rows, _ in acted]).detach() for name in algorithm.rows}
    flags = torch.zeros(STEPS, ENVS, dtype=torch.uint8)
    columns |= {"observation": observed[:-1], "reward": random(STEPS, ENVS), "terminated": flags, "truncated": flags}
    with torch.no_grad():
        trajectory = Trajectory(columns, torch.tensor([4, 5]), observed[-1])
        return {**algorithm.post(state.params, trajectory), "weight": torch.ones(STEPS * ENVS)}


@pytest.mark.parametrize(("kind", "settings", "spaces"), LEARNERS)
def test_every_encoder_is_trained(kind: Any, settings: Any, spaces: EnvironmentSpec):
    """Gradients of each loss reach the convolutions of every image and grid."""
    algorithm = made_of(kind, settings, spaces)
    state = algorithm.init(1)
    rows = rows_of(algorithm, state)
    stats = {name: float(value) for name, value in algorithm.stats(rows).items()} | {"count": 6.0}
    for loss in algorithm.losses:
        noise = None if loss.noise is None else random(STEPS * ENVS, *loss.noise.shape)
        gradient, _ = minibatch_gradient(loss, state, rows, stats, 6, 6, noise)
        place, encoders = 0, set()
        for name, value in state.params[loss.group].items():
            slope = gradient[place : place + value.numel()]
            place += value.numel()
            if "body." in name and name.endswith("weight"):
                encoders.add(name.split("body.")[1].split(".")[0])
                assert slope.abs().max() > 0, f"{loss.name} does not train {name}"
        assert encoders == (set() if loss.name == "temperature" else {"1", "3", "4"})


@pytest.mark.parametrize(
    ("kind", "settings", "spaces"),
    [
        *LEARNERS,
        pytest.param(IMPALA, IMPALASettings(), CHOICES, id="impala"),
        pytest.param(QRDQN, QRDQNSettings(), CHOICES, id="qr_dqn"),
        pytest.param(TD3BC, TD3BCSettings(normalize_observation=False), VECTORS, id="td3_bc"),
        pytest.param(BehaviourCloning, BehaviourCloningSettings(), CHOICES, id="behaviour_cloning"),
    ],
)
def test_every_algorithm_reads_cells(kind: Any, settings: Any, spaces: EnvironmentSpec):
    """Each network has a kernel for each category."""
    kernels = [
        value.shape[1]
        for group in made_of(kind, settings, spaces).init(1).params.values()
        for name, value in group.items()
        if "body.4." in name and value.dim() == 4
    ]
    assert kernels
    assert set(kernels) == {256}


OFF_POLICY = [
    pytest.param(DQN, DQNSettings(), CHOICES, id="dqn"),
    pytest.param(QRDQN, QRDQNSettings(), CHOICES, id="qr_dqn"),
    pytest.param(QRDQN, QRDQNSettings(noisy_scale=0.5), CHOICES, id="noisy qr_dqn"),
    pytest.param(SAC, SACSettings(), VECTORS, id="sac"),
    pytest.param(TD3, TD3Settings(), VECTORS, id="td3"),
    pytest.param(TD3BC, TD3BCSettings(normalize_observation=False), VECTORS, id="td3_bc"),
    pytest.param(IQL, IQLSettings(), CHOICES, id="iql"),
    pytest.param(BehaviourCloning, BehaviourCloningSettings(), CHOICES, id="cloning"),
]


@pytest.mark.parametrize(("kind", "settings", "spaces"), OFF_POLICY)
def test_rows_of_bytes_train_as_rows_of_floats_did(kind: Any, settings: Any, spaces: EnvironmentSpec):
    """Rows hold pixels as bytes; gradients, outputs and parameters of several updates are the same bits."""
    algorithm = made_of(kind, settings, spaces)
    states = algorithm.init(1), algorithm.init(1)
    rows = rows_of(algorithm, states[0])
    leaves = algorithm.environment.observation.leaves
    floats = {
        name: unpacked_leaves(leaves, column) if column.dtype == torch.uint8 else column
        for name, column in rows.items()
    }
    changed = [name for name in rows if rows[name].dtype != floats[name].dtype]
    assert changed[:1] == ["observation"]
    assert set(changed[1:]) <= {"following", "next_observation"}
    assert (len(changed) == 1) == (kind is BehaviourCloning)
    for name in changed:
        assert floats[name].nbytes == 4 * floats[name].shape[1] * STEPS * ENVS
        assert rows[name].nbytes < 0.27 * floats[name].nbytes
    for turn in range(3):
        for loss in algorithm.losses:
            noise = None if loss.noise is None else random(STEPS * ENVS, *loss.noise.shape, seed=turn)
            found = [
                minibatch_gradient(loss, state, each, {"count": 6.0}, 6, 6, noise)
                for state, each in zip(states, (rows, floats), strict=True)
            ]
            assert found[0][0].numpy().tobytes() == found[1][0].numpy().tobytes(), loss.name
            assert found[0][1].keys() == found[1][1].keys()
            for state, (gradient, _) in zip(states, found, strict=True):
                algorithm.update(state, loss, gradient)
    for group, params in states[0].params.items():
        assert params.flat.detach().numpy().tobytes() == states[1].params[group].flat.detach().numpy().tobytes()


@pytest.mark.parametrize(
    ("environment", "algorithm", "message"),
    [
        ({"id": "CartPole-v1"}, {}, r"'leaves': CartPole-v1 observes \[4\], whose leaves are not known"),
        ({"id": ID}, {"name": "dqn"}, r"expected Tuple or Dict observations with environment\.structured = true"),
        ({"id": ID, "structured": True}, {"network": "nature"}, r"observes \[258\], expected images .*; choose leaves"),
        ({"id": "CartPole-v1", "structured": True}, {}, r"structured = True: CartPole-v1 observes one array"),
    ],
)
def test_what_has_no_leaves_is_refused(environment: dict[str, Any], algorithm: dict[str, Any], message: str):
    """The network needs the option, and the option an environment with parts."""
    config = build_config({"environment": environment, "algorithm": {"network": "leaves", **algorithm}})
    with pytest.raises(ConfigError, match=message):
        make_pool(config, 1)


def test_normalised_observations_are_refused():
    """Pixels are scaled already."""
    with pytest.raises(ConfigError, match="network = 'leaves' takes pixels as they are"):
        build_config({"algorithm": {"network": "leaves", "normalize_observation": True}})
