"""Steps of chosen environments: what the same environments give when they are stepped alone."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

from penstock import native

LEFT_RIGHT = np.array([0, 1], np.int64)


def pool(num_envs: int = 5, **options) -> native.Pool:
    made = native.make("CartPole-v1", num_envs, autoreset_mode="Disabled", record_episode_statistics=True, **options)
    made.reset(seed=20)
    return made


def test_chosen_environments_step_as_if_alone():
    """In any order and any choice, each environment goes through what it goes through in a pool of its own."""
    together = pool()
    alone = [native.make("CartPole-v1", 1, autoreset_mode="Disabled") for _ in range(5)]
    for number, one in enumerate(alone):
        one.reset(seed=20 + number)
    generator = np.random.default_rng(0)
    ended = np.zeros(5, bool)
    for _ in range(120):
        going = np.flatnonzero(~ended)
        if not len(going):
            break
        rows = generator.permutation(going)[: generator.integers(1, len(going) + 1)]
        actions = generator.integers(0, 2, len(rows))
        observation, reward, terminated, truncated, infos = together.step_rows(actions, rows)
        assert [observation.shape, reward.dtype, terminated.dtype] == [(len(rows), 4), np.float64, np.bool_]
        for place, row in enumerate(rows):
            theirs = alone[row].step(actions[place : place + 1])
            ours = [array[place : place + 1] for array in (observation, reward, terminated, truncated)]
            assert data_equivalence(list(theirs[:4]), ours, exact=True)
            if terminated[place]:
                assert infos["_episode"][place]
                assert infos["episode"]["r"][place] == infos["episode"]["l"][place]
        ended[rows] = terminated | truncated
    assert ended.any()
    assert np.array_equal(together.get_attr("episode_return"), together.get_attr("elapsed_steps"))


def test_all_environments_in_order_equal_a_step():
    """step_rows of all of them is step, the state that it leaves included."""
    left, right = pool(), pool()
    actions = np.array([0, 1, 1, 0, 1])
    ours, theirs = left.step_rows(actions, np.arange(5)), right.step(actions)
    assert data_equivalence(list(ours), list(theirs), exact=True)
    states = left.save(), right.save()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1])


@pytest.mark.parametrize(
    ("actions", "rows", "error", "message"),
    [
        (LEFT_RIGHT, [0, 5], ValueError, "from 0 to num_envs - 1, got 5"),
        (LEFT_RIGHT, [-1, 2], ValueError, "got -1"),
        (LEFT_RIGHT, [2, 2], ValueError, "got 2 twice"),
        (LEFT_RIGHT, [1, 2**32 + 2], ValueError, "from 0 to num_envs - 1, got 4294967298"),
        (LEFT_RIGHT, np.array([1, 2**64 - 1], np.uint64), ValueError, "got 18446744073709551615"),
        (LEFT_RIGHT, [0.9, 1.9], ValueError, "expected their numbers, integers, got float64"),
        (LEFT_RIGHT, np.array([False, True]), ValueError, "integers, got bool"),
        (LEFT_RIGHT, [1, 2, 3], ValueError, r"shape \(3,\)"),
        (np.array([0, 2]), [1, 3], ValueError, "action 2 of environment 3"),
    ],
)
def test_impossible_rows_are_refused(actions, rows, error, message):
    """Nothing moves, and the message says which number or action it was."""
    made = pool()
    before = made.save()
    with pytest.raises(error, match=message):
        made.step_rows(actions, rows)
    assert all(np.array_equal(before[name], after) for name, after in made.save().items())


def test_ended_episode_needs_a_reset():
    """A step after an episode's end is refused with the advice to reset; the other environments can continue."""
    made = pool(2, max_episode_steps=1)
    made.step_rows([0], [1])
    with pytest.raises(RuntimeError, match="episode of environment 1 has ended"):
        made.step_rows([0, 0], [0, 1])
    made.step_rows([0], [0])
    made.reset(options={"reset_mask": np.array([False, True])})
    made.step_rows([0], [1])


def test_pools_that_reset_by_themselves_refuse():
    """There the caller does not know whom a step resets."""
    made = native.make("CartPole-v1", 2)
    made.reset(seed=0)
    with pytest.raises(ValueError, match="autoreset_mode='Disabled', this one has 'NextStep'"):
        made.step_rows([0], [1])
