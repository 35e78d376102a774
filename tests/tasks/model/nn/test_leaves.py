"""The network of structured observations: convolutions for each image, and everything else as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.nn.layers import nature, part, small
from penstock.tasks.model.nn.network import Network
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.off_policy import DQNSettings, SACSettings
from penstock.tasks.setup.config.on_policy import PPOSettings
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


def test_without_images_it_is_the_perceptron():
    """Same parameters and outputs as `mlp`."""
    seen = Spec("float32", (6,), leaves=(LEAVES[0], LEAVES[2]))
    ours, plain = network(observation=seen), network(observation=seen, name="mlp")
    params = ours.init(3, 1.0, torch.Generator().manual_seed(1))
    expected = plain.init(3, 1.0, torch.Generator().manual_seed(1))
    assert all(torch.equal(params[name], value) for name, value in expected.items())
    rows = random(ROWS, 6)
    assert torch.equal(ours.step(params, None, rows)[0], plain.step(expected, None, rows)[0])


LEARNERS = [
    pytest.param(PPO, PPOSettings(), CHOICES, id="ppo"),
    pytest.param(PPO, PPOSettings(shared_network=True), VECTORS, id="shared ppo, vectors"),
    pytest.param(DQN, DQNSettings(), CHOICES, id="dqn"),
    pytest.param(SAC, SACSettings(), VECTORS, id="sac"),
]


@pytest.mark.parametrize(("kind", "settings", "spaces"), LEARNERS)
def test_every_encoder_is_trained(kind: Any, settings: Any, spaces: EnvironmentSpec):
    """Gradients of each loss reach the convolutions of every image."""
    leaves = (*LEAVES[:3], LEAVES[4])
    seen = Spec("float32", (sum(leaf.width for leaf in leaves),), leaves=leaves)
    environment = EnvironmentSpec("structured", seen, spaces.action, None, None)
    changes = {"network": "leaves", "features": FEATURES, "hidden": (6,)}
    algorithm = kind(settings.model_copy(update=changes), environment)
    state = algorithm.init(1)
    steps, envs = 3, 2
    observed = torch.rand((steps + 1, envs, seen.shape[0]), generator=torch.Generator().manual_seed(2)) * 255
    acted = [
        algorithm.act(state.params, None, observed[step], random(envs, *algorithm.noise.shape)) for step in (0, 1, 2)
    ]
    columns = {name: torch.stack([rows[name] for rows, _ in acted]).detach() for name in algorithm.rows}
    flags = torch.zeros(steps, envs, dtype=torch.uint8)
    columns |= {"observation": observed[:-1], "reward": random(steps, envs), "terminated": flags, "truncated": flags}
    with torch.no_grad():
        trajectory = Trajectory(columns, torch.tensor([4, 5]), observed[-1])
        rows = {**algorithm.post(state.params, trajectory), "weight": torch.ones(steps * envs)}
    stats = {name: float(value) for name, value in algorithm.stats(rows).items()} | {"count": 6.0}
    for loss in algorithm.losses:
        noise = None if loss.noise is None else random(steps * envs, *loss.noise.shape)
        gradient, _ = minibatch_gradient(loss, state, rows, stats, 6, 6, noise)
        place, encoders = 0, set()
        for name, value in state.params[loss.group].items():
            slope = gradient[place : place + value.numel()]
            place += value.numel()
            if "body." in name and name.endswith("weight"):
                encoders.add(name.split("body.")[1].split(".")[0])
                assert slope.abs().max() > 0, f"{loss.name} does not train {name}"
        assert encoders <= {"1", "3"}
        assert encoders or loss.name == "temperature"


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
