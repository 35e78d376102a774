"""What an environment forbids is never acted, has no probability and no gradient, and counts in no target."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

import native
from flows.algorithm_checking import check_one_algorithm
from tasks.algorithms.dqn import DQN
from tasks.algorithms.impala import IMPALA
from tasks.algorithms.ppo import PPO
from tasks.distributions import choice_probability, choose
from tasks.evaluate import evaluate_snapshot
from tasks.specs import ActionSpec, EnvironmentSpec, Spec, Trajectory
from tasks.tile import RoundBuffers, TileActor

from .conftest import MakeContext
from .ppo_cases import random
from .test_evaluate import published

MASKED = EnvironmentSpec(
    "masked", Spec("float32", (7,)), ActionSpec("discrete", n=4), None, None, behind_mask=Spec("float32", (3,))
)
GAME = {"id": "ConnectFour-v0", "num_envs": 6, "envs_per_tile": 6, "max_episode_steps": None}


def masks(rows: int, choices: int, seed: int = 0) -> torch.Tensor:
    """Of each row at least one choice, and not all."""
    order = torch.rand(rows, choices, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    return order < torch.arange(rows).remainder(choices - 1).add(1).unsqueeze(-1)


def observations(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of `MASKED`, and what they allow."""
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


@pytest.mark.parametrize("make", [PPO, IMPALA, DQN])
def test_a_row_that_allows_nothing_is_refused(make):
    """By its number, and with what the environment has to do."""
    algorithm = make(environment=MASKED)
    observation, _ = observations(5)
    observation[3, :4] = 0
    with pytest.raises(ValueError, match=r"none of its 4 choices in row\(s\) \[3\].*one at least"):
        algorithm.act(algorithm.init(1).params, None, observation, torch.zeros(5, *algorithm.noise.shape))


@pytest.mark.parametrize("make", [PPO, IMPALA, DQN])
def test_networks_see_what_lies_behind_the_mask(make):
    """Their first layer takes those numbers alone, and a mask that allows more changes nothing else."""
    algorithm = make(environment=MASKED)
    state = algorithm.init(1)
    layers = [value for group in state.params.values() for name, value in group.items() if name == "0.weight"]
    assert layers
    assert {layer.shape[1] for layer in layers} == {3}


def test_dqn_explores_and_follows_what_is_allowed():
    """Exploring with certainty, all allowed choices alike and no other; greedily, the best of them."""
    dqn = DQN(environment=MASKED, hidden=(8,))
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
    values = dqn._values(state.params["value"], observation[:, 4:]).masked_fill(~allowed, -torch.inf)
    assert torch.equal(greedy["action"], values.argmax(-1))
    assert float((values.argmax(-1) != dqn._values(state.params["value"], observation[:, 4:]).argmax(-1)).sum()) > 100


@pytest.mark.parametrize("double", [False, True])
def test_dqns_targets_take_the_best_allowed_choice(double):
    """Of what follows: by the target network, or double, judged by the network. After an end nothing is allowed."""
    dqn = DQN(environment=MASKED, hidden=(), dueling=False, double=double, discount=0.5)
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
    _, outputs = dqn.losses[0].function(state.params, state.targets, rows, None, {}, 2)
    expected = 0.5 * (1.0 if double else 3.0)  # what choice 1 is worth, or choice 3
    torch.testing.assert_close(outputs["priority"], torch.tensor([9.0 - expected, 9.0]) + 1e-6)


@pytest.mark.parametrize("make", [PPO, IMPALA])
def test_losses_move_no_forbidden_logit(make):
    """Gradients of the last layer's bias are exactly 0 for a choice that no row allows, and of no other."""
    algorithm = replace(make(environment=MASKED), hidden=(), entropy_weight=0.1)
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
    scalar, _ = loss.function(state.params, state.targets, rows, None, stats, count)
    (gradient,) = torch.autograd.grad(scalar, [state.params[loss.group]["0.bias"]])
    assert [bool(number) for number in gradient[:4] != 0] == [True, True, False, True]


@pytest.mark.parametrize("name", ["ppo", "impala", "dqn"])
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


LADDER = """#include <penstock/library.hpp>
struct Ladder {
  static constexpr penstock::Info info{.id = "Ladder-v0"};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::Box<1>::symmetric({9.0});
  struct Config { PENSTOCK_FIELDS(Config) } config;
  struct State { std::int64_t left; PENSTOCK_FIELDS(State, left) } state;
  void reset(penstock::Rng& rng) { state.left = rng.integers(1, 9); }
  penstock::Step step(std::int64_t) { return {.reward = 1.0, .terminated = --state.left == 0}; }
  void action_mask(std::span<bool, 2> out) const { out[0] = state.left > 1, out[1] = state.left == 1; }
  void observe(std::span<float, 1> out) const { out[0] = float(state.left); }
};
PENSTOCK_LIBRARY(Ladder)
"""


def test_evaluation_plays_beyond_ends_after_which_nothing_is_allowed(
    make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Episodes of other lengths go on beside those that are over."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "libraries"))
    native.load(LADDER, flags=["-O0"])
    context = make_context({"environment": {"id": "Ladder-v0", "max_episode_steps": None}})
    ref = published(context)
    result = evaluate_snapshot(context, context.run.store, ref, 30, key=0)
    assert result["max_return"] == 8
    assert result["min_return"] == 1


MEMORY = ("--algorithm.network", "recurrent", "--algorithm.features", "8")


@pytest.mark.parametrize(("name", "options"), [("ppo", ()), ("ppo", MEMORY), ("impala", ()), ("dqn", ()), ("iql", ())])
def test_the_checks_of_an_algorithm_are_content(name: str, options: tuple[str, ...]):
    """On rows with a mask: the ratio is 1, parts add up, rows are what was declared."""
    report = check_one_algorithm(name, "ConnectFour-v0", ["--algorithm.hidden", "[8]", *options])
    assert report.passed, report
