"""The pool in JAX programs: compiled loops step it once a step, in order, and see what the pool gives."""

import gymnasium
import numpy as np
import pytest

from penstock import native

jax = pytest.importorskip("jax", reason="comes with penstock-rl[jax]")

from penstock.native.trainers.jax import JaxPool  # noqa: E402


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_compiled_loop_gives_the_pools_steps(mode):
    """A policy and a pool in one `scan`: rows equal those of the pool alone, final observations too."""
    face, pool = (wrap(native.make("CartPole-v1", 4, autoreset_mode=mode)) for wrap in (JaxPool, lambda made: made))

    @jax.jit
    def rollout(seed):
        def one(seen, _):
            action = (seen[:, 2] + 0.3 * seen[:, 3] < 0).astype(np.int32)
            stepped = face.step(action)
            return stepped.observation, (action, stepped)

        return jax.lax.scan(one, face.reset(seed), length=120)

    _, (actions, stepped) = rollout(3)
    seen, _ = pool.reset(seed=3)
    ended = 0
    for t, action in enumerate(np.asarray(actions)):
        seen, reward, terminated, truncated, infos = pool.step(action)
        np.testing.assert_array_equal(stepped.observation[t], seen)
        np.testing.assert_array_equal(stepped.reward[t], reward.astype(np.float32))
        np.testing.assert_array_equal(stepped.terminated[t], terminated)
        np.testing.assert_array_equal(stepped.truncated[t], truncated)
        for env in range(4):
            has_final = mode == "SameStep" and (terminated | truncated)[env]
            wanted = infos["final_obs"][env] if has_final else seen[env]
            np.testing.assert_array_equal(stepped.final_observation[t, env], wanted)
        ended += int((terminated | truncated).sum())
    assert ended > 3


def test_steps_whose_results_nobody_reads_are_made():
    """Ordered effects are neither dropped nor repeated: the pool's clock shows each."""
    face = JaxPool(native.make("Pendulum-v1", 2, max_episode_steps=50))

    @jax.jit
    def idle():
        face.reset(0)
        jax.lax.fori_loop(0, 49, lambda _, carry: (face.step(np.zeros((2, 1), np.float32)), carry)[1], 0)
        return face.step(np.zeros((2, 1), np.float32)).truncated

    assert idle().all()
    assert not face.step(np.zeros((2, 1), np.float32)).truncated.any()


def test_mistakes_are_named():
    """A shape while tracing; a value when it is there, in the pool's words; and a pool that never resets."""
    face = JaxPool(native.make("CartPole-v1", 2))
    face.reset()
    with pytest.raises(ValueError, match=r"actions: expected an array of shape \(2,\), got \(3,\)"):
        face.step(np.zeros(3, np.int32))
    for actions in (np.array([0.9, 0.1]), np.array([True, False])):
        with pytest.raises(ValueError, match=r"actions: expected integers, got (float|bool)"):
            face.step(actions)
    for seed in (jax.random.key(0), np.arange(2), 1.5):
        with pytest.raises(ValueError, match=r"seed: expected one whole number, got .*; keys of jax.random are for"):
            face.reset(seed)
    with pytest.raises(TypeError, match=r"expected a pool, as penstock.native.make gives, got .*CartPole"):
        JaxPool(gymnasium.make_vec("CartPole-v1", 2))
    with pytest.raises(Exception, match=r"action 5 of environment 0 is out of range"):
        jax.block_until_ready(face.step(np.array([5, 0])))
    with pytest.raises(ValueError, match="autoreset_mode is Disabled"):
        JaxPool(native.make("CartPole-v1", 2, autoreset_mode="Disabled"))
