"""Wrong arguments are refused before anything moves, and the message names the right ones."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from penstock import native


@pytest.fixture
def cartpole() -> native.Pool:
    pool = native.make("CartPole-v1", 3)
    pool.reset(seed=0)
    return pool


@pytest.fixture
def pendulum() -> native.Pool:
    pool = native.make("Pendulum-v1", 2)
    pool.reset(seed=0)
    return pool


def round_buffers(steps: int = 4, num_envs: int = 3) -> dict[str, np.ndarray]:
    shape = (steps, num_envs)
    return {
        "observation": np.zeros((*shape, 4), np.float32),
        "reward": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, np.uint8),
        "truncated": np.zeros(shape, np.uint8),
        "episode_id": np.zeros(shape, np.int32),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "CartPole-v9"}, "no environment is called 'CartPole-v9'; similar: CartPole-v1"),
        ({"id": "qqqq"}, "is called 'qqqq'; `penstock envs` lists all; give one .* as my_module:MyEnv-v0"),
        ({"num_envs": 0}, "num_envs must be an integer of at least 1, got 0"),
        ({"num_envs": 1.5}, "num_envs must be an integer of at least 1, got 1.5"),
        ({"num_threads": -1}, "num_threads must be an integer of at least 1, got -1"),
        ({"max_episode_steps": 0}, "max_episode_steps must be an integer of at least 1, got 0"),
        ({"gravitas": 9.8}, "no configuration field 'gravitas'; its fields: gravity=9.8, masscart=1.0"),
        ({"gravity": "strong"}, "gravity must be float, or 3 of them, got 'strong'"),
        ({"gravity": True}, "gravity must be float"),
        ({"sutton_barto_reward": 1}, "sutton_barto_reward must be bool"),
        ({"gravity": [9.8, 9.8]}, r"gravity must be one value or one for each of 3 environments, got \[2\]"),
        ({"gravity": float("nan")}, "gravity must be finite, got nan"),
        (
            {"masspole": [0.1, 0.1, -0.1]},
            "configuration of environment 2: masscart, masspole, length and tau must be > 0",
        ),
    ],
)
def test_make_refuses(arguments: dict[str, Any], message: str):
    """An unknown name lists those that exist; a bad value is named."""
    with pytest.raises(ValueError, match=message):
        native.make(**({"id": "CartPole-v1", "num_envs": 3} | arguments))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([0, 2, 1]), "action 2 of environment 1 is out of range: expected 0 to 1"),
        (np.array([0, 1, -1]), "action -1 of environment 2"),
        (np.array([0, 1]), r"expected integers of shape \(3,\) as actions, got int64 of \(2,\)"),
        (np.array([0.0, 1.0, 1.0]), "expected integers"),
        (np.array([False, True, True]), "got bool"),
    ],
)
def test_bad_discrete_actions_move_nothing(cartpole: native.Pool, actions: np.ndarray, message: str):
    """The environment and the value are named, and not even the environments before it were stepped."""
    before = cartpole.save()
    with pytest.raises(ValueError, match=message):
        cartpole.step(actions)
    assert all(np.array_equal(before[name], array) for name, array in cartpole.save().items())


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([[0.0], [np.nan]]), "action of environment 1 is not finite: got -?nan"),
        (np.array([[np.inf], [0.0]]), "action of environment 0 is not finite: got inf"),
        (np.array([0.0, 0.0]), r"expected floats of shape \(2, 1\)"),
        (np.array([["a"], ["b"]]), "expected floats"),
    ],
)
def test_bad_box_actions_move_nothing(pendulum: native.Pool, actions: np.ndarray, message: str):
    """As for discrete actions; values beyond the bounds are the environment's to clip."""
    before = pendulum.save()
    with pytest.raises(ValueError, match=message):
        pendulum.step(actions)
    assert all(np.array_equal(before[name], array) for name, array in pendulum.save().items())


@pytest.mark.parametrize("integer", [np.int8, np.uint8, np.int32, np.uint64])
def test_any_integer_type_is_an_action(cartpole: native.Pool, integer: type):
    """step() takes what policies give, whatever the width; the values count."""
    other = native.make("CartPole-v1", 3)
    other.reset(seed=0)
    expected = other.step(np.array([1, 0, 1]))[0]

    assert np.array_equal(cartpole.step(np.array([1, 0, 1], integer))[0], expected)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (-1, "seed of environment 0 is -1"),
        (2**64 - 2, "seed of environment 2 is 18446744073709551616"),
        ([1, 2], "got 2 seeds for 3 environments"),
    ],
)
def test_bad_seeds_are_refused(cartpole: native.Pool, seed: Any, message: str):
    """Seeds are 0 to 2**64 - 1, one int or one for each environment."""
    with pytest.raises(ValueError, match=message):
        cartpole.reset(seed=seed)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (1.5, "seed is 1.5, expected an int, one of them"),
        ([0, 1.5, 2], "seed of environment 1 is 1.5, expected an int"),
    ],
)
def test_seeds_that_are_no_numbers_are_refused(cartpole: native.Pool, seed: Any, message: str):
    """The value is shown, and what would be one."""
    with pytest.raises(TypeError, match=message):
        cartpole.reset(seed=seed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x_init": 1.0}, r"unknown reset options \['x_init'\]; there is 'reset_mask', 'low', 'high', and make\(\)"),
        ({"low": 0.1}, "expected no lower bound above an upper one"),
        ({"high": "far"}, "reset option high must be a finite number, got 'far'"),
        ({"low": -1e308, "high": 1e308}, "expected bounds whose distance is a finite number"),
        ({"high": float("inf")}, "reset option high must be a finite number, got inf"),
        ({"reset_mask": np.zeros(3, bool)}, "at least one True"),
        ({"reset_mask": np.array([1, 0, 1])}, r"reset_mask must be bool \[3\]"),
        ({"reset_mask": np.ones(2, bool)}, r"reset_mask must be bool \[3\]"),
    ],
)
def test_bad_reset_options_are_refused(cartpole: native.Pool, options: dict[str, Any], message: str):
    """Only reset_mask and bounds of the first state exist, and the mask must choose something; nothing is reset."""
    cartpole.reset(seed=0)
    before = cartpole.save()
    with pytest.raises((TypeError, ValueError), match=message):
        cartpole.reset(options=options)
    assert all(np.array_equal(before[name], array) for name, array in cartpole.save().items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": np.zeros((4, 3))}, "reward: expected a writable C-contiguous float32 .*got float64"),
        ({"reward": np.zeros((4, 2), np.float32)}, r"shape \(4, 3\), got float32 \(4, 2\)"),
        ({"terminated": np.zeros((4, 3), bool)}, "terminated: expected a writable C-contiguous uint8"),
        ({"observation": np.zeros((4, 3, 5), np.float32)}, r"observation: .*shape \(4, 3, 4\)"),
        ({"observation": np.zeros((0, 3, 4), np.float32)}, "at least one step"),
        ({"episode_id": np.zeros((3, 4), np.int32).T}, "episode_id: .*not C-contiguous"),
        ({"truncated": np.broadcast_to(np.uint8(0), (4, 3))}, "truncated: .*read-only"),
    ],
)
def test_bad_buffers_are_refused(cartpole: native.Pool, changed: dict[str, np.ndarray], message: str):
    """Nothing is converted: a copy would be filled in vain."""
    with pytest.raises(ValueError, match=message):
        cartpole.begin_round(**(round_buffers() | changed))


def test_rounds_are_made_in_order(cartpole: native.Pool):
    """A step out of turn, a round that is not begun or not finished and step() in between are refused by name.

    The round continues as if they had not been made.
    """
    action = np.ones(3, np.int64)
    with pytest.raises(RuntimeError, match="no round is open"):
        cartpole.step_round(0, action)
    with pytest.raises(RuntimeError, match="no round is open"):
        cartpole.end_round()
    cartpole.begin_round(**round_buffers())
    cartpole.step_round(0, action)
    with pytest.raises(ValueError, match="got t=0, expected 1"):
        cartpole.step_round(0, action)
    with pytest.raises(RuntimeError, match=r"a round is open: .* before step\(\)"):
        cartpole.step(action)
    with pytest.raises(RuntimeError, match=r"before send\(\) or step_rows\(\)"):
        cartpole._core.step_rows(action, np.arange(3, dtype=np.int32))
    with pytest.raises(RuntimeError, match="has 4 steps, only 1 were made"):
        cartpole.end_round()
    with pytest.raises(ValueError, match="action 5 of environment 0"):
        cartpole.step_round(1, action * 5)
    with pytest.raises(ValueError, match="actions: expected a C-contiguous int64"):
        cartpole.step_round(1, action.astype(np.int32))
    for t in (1, 2, 3):
        cartpole.step_round(t, action)
    with pytest.raises(ValueError, match=r"got t=4, expected end_round\(\)"):
        cartpole.step_round(4, action)
    assert cartpole.end_round().bootstrap_rows.tolist() == [9, 10, 11]


def test_buffers_outlive_their_names(cartpole: native.Pool):
    """The pool keeps the arrays of an open round alive, and lets them go after it."""
    arrays = round_buffers()
    reward = arrays["reward"]
    cartpole.begin_round(**arrays)
    del arrays
    for t in range(4):
        cartpole.step_round(t, np.ones(3, np.int64))
    cartpole.end_round()
    assert reward.tolist() == [[1.0] * 3] * 4


def test_nothing_works_before_a_reset_or_after_close():
    """Both states are said as they are; closing twice is fine."""
    pool = native.make("CartPole-v1", 3, num_threads=2)
    for call in (pool.save, lambda: pool.observation, lambda: pool.step(np.zeros(3, np.int64))):
        with pytest.raises(RuntimeError, match="not every environment is ready"):
            call()
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="this pool is closed"):
        pool.reset(seed=1)


def test_two_threads_at_a_time_are_refused():
    """A second call while one runs is refused instead of racing with it; both threads can continue afterwards."""
    pool = native.make("CartPole-v1", 20_000)
    pool.reset(seed=0)
    actions = np.ones(20_000, np.int64)
    refused = threading.Event()

    def step_until_refused() -> None:
        deadline = time.monotonic() + 150
        while not refused.is_set() and time.monotonic() < deadline:
            try:
                pool.step(actions)
            except RuntimeError as error:
                assert "used by another thread" in str(error)  # noqa: PT017
                refused.set()

    threads = [threading.Thread(target=step_until_refused) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert pool.step(actions)[0].shape == (20_000, 4)


def test_unseeded_pools_differ():
    """Without a seed the operating system gives one: two pools do not show the same."""
    first, second = (native.make("CartPole-v1", 2).reset()[0] for _ in range(2))
    assert not np.array_equal(first, second)
