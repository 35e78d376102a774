"""A masked action is never taken, has no probability and no gradient, and counts in no target."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from penstock import native
from penstock.flows.cli.check import check_one_algorithm
from penstock.tasks.analysis.evaluation import evaluate_snapshot
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.model.nn.distributions import choice_probability, choose
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings
from penstock.tasks.setup.config.on_policy import IMPALASettings, PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec, Trajectory

from ....support.algorithms.ppo_cases import random
from ...analysis.test_evaluation import published
from ...conftest import MakeContext

MASKED = EnvironmentSpec(
    "masked", Spec("float32", (7,)), ActionSpec("discrete", n=4), None, None, unmasked_observation=Spec("float32", (3,))
)
GAME = {"id": "ConnectFour-v0", "num_envs": 6, "envs_per_tile": 6, "max_episode_steps": None}


def masks(rows: int, choices: int, seed: int = 0) -> torch.Tensor:
    """Return masks that allow at least one choice of each row, and not all."""
    order = torch.rand(rows, choices, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    return order < torch.arange(rows).remainder(choices - 1).add(1).unsqueeze(-1)


def observations(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return observations of `MASKED`, and their masks."""
    allowed = masks(rows, 4, seed)
    return torch.cat([allowed.float(), random(rows, 3, seed=seed)], -1), allowed


def test_probabilities_are_those_of_the_allowed_choices_alone():
    """Log-probability and entropy equal torch's Categorical over the subset, however large forbidden logits are."""
    logits, allowed = 5 * random(60, 5), masks(60, 5)
    logits[::2] = torch.where(allowed[::2], logits[::2], 80.0)
    action, acted = choose(logits, torch.zeros_like(logits), allowed)
    log_probability, entropy = choice_probability(logits, action, allowed)
    assert torch.equal(acted, log_probability)
    for row in range(len(logits)):
        subset = allowed[row].nonzero().squeeze(-1)
        expected = Categorical(logits=logits[row, subset])
        assert int(action[row]) == int(subset[logits[row, subset].argmax()])
        place = (subset == action[row]).nonzero().squeeze()
        torch.testing.assert_close(log_probability[row], expected.log_prob(place))
        torch.testing.assert_close(entropy[row], expected.entropy())


def test_forbidden_logits_have_no_gradient():
    """Exactly 0 through log-probability and entropy; the others have the gradient that they have by themselves."""
    logits, allowed = random(30, 5).requires_grad_(), masks(30, 5)
    action, _ = choose(logits, random(30, 5, seed=1), allowed)
    log_probability, entropy = choice_probability(logits, action, allowed)
    (gradient,) = torch.autograd.grad((2 * log_probability + entropy).sum(), logits)
    assert (gradient[~allowed] == 0).all()
    for row in range(len(logits)):
        subset = allowed[row].nonzero().squeeze(-1)
        alone = logits[row, subset].detach().requires_grad_()
        place = (subset == action[row]).nonzero().squeeze()
        expected = Categorical(logits=alone)
        (wanted,) = torch.autograd.grad(2 * expected.log_prob(place) + expected.entropy(), alone)
        torch.testing.assert_close(gradient[row, subset], wanted)


def test_samples_are_drawn_from_the_allowed_choices():
    """With the noise of actors: forbidden ones never, the others with the probabilities of the softmax among them."""
    count = 40_000
    noise = np.empty((1, count, 4), dtype=np.float32)
    native.fill_noise("gumbel", 7, 2, np.arange(count), 0, noise)
    logits = torch.tensor([0.0, 9.0, np.log(3.0), -9.0]).expand(count, 4)
    allowed = torch.tensor([True, False, True, False]).expand(count, 4)
    action, _ = choose(logits, torch.from_numpy(noise[0]), allowed)
    assert set(action.tolist()) == {0, 2}
    assert abs(float((action == 2).float().mean()) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / count)


@pytest.mark.parametrize("settings", [PPOSettings(), IMPALASettings(), DQNSettings(), QRDQNSettings()])
def test_a_row_that_allows_nothing_is_refused(settings):
    """By its number, and with what the environment has to do."""
    algorithm = make_algorithm(settings, MASKED)
    observation, _ = observations(5)
    observation[3, :4] = 0
    with pytest.raises(ValueError, match=r"none of its 4 choices in row\(s\) \[3\].*one at least"):
        algorithm.act(algorithm.init(1).params, None, observation, torch.zeros(5, *algorithm.noise.shape))


@pytest.mark.parametrize("settings", [PPOSettings(), IMPALASettings(), DQNSettings(), QRDQNSettings()])
def test_networks_get_the_observation_without_the_mask(settings):
    """Their first layer takes those numbers alone, and a mask that allows more changes nothing else."""
    algorithm = make_algorithm(settings, MASKED)
    state = algorithm.init(1)
    layers = [value for group in state.params.values() for name, value in group.items() if name == "0.weight"]
    assert layers
    assert {layer.shape[1] for layer in layers} == {3}


def test_dqn_explores_and_exploits_allowed_choices_alone():
    """Exploring with certainty, all allowed choices alike and no other; greedily, the best of them."""
    dqn = DQN(DQNSettings(hidden=(8,)), MASKED)
    state = dqn.init(1)
    observation, allowed = observations(3_000)
    acted, _ = dqn.act(
        state.params, None, observation, torch.rand(3_000, 5, generator=torch.Generator().manual_seed(1))
    )
    chosen = torch.nn.functional.one_hot(acted["action"], 4).bool()
    assert (chosen & allowed).any(-1).all()
    pairs = allowed.sum(-1) == 2
    assert abs(float((acted["action"] == allowed.int().argmax(-1))[pairs].float().mean()) - 0.5) < 0.06
    greedy, _ = dqn.act(state.params, None, observation, torch.zeros(3_000, 5))
    values = dqn._values(dqn._network.step(state.params["value"], None, observation[:, 4:])[0])
    best_allowed = values.masked_fill(~allowed, -torch.inf).argmax(-1)
    assert torch.equal(greedy["action"], best_allowed)
    assert float((best_allowed != values.argmax(-1)).sum()) > 100


@pytest.mark.parametrize("double", [False, True])
def test_qr_dqns_targets_take_the_best_allowed_choice(double):
    """By its mean, and with the target network's quantiles of it; after an end nothing is allowed."""
    settings = QRDQNSettings(hidden=(), quantiles=2, dueling=False, double=double, discount=0.5, huber_limit=100.0)
    algorithm = QRDQN(settings, MASKED)
    state = algorithm.init(1)
    worth, judged = torch.tensor([9.0, 9, 1, 2, 2, 3, 3, 5]), torch.tensor([9.0, 9, 8, 8, 1, 1, 2, 2])
    with torch.no_grad():
        state.params["value"].flat.zero_()
        state.params["value"]["0.bias"].copy_(judged)
    state.targets["value/0.weight"].zero_()
    state.targets["value/0.bias"].copy_(worth)
    rows = {
        "observation": torch.zeros(2, 3),
        "following": torch.zeros(2, 3),
        "action": torch.zeros(2, dtype=torch.int64),
        "return": torch.zeros(2),
        "factor": torch.tensor([0.5, 0.0]),
        "weight": torch.ones(2),
        "allowed": torch.tensor([[False, True, True, True], [False] * 4]),
    }
    _, outputs = algorithm.losses[0].function(state.params, LossInputs(rows, 2, targets=state.targets))
    targets = [(0.5, 1.0) if double else (1.5, 2.5), (0.0, 0.0)]  # halves of what choice 1 is worth, or choice 3
    # Both quantiles are 9, above all targets: weights are 3/4 and 1/4.
    expected = [sum(0.5 * (9 - aim) ** 2 for aim in aims) / 2 for aims in targets]
    torch.testing.assert_close(outputs["priority"], torch.tensor(expected) + 1e-6)


@pytest.mark.parametrize("double", [False, True])
def test_dqns_targets_take_the_best_allowed_choice(double):
    """The target network values it; with double DQN the network selects it. After an end nothing is allowed."""
    dqn = DQN(DQNSettings(hidden=(), dueling=False, double=double, discount=0.5), MASKED)
    state = dqn.init(1)
    worth, judged = torch.tensor([9.0, 1.0, 2.0, 3.0]), torch.tensor([9.0, 8.0, 1.0, 2.0])
    with torch.no_grad():
        state.params["value"].flat.zero_()
        state.params["value"]["0.bias"].copy_(judged)
    state.targets["value/0.weight"].zero_()
    state.targets["value/0.bias"].copy_(worth)
    following = torch.zeros(2, 7)
    following[0, 1:] = 1  # forbids the choice that both networks like most; the other row is an episode's end
    columns = {
        "observation": torch.ones(1, 2, 7),
        "reward": torch.zeros(1, 2),
        "terminated": torch.tensor([[0, 1]], dtype=torch.uint8),
        "truncated": torch.zeros(1, 2, dtype=torch.uint8),
        "action": torch.zeros(1, 2, dtype=torch.int64),
    }
    rows = dqn.post({}, Trajectory(columns, torch.tensor([0, 1]), following)) | {"weight": torch.ones(2)}
    _, outputs = dqn.losses[0].function(state.params, LossInputs(rows, 2, targets=state.targets))
    expected = 0.5 * (1.0 if double else 3.0)  # what choice 1 is worth, or choice 3
    torch.testing.assert_close(outputs["priority"], torch.tensor([9.0 - expected, 9.0]) + 1e-6)


@pytest.mark.parametrize("kind", [PPOSettings, IMPALASettings])
def test_losses_move_no_forbidden_logit(kind):
    """Gradients of the last layer's bias are exactly 0 for a choice that no row allows, and of no other."""
    algorithm = make_algorithm(kind(hidden=(), entropy_weight=0.1), MASKED)
    state, count = algorithm.init(1), 12
    shown, allowed = observations(count)
    shown[:, 2], shown[:, 0] = 0, 1
    allowed = shown[:, :4] != 0
    acted, _ = algorithm.act(state.params, None, shown, random(count, 4))
    rows = {name: value.detach() for name, value in acted.items()}
    rows |= {"observation": shown[:, 4:], "allowed": allowed}
    rows |= {"advantage": random(count, seed=1), "value_target": random(count, seed=2)}
    loss = algorithm.losses[0]
    stats = {"count": 1.0, "advantage": 0.0, "advantage_square": 1.0}
    scalar, _ = loss.function(state.params, LossInputs(rows, count, stats, targets=state.targets))
    (gradient,) = torch.autograd.grad(scalar, [state.params[loss.group]["0.bias"]])
    assert [bool(number) for number in gradient[:4] != 0] == [True, True, False, True]


@pytest.mark.parametrize("name", ["ppo", "impala", "dqn", "qr_dqn"])
def test_nothing_forbidden_is_acted(make_context: MakeContext, name: str):
    """In rounds of a real pool, with the noise of actors; there is something forbidden in them."""
    schedule = {"round_steps": 200, "rounds_per_stage": 10}
    context = make_context({"environment": GAME, "algorithm": {"name": name}, "schedule": schedule}, name=name)
    actor, buffers = TileActor(context, 0), RoundBuffers(context, 0)
    actor.start()
    state = context.algorithm.init(1)
    actor.act_round(0, {group: state.params[group] for group in context.algorithm.actor_groups}, buffers)
    actor.close()
    allowed = buffers.arrays["observation"][..., :7]
    assert np.take_along_axis(allowed, buffers.arrays["action"][..., None], -1).all()
    assert not allowed.all()


GAMES = """#include <penstock/library.hpp>
using namespace penstock;
struct Ladder {
  static constexpr Info info{.id = "Ladder-v0"};
  static constexpr Discrete<2> action{};
  static constexpr auto observation = Box<1>::symmetric({9.0});
  struct Config { PENSTOCK_FIELDS(Config) } config;
  struct State { std::int64_t left; PENSTOCK_FIELDS(State, left) } state;
  void reset(Rng& rng) { state.left = rng.integers(1, 9); }
  Step step(std::int64_t) { return {.reward = 1.0, .terminated = --state.left == 0}; }
  void action_mask(std::span<bool, 2> out) const { out[0] = state.left > 1, out[1] = state.left == 1; }
  void observe(std::span<float, 1> out) const { out[0] = float(state.left); }
};
// Each of two agents may not choose again what the other one has just chosen.
struct Turns {
  static constexpr Info info{.id = "Turns-v0", .max_episode_steps = 7};
  static constexpr std::size_t agents = 2;
  static constexpr MultiDiscrete<3, agents> action{};
  static constexpr auto observation = Box<agents, 2>::filled(0.0f, 9.0f);
  struct Config { PENSTOCK_FIELDS(Config) } config;
  struct State { std::array<std::int64_t, agents> last; PENSTOCK_FIELDS(State, last) } state;
  void reset(Rng& rng) { state.last = {rng.integers(0, 3), rng.integers(0, 3)}; }
  TeamStep<agents> step(std::span<const std::int64_t, agents> chosen) {
    TeamStep<agents> result;
    for (std::size_t agent = 0; agent < agents; ++agent) result.rewards[agent] = double(chosen[agent]);
    state.last = {chosen[0], chosen[1]};
    return result;
  }
  void action_mask(std::span<bool, 3 * agents> out) const {
    for (std::size_t place = 0; place < out.size(); ++place)
      out[place] = std::int64_t(place % 3) != state.last[1 - place / 3];
  }
  void observe(std::span<float, agents * 2> out) const {
    for (std::size_t place = 0; place < out.size(); ++place) out[place] = float(state.last[place / 2] + place % 2);
  }
};
PENSTOCK_LIBRARY(Ladder, Turns)
"""


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Environments of `GAMES`, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("libraries")))
        native.load(GAMES, flags=["-O0"])
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("games")
def test_evaluation_plays_beyond_ends_after_which_nothing_is_allowed(make_context: MakeContext):
    """Longer episodes continue while others of the batch are over."""
    context = make_context({"environment": {"id": "Ladder-v0", "max_episode_steps": None}})
    ref = published(context)
    result = evaluate_snapshot(context, context.run.store, ref, 30, key=0)
    assert result["max_return"] == 8
    assert result["min_return"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("games")
@pytest.mark.parametrize("name", ["mappo", "ippo"])
def test_each_of_several_agents_has_its_own_mask(make_context: MakeContext, name: str):
    """No agent takes a masked action; a choice that no row allows has no gradient; the checks of an algorithm pass."""
    environment = {"id": "Turns-v0", "num_envs": 4, "envs_per_tile": 4, "max_episode_steps": None}
    context = make_context({"environment": environment, "algorithm": {"name": name, "hidden": [8]}}, name=name)
    algorithm, state = context.algorithm, context.algorithm.init(1)
    actor, buffers = TileActor(context, 0), RoundBuffers(context, 0)
    actor.start()
    actor.act_round(0, {group: state.params[group] for group in algorithm.actor_groups}, buffers)
    actor.close()
    columns = {name: torch.from_numpy(column) for name, column in buffers.arrays.items()}
    shown, allowed = context.environment.split(columns["observation"].flatten(0, 1))
    assert shown.shape[1:] == (2, 2)
    last = shown[..., 0].long()
    assert torch.equal(allowed, torch.nn.functional.one_hot(last.flip(1), 3) == 0)
    actions = columns["action"].flatten(0, 1)
    assert (actions != last.flip(1)).all()
    assert actions.unique().tolist() == [0, 1, 2]
    count = 20
    rows = {
        "observation": random(count, 2, 2),
        "allowed": torch.tensor([[True, True, False], [False, True, False]]).expand(count, 2, 3),
        "action": torch.stack([torch.arange(count) % 2, torch.ones(count, dtype=torch.int64)], 1),
        "log_probability": torch.full((count, 2), -1.0),
        "advantage": random(count, 2, seed=1),
    }
    stats = {"count": 1.0, "advantage": 0.0, "advantage_square": 1.0}
    scalar, _ = algorithm.losses[0].function(state.params, LossInputs(rows, count, stats, targets=state.targets))
    (gradient,) = torch.autograd.grad(scalar, [state.params["policy"]["1.bias"]])
    assert [bool(number) for number in gradient != 0] == [True, True, False]
    report = check_one_algorithm(name, "Turns-v0", ["--algorithm.hidden", "[8]"])
    assert report.passed, report


MEMORY = ("--algorithm.network", "recurrent", "--algorithm.features", "8")


SHARED = ("--algorithm.shared-network", "true")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ppo", ()),
        ("ppo", MEMORY),
        ("ppo", (*MEMORY, *SHARED)),
        ("impala", ()),
        ("dqn", ()),
        ("qr_dqn", ()),
        ("iql", ()),
    ],
)
def test_normalising_algorithms_pass_the_checks(name: str, options: tuple[str, ...]):
    """On rows with a mask: the ratio is 1, parts add up, rows are what was declared."""
    report = check_one_algorithm(name, "ConnectFour-v0", ["--algorithm.hidden", "[8]", *options])
    assert report.passed, report
