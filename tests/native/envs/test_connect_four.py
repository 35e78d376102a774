"""ConnectFour equals PettingZoo's board, rules, rewards and masks with ==, against an opponent of the same numbers."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import FlattenObservation

from penstock import native
from penstock.native.conformance.runner import check_id

from ...support.environments.playing import play

pytest.importorskip("mpe2", reason="comes with penstock-rl[mpe2], as PettingZoo does")

from pettingzoo.classic.connect_four.connect_four import raw_env

CHOICES = 7


class AgainstRandom(gymnasium.Env):
    """PettingZoo's game, whose other player moves as the environment's generator says."""

    observation_space = Dict({"action_mask": Box(0, 1, (7,), np.uint8), "observation": Box(0, 1, (6, 7, 2), np.uint8)})
    action_space = Discrete(CHOICES)

    def __init__(self) -> None:
        self.game = raw_env()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.game.reset()
        self.own = f"player_{self.np_random.integers(2)}"
        if self.game.agent_selection != self.own:
            self.reply()
        return self.seen(), {}

    def step(self, action):
        if self.seen()["action_mask"][action] == 0:  # PettingZoo's TerminateIllegalWrapper
            return self.seen(), -1.0, True, False, {}
        self.game.step(int(action))
        if not self.game.terminations[self.own]:
            self.reply()
        return self.seen(), float(self.game.rewards[self.own]), self.game.terminations[self.own], False, {}

    def reply(self) -> None:
        allowed = np.flatnonzero(self.seen()["action_mask"])
        self.game.step(int(allowed[self.np_random.integers(len(allowed))]))

    def seen(self) -> dict[str, np.ndarray]:
        mask = self.game.observe(self.game.agent_selection)["action_mask"].astype(np.uint8)
        return {"action_mask": mask, "observation": self.game.observe(self.own)["observation"].astype(np.uint8)}


def references(count: int) -> list[gymnasium.Env]:
    return [FlattenObservation(AgainstRandom()) for _ in range(count)]


def anywhere(observation: np.ndarray) -> np.ndarray:
    """A column that is allowed, by a function of the board that looks like chance."""
    scores = observation[:, CHOICES:] @ np.random.default_rng(0).random((84, CHOICES)) % 1
    return (scores + observation[:, :CHOICES]).argmax(-1)


def test_it_equals_pettingzoos_game():
    """Any move, allowed or not: boards, masks, rewards and ends, over many games and resets of one generator."""
    seeds = [7 * index for index in range(20)]
    generator = np.random.default_rng(0)

    def mostly_allowed(observation: np.ndarray) -> np.ndarray:
        noise = generator.random((len(seeds), CHOICES))
        return (noise + 0.4 * observation[:, :CHOICES]).argmax(-1)

    pool = native.make("ConnectFour-v0", len(seeds), autoreset_mode="SameStep")
    assert play(pool, references(len(seeds)), seeds, 120, mostly_allowed)["terminated"] > 100


def test_full_board_is_a_draw_without_a_choice():
    """In a draw the reward is 0, and the last observation allows nothing, as PettingZoo's."""
    pool = native.make("ConnectFour-v0", 4_000, autoreset_mode="Disabled")
    observation, _ = pool.reset(seed=0)
    over, drawn = np.zeros(4_000, dtype=bool), np.zeros(4_000, dtype=bool)
    while not over.all():
        rows = np.flatnonzero(~over).astype(np.int32)
        seen, reward, terminated, _, _ = pool.step_rows(anywhere(observation[rows]), rows)
        observation[rows] = seen
        over[rows] = terminated
        drawn[rows] = terminated & (reward == 0)
    assert drawn.any()
    assert not observation[drawn][:, :CHOICES].any()
    seeds = np.flatnonzero(drawn)[:2].tolist()
    again = native.make("ConnectFour-v0", len(seeds), autoreset_mode="SameStep")
    play(again, references(len(seeds)), seeds, 25, anywhere)


def test_mask_comes_first():
    """The flat space is that of Gymnasium's FlattenObservation; the description has the shape that lies behind it."""
    pool = native.make("ConnectFour-v0", 3)
    flat = references(1)[0].observation_space
    assert (pool.single_observation_space, pool.single_action_space) == (flat, Discrete(CHOICES))
    assert pool.environment["observation"] == {"dtype": "uint8", "shape": (91,), "behind_mask": (6, 7, 2)}


def test_round_holds_masks_wherever_it_holds_observations():
    """In its rows and after its bootstrap rows: what is allowed is always the columns whose top is free."""
    steps, envs = 64, 5
    pool = native.make("ConnectFour-v0", envs)
    pool.reset_ids(np.arange(envs, dtype=np.uint64))
    observation = np.empty((steps, envs, 91), np.uint8)
    flags = [np.empty((steps, envs), np.uint8) for _ in range(2)]
    pool.begin_round(observation, np.empty((steps, envs), np.float32), *flags, np.empty((steps, envs), np.int32))
    for step in range(steps):
        pool.step_round(step, anywhere(observation[step]))
    end = pool.end_round()
    assert len(end.bootstrap_rows) > envs
    for seen in (observation.reshape(-1, 91), end.bootstrap_observation):
        boards = seen[:, CHOICES:].reshape(-1, 6, 7, 2)
        assert np.array_equal(seen[:, :CHOICES], 1 - boards[:, 0].max(-1))
    assert observation[:, :, :CHOICES].any(-1).all()


def test_checks_of_an_environment_are_content():
    """Seeds, threads, saved states, limits and Gymnasium's own checker, with a mask in the observation."""
    report = check_id("ConnectFour-v0")
    assert report.passed, report
