"""Environments on JAX: the library's own steps, seeds, limits, and a state that is saved and restored bit for bit."""

import subprocess
import sys

import numpy as np
import pytest

from penstock import native

BALANCE, PENDULUM = "mjx/CartpoleBalance", "brax/inverted_pendulum"
NUM_ENVS = 3


@pytest.fixture(name="made", scope="module")
def _made():
    """Return a function that makes a pool; compiled programs are kept by JAX for the same shapes alone."""
    for module in ("mujoco_playground", "brax"):
        pytest.importorskip(module, reason="comes with penstock-rl[mjx,brax]", exc_type=ImportError)
    return native.make


def round_of(pool, steps=20, seed=0):
    """Play a round of random actions; returns its columns and the rest."""
    spec, shape = pool.environment, (steps, pool.num_envs)
    columns = [np.zeros((*shape, *spec["observation"]["shape"]), spec["observation"]["dtype"])]
    columns += [np.zeros(shape, dtype) for dtype in (np.float32, np.uint8, np.uint8, np.int32)]
    pool.begin_round(*columns)
    rng = np.random.default_rng(seed)
    for t in range(steps):
        pool.step_round(t, rng.uniform(-1, 1, (pool.num_envs, *spec["action"]["shape"])).astype(np.float32))
    end = pool.end_round()
    return [*columns, end.bootstrap_rows, end.bootstrap_observation, *end.episodes.values()]


def assert_equal(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_falling_ball_rests_on_the_floor(made):
    """MJX has the contacts of MuJoCo 4: a ball of radius 0.1 comes to rest that high, as in MuJoCo itself."""
    import jax
    import mujoco
    from mujoco import mjx

    text = (
        "<mujoco><worldbody><geom type='plane' size='5 5 .1'/><body pos='0 0 .5'><freejoint/>"
        "<geom type='sphere' size='.1' mass='1'/></body></worldbody></mujoco>"
    )
    model = mujoco.MjModel.from_xml_string(text)
    own, data, device = mujoco.MjData(model), mjx.make_data(model), mjx.put_model(model)
    step = jax.jit(mjx.step)
    for _ in range(500):
        data = step(device, data)
        mujoco.mj_step(model, own)
    assert float(data.qpos[2]) == pytest.approx(0.1, abs=2e-3)
    assert float(data.qpos[2]) == pytest.approx(own.qpos[2], abs=1e-4)
    assert abs(float(data.qvel[2])) < 1e-3


@pytest.mark.slow
def test_steps_are_playgrounds_own(made):
    """With the key of the seed and the episode's number, as the documentation says."""
    import jax
    from mujoco_playground import dm_control_suite

    pool = made(BALANCE, 2)
    seen = pool.reset(seed=[5, 2**40 + 7])[0]
    env = dm_control_suite.load("CartpoleBalance", config_overrides={"impl": "jax"})
    keys = np.array([[0, 5], [2**8, 7]], np.uint32)
    folded = [jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key), 0)) for key in keys]
    reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
    own = reset(np.stack(folded))
    np.testing.assert_allclose(seen, own.obs, rtol=1e-6)
    for value in (0.5, -1.0, 0.2):
        action = np.full((2, 1), value, np.float32)
        seen, reward, *_ = pool.step(action)
        own = step(own, action)
        np.testing.assert_allclose(seen, own.obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward, own.reward, rtol=1e-5)
    pool.close()


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "settings"), [(BALANCE, {}), (PENDULUM, {"backend": "generalized"})])
def test_a_saved_state_is_restored_bit_for_bit_in_another_pool(made, env_id, settings):
    """In the middle of episodes, with their numbers, lengths and generators; the state is arrays of one row each."""
    pool = made(env_id, NUM_ENVS, max_episode_steps=12, **settings)
    assert not pool.restores_by_replay
    pool.reset_ids(np.arange(NUM_ENVS, dtype=np.uint64))
    round_of(pool)
    state = pool.save()
    assert all(array.shape[0] == NUM_ENVS for array in state.values())
    wanted, after = round_of(pool, seed=1), pool.save()
    other = made(env_id, NUM_ENVS, max_episode_steps=12, **settings)
    other.restore(state)
    assert_equal(round_of(other, seed=1), wanted)
    assert_equal(other.save().values(), after.values())
    assert wanted[4].max() > 2
    with pytest.raises(native.StateNotSupportedError, match=r"another environment's.*state.0: found"):
        other.restore({**state, "state.0": state["state.0"].astype(np.float64)})
    with pytest.raises(native.StateNotSupportedError, match=r"lacks count.length"):
        other.restore({name: array for name, array in state.items() if name != "count.length"})
    pool.close()
    other.close()


@pytest.mark.slow
def test_episodes_are_functions_of_their_seed(made):
    """Whatever the pool did before; other seeds give other episodes, and so does an environment's next episode."""
    pool = made(BALANCE, NUM_ENVS, max_episode_steps=6)
    seeds = np.array([4, 9, 2**63 + 1], np.uint64)
    pool.reset_ids(seeds)
    first = round_of(pool)
    round_of(pool, seed=3)
    pool.reset_ids(seeds)
    assert_equal(round_of(pool), first)
    starts = first[0][[0, 6, 12]]
    assert len(np.unique(starts.reshape(9, -1), axis=0)) == 9
    pool.close()


@pytest.mark.slow
def test_limits_truncate_in_both_modes(made):
    """Same-step shows the last observation beside the next episode's first; next-step resets in the step after."""
    same, following = (made(BALANCE, 2, max_episode_steps=3, autoreset_mode=mode) for mode in ("SameStep", "NextStep"))
    start, _ = same.reset(seed=1)
    np.testing.assert_array_equal(following.reset(seed=1)[0], start)
    for step in range(3):
        action = np.full((2, 1), 0.1, np.float32)
        got, wanted = same.step(action), following.step(action)
        assert got[3].all() == wanted[3].all() == (step == 2)
    np.testing.assert_array_equal(np.stack(got[4]["final_obs"]), wanted[0])
    begun = following.step(np.zeros((2, 1), np.float32))
    np.testing.assert_array_equal(begun[0], got[0])
    assert not begun[1].any()
    assert not begun[3].any()
    for pool in (same, following):
        pool.close()


def test_other_libraries_take_the_state_without_a_copy(made):
    """By DLPack: torch's tensor lies where JAX's array does."""
    import torch

    pool = made(BALANCE, 2)
    seen = pool.reset(seed=0)[0]
    array = pool.vector_env.state.obs
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(tensor.numpy(), seen)
    pool.close()


@pytest.mark.parametrize(
    ("env_id", "options", "said"),
    [
        ("mjx/CartpoleBalanc", {}, r"no task 'mjx/CartpoleBalanc'; similar: mjx/CartpoleBalance"),
        (BALANCE, {"ctrl_tt": 0.1}, r"no setting 'ctrl_tt'; its settings: .*did you mean ctrl_dt\?"),
        (BALANCE, {"ctrl_dt": "fast"}, r"ctrl_dt of mjx/CartpoleBalance must be float, got 'fast'"),
        (BALANCE, {"num_threads": 2}, r"leave num_threads at 1"),
        (BALANCE, {"autoreset_mode": "Disabled"}, r"NextStep or SameStep"),
        ("brax/fast", {}, r"Brax has no environment 'brax/fast'"),
        (PENDULUM, {"backend": "mujoco"}, r"backend is 'mujoco', expected one of 'generalized'"),
        (PENDULUM, {"gravty": 1.0}, r"no setting 'gravty'; its settings: "),
        (PENDULUM, {"render_mode": "rgb_array"}, r"can't be drawn here"),
    ],
)
def test_mistakes_are_refused_by_name(made, env_id, options, said):
    """Before anything is compiled."""
    with pytest.raises(ValueError, match=said):
        made(env_id, 1, **options)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"), [(BALANCE, "mujoco_playground", "mjx"), (PENDULUM, "brax", "brax")]
)
def test_a_missing_package_names_its_extra(env_id, module, extra):
    """As of every family."""
    code = f"import sys; sys.modules['{module}'] = None; from penstock.native import make; make('{env_id}', 1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"pip install 'penstock-rl[{extra}]'" in result.stderr
