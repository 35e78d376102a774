"""Steps of rounds that leave out what rounds do not need: the rows are those of the Gymnasium API."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from penstock import native
from penstock.native.adapters.round_steps import DirectSteps, steps_of

NUM_ENVS, STEPS = 3, 30


class Counting(gymnasium.Env[Any, Any]):
    """Counts its steps in one array that it shows again and again; an episode has `length` of them."""

    observation_space, action_space = Box(-1, 99, (2,), np.float64), Discrete(2)
    length = 4

    def __init__(self) -> None:
        self._seen = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._seen[:] = self.np_random.random(), 0
        return self._seen, {"count": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._seen[1] += 1
        count = int(self._seen[1])
        shown = self._seen if action < 1 or count < 2 else self._seen[:1]
        return shown, count / 3, count == self.length, False, {"count": count, "name": "x", "more": {"half": count / 2}}


@pytest.fixture(autouse=True)
def _registered():
    gymnasium.register("test/Counting-v0", Counting)
    yield
    del gymnasium.registry["test/Counting-v0"]


def played(pool: native.EnvironmentPool, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a round, and its bootstrap rows and observations."""
    shape, observed = (len(actions), pool.num_envs), pool.environment["observation"]
    columns = {
        "observation": np.empty((*shape, *observed["shape"]), observed["dtype"]),
        "reward": np.empty(shape, np.float32),
        **{name: np.empty(shape, np.uint8) for name in ("terminated", "truncated")},
        "episode_id": np.empty(shape, np.int32),
    }
    pool.begin_round(**columns)
    for t, action in enumerate(actions):
        pool.step_round(t, action)
    end = pool.end_round()
    return columns | {"rows": end.bootstrap_rows, "final": end.bootstrap_observation}


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("gymnasium/CartPole-v1", {}),
        ("gymnasium/MountainCarContinuous-v0", {"max_episode_steps": 7}),
        ("MinAtar/Breakout-v1", {}),
        ("minigrid/MiniGrid-Empty-5x5-v0", {"max_steps": 9}),
        ("envpool/CartPole-v1", {}),
        ("envpool/Catch-v0", {"max_episode_steps": 4}),
        ("envpool/CartpoleBalance-v1", {"max_episode_steps": 11}),
    ],
)
def test_a_round_has_what_steps_give(env_id: str, settings: dict[str, Any]):
    """Observations, rewards, flags and last observations, over several episodes of each environment."""
    pytest.importorskip(env_id.partition("/")[0].lower(), reason="an optional package")
    pools = [
        native.make(env_id, NUM_ENVS, autoreset_mode="SameStep", one_array=True, one_action=True, **settings)
        for _ in range(2)
    ]
    action, generator = pools[0].environment["action"], np.random.default_rng(0)
    shape = (STEPS, NUM_ENVS, *action["shape"])
    is_choice = action["kind"] == "discrete"
    actions = generator.integers(0, action["n"], shape) if is_choice else generator.random(shape, np.float32)
    for pool in pools:
        pool.reset_ids(np.arange(5, 5 + NUM_ENVS, dtype=np.uint64))
    got, seen, final = played(pools[0], actions), pools[1].observation, {}
    for t, action_row in enumerate(actions):
        np.testing.assert_array_equal(got["observation"][t], seen)
        seen, reward, terminated, truncated, infos = pools[1].step(action_row)
        np.testing.assert_array_equal(got["reward"][t], reward.astype(np.float32))
        np.testing.assert_array_equal(got["terminated"][t], terminated)
        np.testing.assert_array_equal(got["truncated"][t], truncated)
        for env in range(NUM_ENVS):
            if terminated[env] or truncated[env]:
                final[t * NUM_ENVS + env] = infos["final_obs"][env]
            elif t == STEPS - 1:
                final[t * NUM_ENVS + env] = seen[env]
    assert got["rows"].tolist() == sorted(final)
    assert len(final) > NUM_ENVS
    np.testing.assert_array_equal(got["final"], np.stack([final[row] for row in sorted(final)]))
    np.testing.assert_array_equal(pools[0].observation, seen)
    for pool in pools:
        pool.close()


def test_an_environment_may_show_one_array_again_and_again():
    """The last observation is that before the reset, although the reset fills the same array."""
    pool = native.make("test/Counting-v0", NUM_ENVS, disable_env_checker=True)  # which warns of it
    pool.reset_ids(np.arange(NUM_ENVS, dtype=np.uint64))
    got = played(pool, np.zeros((6, NUM_ENVS), np.int64))
    assert got["observation"][:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1]
    assert got["final"][:, 1].tolist() == [4.0] * NUM_ENVS + [2.0] * NUM_ENVS
    assert got["final"][0, 0] == got["observation"][0, 0, 0]


def test_observations_of_another_shape_are_refused():
    """An observation that is no member of its space fills no row."""
    pool = native.make("test/Counting-v0", NUM_ENVS, disable_env_checker=True)
    pool.reset_ids(np.arange(NUM_ENVS, dtype=np.uint64))
    with pytest.raises(RuntimeError, match=r"test/Counting-v0: an environment failed in step\(\): ValueError"):
        played(pool, np.ones((3, NUM_ENVS), np.int64))


def test_a_masked_reset_after_a_round_leaves_the_others_where_the_round_has_left_them():
    """In an environment of the same-step mode, whose rounds SyncVectorEnv has not seen."""
    pool = native.make("gymnasium/CartPole-v1", NUM_ENVS, autoreset_mode="SameStep")
    pool.reset_ids(np.arange(NUM_ENVS, dtype=np.uint64))
    played(pool, np.ones((5, NUM_ENVS), np.int64))
    before = pool.observation
    mask = np.array([False, True, False])
    for _ in range(2):
        after, _ = pool.reset(seed=8, options={"reset_mask": mask})
        np.testing.assert_array_equal(after[~mask], before[~mask])
        assert (after[mask] != before[mask]).any()
    stepped, _, _, _, _ = pool.step(np.zeros(NUM_ENVS, np.int64))
    assert (np.abs(stepped[~mask] - before[~mask]) < 0.5).all()


def test_only_gymnasiums_own_vectoriser_is_left_out():
    """A class derived from it may step otherwise, and is asked to."""

    class Derived(SyncVectorEnv):
        pass

    envs = [lambda: gymnasium.make("CartPole-v1")] * 2
    assert isinstance(steps_of(SyncVectorEnv(envs)), DirectSteps)
    assert not isinstance(steps_of(Derived(envs)), DirectSteps)


class Forgetful(SyncVectorEnv[Any, Any]):
    """Resets in the same step, and does not say what was seen last."""

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        infos.pop("final_obs", None)
        return (*result, infos)


def test_a_vector_environment_without_last_observations_is_refused_by_name():
    """At the end of its first episode, with what is missing: a bootstrap observation would be another episode's."""
    made = Forgetful([Counting] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    made.reset(seed=1)
    step, actions, out = steps_of(made), np.zeros(NUM_ENVS, np.int64), np.empty((NUM_ENVS, 2))
    for _ in range(Counting.length - 1):
        step(actions, out)
    with pytest.raises(ValueError, match="Forgetful ended an episode, in same-step mode, without 'final_obs'"):
        step(actions, out)
