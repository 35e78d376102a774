"""MuJoCo's tasks in Warp: Gymnasium's numbers as far as float32 goes, and a state that is restored bit for bit."""

import numpy as np
import pytest

from penstock import native

from .test_jax_pools import assert_equal, round_of

pytest.importorskip("mujoco_warp", reason="comes with penstock-rl[warp]")
IDS = ("InvertedPendulum-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
LIMITS = dict.fromkeys(IDS, 5e-3) | {"InvertedPendulum-v5": 1e-5}
"""Largest difference of an observation after ten steps; contacts amplify rounding."""


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
def test_steps_are_gymnasiums_as_far_as_float32_goes(name):
    """From the same positions and speeds: spaces, rewards, ends, and observations, with contacts among them."""
    pool, own = native.make(f"warp/{name}", 2), native.make(f"gymnasium/{name}", 2)
    spec, wanted = pool.environment, own.environment
    assert spec["action"] == wanted["action"]
    assert spec["observation"]["shape"] == wanted["observation"]["shape"]
    assert spec["max_episode_steps"] == wanted["max_episode_steps"]
    assert spec["reward_threshold"] == wanted["reward_threshold"]
    pool.reset(seed=4)
    own.reset(seed=0)
    qpos, qvel = (array.astype(np.float64) for array in pool.vector_env.state.physics[:2])
    for env, single in enumerate(own.vector_env.envs):
        single.unwrapped.set_state(qpos[env], qvel[env])
    for action in np.random.default_rng(0).uniform(-0.5, 0.5, (10, *pool.action_space.shape)).astype(np.float32):
        got, other = pool.step(action), own.step(action)
        np.testing.assert_allclose(got[0], other[0], atol=LIMITS[name])
        np.testing.assert_allclose(got[1], other[1], atol=LIMITS[name])
        np.testing.assert_array_equal(got[2], other[2])
    pool.close()


@pytest.mark.slow
def test_a_saved_state_is_restored_bit_for_bit_in_another_pool():
    """In the middle of episodes, with contacts and their warm starts; no derived quantity is needed."""
    pool, other = (native.make("warp/Hopper-v5", 3, max_episode_steps=30) for _ in range(2))
    pool.reset_ids(np.array([1, 2, 2**64 - 1], np.uint64))
    round_of(pool)
    state = pool.save()
    wanted, after = round_of(pool, seed=1), pool.save()
    other.reset_ids(np.array([7, 8, 9], np.uint64))
    round_of(other, seed=5)
    other.restore(state)
    assert_equal(round_of(other, seed=1), wanted)
    assert_equal(other.save().values(), after.values())
    assert wanted[4].max() > 0
    for one in (pool, other):
        one.close()


@pytest.mark.parametrize(
    ("env_id", "options", "said"),
    [
        ("warp/Hoper-v5", {}, "there is no task 'warp/Hoper-v5' on Warp; there are: warp/Hopper-v5"),
        ("warp/Hopper-v5", {"frame_skip": 2}, "has no settings, got frame_skip"),
        ("warp/Hopper-v5", {"num_threads": 2}, "leave num_threads at 1"),
    ],
)
def test_mistakes_are_refused_by_name(env_id, options, said):
    """Before anything is loaded."""
    with pytest.raises(ValueError, match=said):
        native.make(env_id, 1, **options)
