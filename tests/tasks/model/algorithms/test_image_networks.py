"""DQN, IQL, behaviour cloning and SAC on images: rows are bytes, and losses those of a perceptron over features."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import Tensor

from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.iql import IQL
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.nn.layers import part
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.algorithm_base import check_images, misread_images
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, SACSettings, TD3Settings
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings, TD3BCSettings
from penstock.tasks.setup.config.on_policy import IMPALASettings, PPOSettings
from penstock.tasks.specs import EnvironmentSpec, LossInputs, ParameterGroup, Spec, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, VECTORS, random

if TYPE_CHECKING:
    from penstock.tasks.model.algorithms.contract import Algorithm

STEPS, ENVS, FEATURES = 5, 3, 7
SHAPES = {"nature": (2, 36, 36), "residual": (2, 9, 8), "small": (9, 8, 2), "lines": (6, 7, 2)}
MASKS = EnvironmentSpec(
    "board", Spec("uint8", (2 + 9 * 8 * 2,)), CHOICES.action, None, None, unmasked_observation=Spec("uint8", (9, 8, 2))
)
KINDS: dict[str, tuple[Any, Any, EnvironmentSpec]] = {
    "plain dqn": (DQN, DQNSettings(double=False, dueling=False), CHOICES),
    "double and dueling dqn": (DQN, DQNSettings(return_steps=3, priority_exponent=0.6, huber=True), CHOICES),
    "iql, choices": (IQL, IQLSettings(), CHOICES),
    "iql, vectors": (IQL, IQLSettings(), VECTORS),
    "cloning, choices": (BehaviourCloning, BehaviourCloningSettings(), CHOICES),
    "cloning, vectors": (BehaviourCloning, BehaviourCloningSettings(), VECTORS),
    "sac": (SAC, SACSettings(), VECTORS),
}
BODIES = ("body.", "first/body.", "second/body.", "first.body.", "second.body.", "value/body.")
"""Prefixes of the names of encoders, in parameters and targets."""


def made(kind: str, network: str, environment: EnvironmentSpec | None = None) -> Any:
    algorithm, settings, spaces = KINDS[kind]
    settings = settings.model_copy(update={"network": network, "features": FEATURES, "hidden": (6,)})
    seen = EnvironmentSpec("images", Spec("uint8", SHAPES[network]), spaces.action, None, None)
    return algorithm(settings, environment or seen)


def played(algorithm: Any, state: State) -> Trajectory:
    """A round of one tile, in which an episode terminates and another is truncated."""
    generator = torch.Generator().manual_seed(3)
    shape = algorithm.environment.observation.shape
    seen = torch.randint(2, (STEPS + 1, ENVS, *shape), generator=generator, dtype=torch.uint8)
    if algorithm.environment.unmasked_observation:
        seen[..., :2] = 1
    rows = []
    for step in range(STEPS):
        noise = random(ENVS, *algorithm.noise.shape, seed=step)
        acted, carry = algorithm.act(state.params, None, seen[step], noise)
        assert carry is None
        rows.append(acted)
    columns = {name: torch.stack([row[name] for row in rows]).detach() for name in algorithm.rows}
    flags = torch.zeros(2, STEPS, ENVS, dtype=torch.uint8)
    flags[0, 1, 0] = flags[1, 2, 1] = 1
    columns |= {"observation": seen[:-1], "reward": random(STEPS, ENVS, seed=9)}
    columns |= {"terminated": flags[0], "truncated": flags[1]}
    ends = [ENVS, 2 * ENVS + 1, *range((STEPS - 1) * ENVS, STEPS * ENVS)]
    after = torch.cat([seen[2, :1], seen[3, 1:2], seen[-1]])
    return Trajectory(columns, torch.tensor(ends), after)


def posted(algorithm: Any, state: State) -> dict[str, Tensor]:
    with torch.no_grad():
        batch: dict[str, Tensor] = algorithm.post({}, played(algorithm, state))
    return {**batch, "weight": random(STEPS * ENVS, seed=8).abs()}


def with_one_encoder(state: State) -> dict[str, Tensor]:
    """Give every network and target the encoder of the first, and return that."""
    groups = [*state.params.values(), state.targets]
    found = [(name, prefix, each) for each in groups for prefix in BODIES for name in each if name.startswith(prefix)]
    first: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, prefix, group in found:
            group[name].copy_(first.setdefault(name.removeprefix(prefix), group[name].clone()))
    return first


def headed(algorithm: Any, state: State) -> tuple[Algorithm, State]:
    """The same algorithm over features, with the perceptrons of a state."""
    settings = algorithm.settings.model_copy(update={"network": "mlp"})
    environment = EnvironmentSpec("features", Spec("float32", (FEATURES,)), algorithm.environment.action, None, None)
    alike = type(algorithm)(settings, environment)

    def heads(group: Any) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in group.items() if "body." not in name}

    params = {name: ParameterGroup(heads(group)) for name, group in state.params.items()}
    return alike, State(params=params, optimizer=alike.init(1).optimizer, targets=heads(state.targets))


@pytest.mark.parametrize("network", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_a_perceptron_over_features(kind: str, network: str):
    """With one encoder for all networks, losses, outputs and the perceptrons' gradients are those over its features."""
    algorithm = made(kind, network)
    state, other = algorithm.init(1), algorithm.init(2)
    for name, value in other.targets.items():
        state.targets[name].copy_(value)
    encoder = with_one_encoder(state)
    alike, perceptrons = headed(algorithm, state)
    rows = posted(algorithm, state)
    with torch.no_grad():
        body = {f"body.{name}": value for name, value in encoder.items()}
        encoded = {
            name: algorithm._network.encoded(body, column) if column.dtype == torch.uint8 else column
            for name, column in rows.items()
        }
    assert sum(column.shape[1:] == (FEATURES,) for column in encoded.values()) == (1 if "cloning" in kind else 2)
    for loss, same in zip(algorithm.losses, alike.losses, strict=True):
        noise = None if loss.noise is None else random(STEPS * ENVS, *loss.noise.shape, seed=4)
        gradient, outputs = minibatch_gradient(loss, state, rows, {"count": 15.0}, 8, 15, noise)
        expected, expected_outputs = minibatch_gradient(same, perceptrons, encoded, {"count": 15.0}, 8, 15, noise)
        assert outputs.keys() == expected_outputs.keys()
        for name, value in expected_outputs.items():
            torch.testing.assert_close(outputs[name], value, rtol=1e-4, atol=1e-5, msg=f"{loss.name} {name}")
        slopes, place, where = {}, 0, 0
        for name, value in state.params[loss.group].items():
            slopes[name] = gradient[place : place + value.numel()]
            place += value.numel()
            if "body." not in name:
                head = expected[where : where + value.numel()]
                torch.testing.assert_close(slopes[name], head, rtol=1e-4, atol=1e-5, msg=f"{loss.name} {name}")
                where += value.numel()
            elif name.endswith("weight"):
                assert slopes[name].abs().max() > 0, f"{loss.name} does not train {name}"
        assert where == len(expected)


@pytest.mark.parametrize("network", ["nature", "small"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_images_are_bytes(kind: str, network: str):
    """A window holds a byte a pixel, with channels last, and what follows a row is the observation after its steps."""
    algorithm = made(kind, network)
    rows, seen = posted(algorithm, algorithm.init(1)), played(algorithm, algorithm.init(1)).columns["observation"]
    pixels = [column for column in rows.values() if column.dtype == torch.uint8]
    expected = seen.flatten(0, 1) if network == "small" else seen.flatten(0, 1).movedim(1, -1)
    assert torch.equal(rows["observation"], expected)
    assert all(column.shape == expected.shape and column.is_contiguous() for column in pixels)
    following = rows.get("following", rows.get("next_observation"))
    assert len(pixels) == 1 + (following is not None)
    if following is not None:
        steps = algorithm.settings.return_steps if isinstance(algorithm, DQN) else 1
        assert torch.equal(following[2], expected[2 + steps * ENVS])


@pytest.mark.parametrize("kind", ["double and dueling dqn", "iql, choices", "cloning, choices"])
def test_a_board_behind_a_mask_is_convolved(kind: str):
    """The mask is taken off first; forbidden choices are neither taken nor learned from."""
    algorithm = made(kind, "small", MASKS)
    state = algorithm.init(1)
    seen = torch.randint(2, (20, *MASKS.observation.shape), dtype=torch.uint8)
    seen[:, :2] = torch.tensor([0, 1])
    noise = random(20, *algorithm.noise.shape).abs()
    assert algorithm.act(state.params, None, seen, noise)[0]["action"].eq(1).all()
    rows = posted(algorithm, state)
    assert rows["observation"].shape == (STEPS * ENVS, 9, 8, 2)
    for loss in algorithm.losses:
        scalar, _ = loss.function(state.params, LossInputs(rows, 15, targets=state.targets))
        assert torch.isfinite(scalar)


def test_actor_and_critics_of_sac_have_encoders_of_their_own():
    """No encoder is shared, so the actor's loss trains its own alone."""
    state = made("sac", "small").init(1)
    encoders = {
        f"{group}/{prefix}": part(state.params[group], f"{prefix}body.")["0.weight"]
        for group, prefix in (("actor", ""), ("critic", "first/"), ("critic", "second/"))
    }
    for name, weight in encoders.items():
        assert not any(torch.equal(weight, other) for key, other in encoders.items() if key != name)


OTHER_ORDERS = {"residual": "last", "small": "first", "lines": "first"}


@pytest.mark.parametrize("network", OTHER_ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_read_in_the_other_order_too(kind: str, network: str):
    """With `channels`, the same pixels in the other order are acted on and learned from as in the usual one.

    Without it, a stored run goes on with the axis that it has always taken for the channels.
    """
    usual, order = made(kind, network), OTHER_ORDERS[network]
    shape = SHAPES[network]
    turned = (*shape[1:], shape[0]) if order == "last" else (shape[2], *shape[:2])
    seen = EnvironmentSpec("images", Spec("uint8", turned), usual.environment.action, None, None)
    other = type(usual)(usual.settings.model_copy(update={"channels": order}), seen)
    states = usual.init(1), other.init(1)
    for group, params in states[0].params.items():
        assert torch.equal(params.flat, states[1].params[group].flat)
    pixels = torch.randint(2, (ENVS, *shape), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    moved = pixels.movedim(1, -1) if order == "last" else pixels.movedim(-1, 1)
    assert moved.shape[1:] == turned
    noise = random(ENVS, *usual.noise.shape).abs()
    acts = [
        algorithm.act(state.params, None, observation, noise)[0]["action"]
        for algorithm, state, observation in zip((usual, other), states, (pixels, moved), strict=True)
    ]
    assert torch.equal(*acts)
    assert torch.equal(usual._network.packed(pixels), other._network.packed(moved))
    stored = type(usual)(usual.settings, seen)
    assert stored._network._channels_first == (turned if network == "residual" else (turned[-1], *turned[:-1]))


def test_a_perceptron_keeps_its_identity():
    """Runs from before these algorithms had other networks have the same identity; a network is part of it."""
    for name, environment in (("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")):
        plain = build_config({"environment": {"id": environment}, "algorithm": {"name": name}}).identity()
        assert not {"network", "features", "channels"} & set(plain["algorithm"])
    for settings in (IQLSettings(), BehaviourCloningSettings()):
        assert not {"network", "features", "channels"} & set(settings.identity())
    for kind in (QRDQNSettings, TD3Settings, TD3BCSettings, PPOSettings, IMPALASettings):
        assert "channels" not in kind().identity()
        assert kind(channels="last").identity()["channels"] == "last"
    board = build_config({"environment": {"id": "ConnectFour-v0"}, "algorithm": {"name": "dqn", "network": "small"}})
    assert board.identity()["algorithm"].items() >= {"network": "small"}.items()


def observing(*shape: int) -> Any:
    return {"observation": {"dtype": "uint8", "shape": shape}, "id": "Pixels-v0"}


@pytest.mark.parametrize(
    ("network", "shape", "said"),
    [
        ("residual", (96, 96, 3), r"channels last, expected \[channels, .*; set algorithm.channels = 'last'$"),
        ("residual", (20, 20, 12), r"channels last, expected \[channels, .*; set algorithm.channels = 'last'$"),
        (
            "small",
            (4, 84, 84),
            r"first, expected grids .*; set algorithm.channels = 'first', or choose nature or resid",
        ),
        ("lines", (5, 20, 20), "channels first, .*; set algorithm.channels = 'first', or choose residual, which"),
    ],
)
def test_a_new_run_is_told_that_its_network_would_misread_images(network: str, shape: tuple[int, ...], said: str):
    """With the setting that has it read them; what was stored goes on, so it is no error where a pool is made."""
    settings = PPOSettings(network=cast("Any", network))
    for axis in ("first", "last"):
        assert not misread_images(settings.model_copy(update={"channels": axis}), observing(*shape))
    assert re.search(said, misread_images(settings, observing(*shape)))
    assert misread_images(DQNSettings(network=cast("Any", network)), observing(*shape))
    check_images(network, observing(*shape))


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        ("residual", (3, 96, 96)),
        ("residual", (17, 8, 8)),
        ("residual", (16, 4, 4)),
        ("small", (96, 96, 3)),
        ("small", (10, 10, 4)),
        ("small", (4, 12, 5)),
        ("nature", (96, 96, 3)),
        ("mlp", (96, 96, 3)),
        ("mlp", (4,)),
    ],
)
def test_images_in_the_order_of_their_network_and_boards_of_any_are_taken(network: str, shape: tuple[int, ...]):
    """Two short axes may be a board's, so that nobody can say which is the channels'."""
    assert misread_images(PPOSettings(network=cast("Any", network)), observing(*shape)) == ""


def test_what_is_not_supported_is_refused_by_name():
    """Networks with a memory or of netlists, normalised images, and perceptrons over new images."""
    said = (
        "network = 'floorplan': input should be 'mlp', 'nature', 'residual', 'small', 'lines', 'leaves' or 'recurrent'"
    )
    with pytest.raises(ConfigError, match=said):
        build_config({"algorithm": {"name": "sac", "network": "floorplan"}})
    with pytest.raises(ConfigError, match=r"normalize_observation = true: network = 'small' takes pixels as they are"):
        build_config({"algorithm": {"name": "sac", "network": "small", "normalize_observation": True}})
    with pytest.raises(ConfigError, match=r"network = 'mlp': ALE/Pong-v5 observes images .*; choose nature"):
        make_pool(build_config({"environment": {"id": "ALE/Pong-v5"}, "algorithm": {"name": "dqn"}}), 1)
    with pytest.raises(
        ConfigError, match=r"channels = 'last': network = 'mlp' has no such axis, expected one of nature"
    ):
        make_pool(build_config({"algorithm": {"channels": "last"}}), 1)
    for network, axis, shape, axes in (
        ("nature", "first", (96, 96, 3), "images .channels, height, width. of 36 x 36"),
        ("residual", "last", (96, 96), "images .height, width, channels.;"),
        ("lines", "first", (7, 6, 2), "grids .channels, height, width. of 4 x 4"),
    ):
        with pytest.raises(ConfigError, match=rf"expected {axes}"):
            check_images(network, observing(*shape), axis)
    board = {"environment": {"id": "ConnectFour-v0"}, "algorithm": {"name": "dqn", "network": "nature"}}
    with pytest.raises(ConfigError, match=r"network = 'nature': ConnectFour-v0 observes \[6, 7, 2\], expected images"):
        make_pool(build_config(board), 1)
    check_images("nature", observing(96, 96, 3))
    said = r"expected images \[channels, .*\] or \[height, .*\] of 36 x 36 at least; choose mlp"
    for shape in ((35, 96, 3), (3, 35, 96), (96, 96)):
        with pytest.raises(ConfigError, match=said):
            check_images("nature", observing(*shape))
