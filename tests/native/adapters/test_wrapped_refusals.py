"""Wrong arguments to a wrapped environment are refused, and the message says what would be right."""

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock import native

BREAKOUT = "ALE/Breakout-v5"
CARTPOLE = "gymnasium/CartPole-v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"id": "CartPoll-v1"},
            "no environment is called 'CartPoll-v1'; similar: CartPole-v1.*`penstock envs` lists all",
        ),
        ({"id": "Taxy-v3"}, "no environment is called 'Taxy-v3'; .*similar: .*Taxi-v4"),
        ({"id": "gymnasium/Taxy-v3"}, "Gymnasium has no environment 'Taxy-v3': .*similar: .*Taxi-v4"),
        (
            {"id": "no_such_module:Env-v0"},
            "Gymnasium has no environment 'no_such_module:Env-v0': No module named .*; install the package that has it",
        ),
        (
            {"id": "json:Cart-Pole"},
            "environment 'json:Cart-Pole': .*an id that json registers .*not the name of a class; similar: json:CartP",
        ),
        ({"id": "gymnasium/NoSuch"}, "has no environment 'NoSuch': .*doesn't exist; `penstock envs` lists all"),
        ({"id": "ALE/Brekout-v5"}, "no Atari game is called 'ALE/Brekout-v5'; similar: ALE/Breakout-v5"),
        ({"id": "ALE/qqqqqqqqqq"}, "is called 'ALE/qqqqqqqqqq'; `penstock envs ALE/` lists all"),
        ({"id": "ale/breakout"}, "is called 'ale/breakout'; similar: ALE/Breakout-v5.*; `penstock envs ale/` lists"),
        ({"id": "minatar/breakout"}, "'minatar/breakout'; similar: MinAtar/Breakout-v1.*; `penstock envs minatar/`"),
        ({"id": "Gymnasium/CartPole-v1"}, "'Gymnasium/CartPole-v1'; similar: gymnasium/CartPole-v1"),
        ({"id": "dm_control/nosuch-x"}, "dm_control has no task 'dm_control/nosuch-x'.*; `penstock envs dmc?"),
        ({"id": "toy/NoSuch"}, "no environment is called 'toy/NoSuch'; `penstock envs toy/` lists all"),
        ({"id": "toys/NoSuch"}, "no environment is called 'toys/NoSuch'; `penstock envs` lists all"),
        ({"id": "pettingzoo/mpe/nosuch_v3"}, "has no environment .*_v3'; `penstock envs pettingzoo/mpe/` lists all"),
        ({"id": "pettingzoo/mpee/simple_spread_v3"}, "a family of .*; similar: pettingzoo/mpe/simple_spread_v3"),
        ({"id": BREAKOUT, "frame_skip": 4}, r"no setting 'frame_skip'; its settings: .*frameskip=4"),
        (
            {"id": CARTPOLE, "batch_size": 1},
            "batch_size is for environments that this package steps and Atari games",
        ),
        ({"id": BREAKOUT, "noop_max": 2.5}, "noop_max must be int, got 2.5"),
        ({"id": BREAKOUT, "grayscale": 1}, "grayscale must be bool, got 1"),
        ({"id": BREAKOUT, "frameskip": 0}, "frameskip must be at least 1, got 0"),
        (
            {"id": BREAKOUT, "num_envs": 1, "stack_num": -1},
            r"ALE/Breakout-v5 cannot be made with \{'stack_num': -1\}: ",
        ),
        ({"id": BREAKOUT, "autoreset_mode": "Disabled"}, "autoreset_mode is NextStep or SameStep"),
        ({"id": BREAKOUT, "max_episode_steps": 5, "max_num_frames_per_episode": 20}, "not both"),
        ({"id": CARTPOLE, "gravitas": 1.0}, "Gymnasium cannot make CartPole-v1 with {'gravitas': 1.0}: .*gravitas"),
        ({"id": CARTPOLE, "vectorization_mode": "fork"}, "expected one of 'sync', 'async', 'vector_entry_point'"),
        ({"id": CARTPOLE, "num_threads": 2}, "leave num_threads at 1, or choose vectorization_mode='async'"),
        ({"id": CARTPOLE, "num_envs": 0}, "num_envs must be an integer of at least 1, got 0"),
        ({"id": CARTPOLE, "autoreset_mode": "Never"}, "autoreset_mode is 'Never', expected"),
    ],
)
def test_make_refuses(arguments: dict[str, Any], message: str):
    """An unknown name lists what is near it or what exists; a bad value is named."""
    with pytest.raises(ValueError, match=message):
        native.make(**({"num_envs": 2} | arguments))


BAD_ACTIONS = [
    (np.array([0, 99]), "action 99 of environment 1 is out of range: expected 0 to [13]"),
    (np.array([-1, 0]), "action -1 of environment 0"),
    (np.array([0, 1, 0]), r"expected integers of shape \(2,\) as actions, got int64 of \(3,\)"),
    (np.array([0.0, 1.0]), "expected integers"),
]


@pytest.mark.parametrize("env_id", [BREAKOUT, CARTPOLE])
def test_bad_actions_move_nothing(env_id: str):
    """ale-py would wait forever, and SyncVectorEnv would have stepped the environments before the bad one."""
    pools = [native.make(env_id, 2) for _ in range(2)]
    for pool in pools:
        pool.reset(seed=0)
    for actions, message in BAD_ACTIONS:
        with pytest.raises(ValueError, match=message):
            pools[0].step(actions)
    left, right = (pool.step(np.array([1, 1], np.uint8)) for pool in pools)
    assert left[0].tobytes() == right[0].tobytes()


def test_bad_box_actions_are_refused():
    """A value that is not finite is named."""
    pool = native.make("gymnasium/Pendulum-v1", 2)
    pool.reset(seed=0)
    with pytest.raises(ValueError, match="action of environment 1 is not finite"):
        pool.step(np.array([[0.0], [np.nan]]))
    with pytest.raises(ValueError, match=r"expected floats of shape \(2, 1\)"):
        pool.step(np.zeros(2))


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (-1, "seed of environment 0 is -1"),
        (2**64 - 1, "seed of environment 1 is 18446744073709551616"),
        ([1], "got 1 seeds for 2 environments"),
    ],
)
def test_bad_seeds_are_refused(seed: Any, message: str):
    """Seeds are 0 to 2**64 - 1, one int or one for each environment."""
    with pytest.raises(ValueError, match=message):
        native.make(CARTPOLE, 2).reset(seed=seed)
    with pytest.raises(ValueError, match="seeds: expected uint64 of shape"):
        native.make(CARTPOLE, 2).reset_ids(np.zeros(2, np.int64))


def round_buffers(steps: int = 2) -> dict[str, np.ndarray]:
    shape = (steps, 2)
    return {
        "observation": np.zeros((*shape, 4), np.float32),
        "reward": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, np.uint8),
        "truncated": np.zeros(shape, np.uint8),
        "episode_id": np.zeros(shape, np.int32),
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": np.zeros((2, 2))}, "reward: expected a writable C-contiguous float32 .*got float64"),
        ({"terminated": np.zeros((2, 2), bool)}, "terminated: expected a writable C-contiguous uint8"),
        ({"observation": np.zeros((2, 2, 5), np.float32)}, r"observation: .*shape \(2, 2, 4\)"),
        ({"episode_id": np.zeros((2, 2), np.int32).T}, "episode_id: .*not C-contiguous"),
        ({"truncated": np.broadcast_to(np.uint8(0), (2, 2))}, "truncated: .*read-only"),
        (round_buffers(0), "at least one step"),
    ],
)
def test_bad_buffers_are_refused(changed: dict[str, np.ndarray], message: str):
    """Nothing is converted: a copy would be filled in vain."""
    pool = native.make(CARTPOLE, 2, autoreset_mode="SameStep")
    pool.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        pool.begin_round(**(round_buffers() | changed))


def test_rounds_are_made_in_order():
    """A step out of turn, a round not begun or not finished and step() in between are refused by name."""
    pool, action = native.make(CARTPOLE, 2, autoreset_mode="SameStep"), np.ones(2, np.int64)
    with pytest.raises(RuntimeError, match="not every environment is ready"):
        pool.begin_round(**round_buffers())
    pool.reset(seed=0)
    for call in (lambda: pool.step_round(0, action), pool.end_round):
        with pytest.raises(RuntimeError, match="no round is open"):
            call()
    pool.begin_round(**round_buffers())
    pool.step_round(0, action)
    with pytest.raises(ValueError, match="got t=0, expected 1"):
        pool.step_round(0, action)
    with pytest.raises(RuntimeError, match="a round is open"):
        pool.step(action)
    with pytest.raises(RuntimeError, match="has 2 steps, only 1 were made"):
        pool.end_round()
    with pytest.raises(ValueError, match="actions: expected a C-contiguous int64"):
        pool.step_round(1, action.astype(np.int32))
    pool.step_round(1, action)
    with pytest.raises(ValueError, match=r"got t=2, expected end_round\(\)"):
        pool.step_round(2, action)
    assert pool.end_round().bootstrap_rows.tolist() == [2, 3]


def test_mode_cannot_change_while_running():
    """Made for the next step, a pool that is on its way cannot continue in rounds, nor in step() after a round."""
    pool, action = native.make(CARTPOLE, 2), np.ones(2, np.int64)
    pool.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"needs SameStep: reset_ids\(\) first"):
        pool.begin_round(**round_buffers())
    pool.reset_ids(np.arange(2, dtype=np.uint64))
    pool.begin_round(**round_buffers(1))
    pool.step_round(0, action)
    pool.end_round()
    with pytest.raises(RuntimeError, match="needs NextStep"):
        pool.step(action)
    first = pool.reset(seed=0)[0]
    pool.reset_ids(np.arange(2, dtype=np.uint64))
    assert np.array_equal(pool.observation, first)
    pool.step(action)


def test_unsupported_states_are_refused_with_a_next_action():
    """Environments stepped or reset outside rounds since `reset_ids` have no state; the error names the next call."""
    for env_id in (BREAKOUT, CARTPOLE):
        pool = native.make(env_id, 1)
        pool.reset(seed=0)
        with pytest.raises(native.StateNotSupportedError, match=r"cannot be saved: .*start from reset_ids\(\)"):
            pool.save()
        with pytest.raises(native.StateNotSupportedError, match="cannot be restored from nothing: expected repeated"):
            pool.restore({})
    pool.reset_ids(np.arange(1, dtype=np.uint64))
    pool.save()
    pool.begin_round(**{name: column[:, :1].copy() for name, column in round_buffers(1).items()})
    with pytest.raises(RuntimeError, match=r"a round is open: end_round\(\) before save"):
        pool.save()
    pool.reset_ids(np.arange(1, dtype=np.uint64))
    pool.step(np.ones(1, np.int64))
    with pytest.raises(native.StateNotSupportedError, match="cannot be saved"):
        pool.save()


def test_a_state_of_another_form_is_refused_and_leaves_no_round_open():
    """The message has the shapes, or why an action is none; the pool is ready for its own state."""
    pool = native.make(CARTPOLE, 2)
    pool.reset_ids(np.arange(2, dtype=np.uint64))
    pool.begin_round(**round_buffers(2))
    for t in range(2):
        pool.step_round(t, np.ones(2, np.int64))
    pool.end_round()
    state = pool.save()
    for name, array, message in (
        (
            "repeated.shown",
            state["repeated.shown"][:1],
            r"repeated.shown uint8 \[1, 16\].*expected uint64 \[2\], uint8 \[2, 16\]",
        ),
        ("repeated.seed", np.arange(3, dtype=np.uint64), "another number of environments"),
        ("repeated.seed", np.array([0.5, 1.5]), r"repeated.seed float64 \[2\]"),
        ("repeated.action", np.ones(2, np.int64), r"repeated.action \[2\]"),
        ("repeated.action", np.full((2, 2), 9), "actions that its environments do not take: .*9"),
        ("repeated.action", np.ones((2, 2, 3), np.int64), "actions that its environments do not take"),
    ):
        with pytest.raises(native.StateNotSupportedError, match=message):
            pool.restore({**state, name: array})
        pool.restore(state)
        np.testing.assert_array_equal(pool.save()["repeated.shown"], state["repeated.shown"])


class Interrupted(gymnasium.Env):
    """The second step of each environment is interrupted, as by Ctrl-C."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        if self._steps == 2:
            raise KeyboardInterrupt
        return np.full(1, self._steps, np.float32), 0.0, False, False, {}


def test_an_interrupted_step_needs_a_reset():
    """Some environments may have been stepped and others not, so the pool says that it is not ready."""
    gymnasium.register("Interrupted-v0", Interrupted)
    try:
        pool = native.make("Interrupted-v0", 2)
        pool.reset(seed=0)
        pool.step(np.zeros(2, np.int64))
        with pytest.raises(KeyboardInterrupt):
            pool.step(np.zeros(2, np.int64))
        with pytest.raises(RuntimeError, match="not every environment is ready"):
            pool.step(np.zeros(2, np.int64))
        pool.reset(seed=0)
        assert pool.step(np.zeros(2, np.int64))[0].tolist() == [[1.0], [1.0]]
    finally:
        del gymnasium.registry["Interrupted-v0"]


def test_ids_of_several_rewards_are_no_ids_of_gymnasiums():
    """Their rewards would not fit; the native id is named."""
    with pytest.raises(ValueError, match=r"has a reward for each of its agents, .* make 'simple_spread_v3'"):
        native.make("penstock/simple_spread_v3", 2)


class Scaling(gymnasium.Env):
    """Halves its action in place."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        action *= 0.5
        return action, 0.0, False, False, {}


def test_a_round_keeps_actions_that_environments_change():
    """The caller's array is what a shard stores, and a saved state repeats those actions."""
    gymnasium.register("Scaling-v0", Scaling)
    try:
        pool, actions = native.make("Scaling-v0", 2), np.ones((3, 2, 2), np.float32)
        pool.reset_ids(np.arange(2, dtype=np.uint64))
        pool.begin_round(**(round_buffers(3) | {"observation": np.empty((3, 2, 2), np.float32)}))
        for t in range(3):
            pool.step_round(t, actions[t])
        pool.end_round()
        assert (actions == 1.0).all()
        again = native.make("Scaling-v0", 2)
        again.restore(pool.save())
        assert np.array_equal(again.observation, np.full((2, 2), 0.5, np.float32))
    finally:
        del gymnasium.registry["Scaling-v0"]


class Careless(gymnasium.Env):
    """Shows a number from a generator that no seed reaches."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._generator = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action):
        return self._generator.random(1), 0.0, False, False, {}


def test_environments_that_are_not_deterministic_are_found():
    """Restoring reports that the same actions led to another state."""
    gymnasium.register("Careless-v0", Careless)
    try:
        pool = native.make("Careless-v0", 2)
        pool.reset_ids(np.arange(2, dtype=np.uint64))
        pool.begin_round(**(round_buffers(3) | {"observation": np.empty((3, 2, 1))}))
        for t in range(3):
            pool.step_round(t, np.zeros(2, np.int64))
        pool.end_round()
        with pytest.raises(native.StateNotSupportedError, match="environment 0 differs after the same 3"):
            pool.restore(pool.save())
    finally:
        del gymnasium.registry["Careless-v0"]


def test_nothing_works_after_close():
    """Closing twice is fine; every other call says that the pool is closed."""
    pool = native.make(CARTPOLE, 2)
    pool.reset(seed=0)
    pool.close()
    pool.close()
    for call in (lambda: pool.reset(seed=1), lambda: pool.step(np.ones(2, np.int64)), lambda: pool.observation):
        with pytest.raises(RuntimeError, match="this pool is closed"):
            call()


def test_without_ale_py_only_atari_fails_and_names_the_extra():
    """ale-py is imported when an Atari pool is made and not before."""
    script = """
import sys
sys.modules["ale_py"] = None
from penstock import native
native.make("CartPole-v1", 1).reset(seed=0)
native.make("gymnasium/CartPole-v1", 1).reset(seed=0)
for name in ("ALE/Pong-v5", "ale/pong"):
    try:
        native.make(name, 1)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ALE/Pong-v5 needs ale-py (GPL-2.0" in done.stdout
    assert "'ale/pong'; if one whose id begins with 'ALE/' is meant: ALE/ needs ale-py" in done.stdout
    assert done.stdout.count("pip install 'penstock-rl[atari]'") == 2


@pytest.mark.parametrize("mask", [np.zeros(2, bool), np.ones(3, bool), [True, False], np.ones(2)])
def test_a_wrong_mask_leaves_the_episodes_as_they_are(mask: Any):
    """It is refused before any environment is reset, as by a native pool."""
    pool = native.make(CARTPOLE, 2, autoreset_mode="Disabled")
    pool.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match="reset_mask must be bool"):
        pool.reset(options={"reset_mask": mask})
    pool.step(np.array([0, 1]))
    pool.close()


class Failing(gymnasium.Env):
    """Fails at its second step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            raise ZeroDivisionError("it failed")
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("vectorised", ["sync", "async"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's, with the worker's traceback
def test_environments_that_failed_can_be_reset(vectorised: str):
    """As the error advises; a vectoriser's worker has ended by then."""
    gymnasium.register("Failing-v0", entry_point=Failing)
    try:
        pool = native.make("gymnasium/Failing-v0", 2, vectorization_mode=vectorised)
        for _ in range(2):
            pool.reset(seed=0)
            pool.step(np.zeros(2, np.int64))
            with pytest.raises(RuntimeError, match="ZeroDivisionError: it failed; reset first"):
                pool.step(np.zeros(2, np.int64))
        pool.close()
    finally:
        del gymnasium.registry["Failing-v0"]


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_a_vector_environment_of_an_ids_own_takes_its_first_seed():
    """Gymnasium's CartPole has one, and takes an int; others of its kind do likewise."""
    pool = native.make(CARTPOLE, 2, vectorization_mode="vector_entry_point")
    theirs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    assert np.array_equal(pool.reset(seed=1)[0], theirs.reset(seed=1)[0])
    pool.reset()
    pool.close()
