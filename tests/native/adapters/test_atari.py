"""Atari in batches: each game's trajectory is that of `step`, and what ale-py can't do is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from penstock import native

NUM_ENVS, BATCH, STEPS = 3, 2, 30
GAME: dict[str, Any] = {
    "id": "ALE/Breakout-v5",
    "num_envs": NUM_ENVS,
    "max_episode_steps": 9,
    "stack_num": 2,
    "img_height": 21,
    "img_width": 16,
}


@pytest.fixture
def pool() -> Iterator[native.EnvironmentPool]:
    """Yield three games, two a batch."""
    pool = native.make(**GAME, num_threads=2, batch_size=BATCH)
    yield pool
    pool.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_trajectories_are_those_of_synchronous_steps(mode: str):
    """Rows, rewards, ends, final observations and statistics of each game are those of `step`, in its order."""
    options = {"autoreset_mode": mode, "record_episode_statistics": True}
    together = native.make(**GAME, **options)
    observation, infos = together.reset(seed=7)
    rows = [[(observation[env], 0, False, False, None, None)] for env in range(NUM_ENVS)]
    choice = np.random.default_rng(3).integers(0, 4, (STEPS, NUM_ENVS))
    for step in range(STEPS):
        observation, reward, terminated, truncated, infos = together.step(choice[step])
        for env in range(NUM_ENVS):
            rows[env].append((observation[env], reward[env], terminated[env], truncated[env], *extras(infos, env)))
    together.close()

    apart = native.make(**GAME, **options, num_threads=2, batch_size=BATCH)
    apart.async_reset(seed=7)
    made, ends = np.zeros(NUM_ENVS, dtype=int), 0
    while made.max() < STEPS:
        observation, reward, terminated, truncated, infos = apart.recv()
        ids = infos["env_id"]
        assert ids.shape == (BATCH,)
        assert reward.dtype == np.int32
        for row, env in enumerate(ids):
            image, *others = rows[env][made[env]]
            assert np.array_equal(observation[row], image)
            found = (reward[row], terminated[row], truncated[row], *extras(infos, row))
            assert found == pytest.approx(tuple(others))
            ends += bool(terminated[row] | truncated[row])
        order = ids[::-1]
        apart.send(choice[made[order] % STEPS, order], order)
        made[ids] += 1
    assert ends
    apart.close()


def extras(infos: dict[str, Any], row: int) -> tuple[Any, Any]:
    """Return the sum of a row's final observation and its episode's return and length; None where nothing ended."""
    final = infos["final_obs"][row].sum() if infos.get("_final_obs", np.zeros(row + 1))[row] else None
    if not infos.get("_episode", np.zeros(row + 1))[row]:
        return final, None
    return final, 1000 * infos["episode"]["r"][row] + infos["episode"]["l"][row]


def test_a_reset_gives_up_what_is_under_way(pool: native.EnvironmentPool):
    """The first observations after it are those of the seeds, whatever was under way; seeds may be drawn."""
    together = native.make(**GAME)
    expected = together.reset(seed=11)[0]
    together.close()
    for batches in (1, 4):
        pool.async_reset(seed=11)
        started: set[int] = set()
        for _ in range(batches):
            observation, reward, _, _, infos = pool.recv()
            for row, env in enumerate(infos["env_id"].tolist()):
                assert env in started or np.array_equal(observation[row], expected[env])
                assert env in started or reward[row] == 0
                started.add(env)
            pool.send(np.zeros(BATCH, dtype=np.int64))
        assert len(started) >= BATCH
    pool.async_reset([3, None, None])
    assert len(pool.recv()[0]) == BATCH


def test_spaces_are_of_all_environments(pool: native.EnvironmentPool):
    """As those of any vector environment; a batch has the first `batch_size` rows of them."""
    assert pool.observation_space.shape == (NUM_ENVS, 2, 21, 16)
    assert pool.action_space.shape == (NUM_ENVS,)
    assert pool.batch_size == BATCH
    assert pool.autoreset_mode == AutoresetMode.NEXT_STEP


def test_calls_out_of_turn_are_refused(pool: native.EnvironmentPool):
    """Nothing waits for ever: a call that ale-py could not answer raises, and the pool goes on."""
    with pytest.raises(RuntimeError, match=r"no environment is under way: async_reset\(\) first"):
        pool.recv()
    with pytest.raises(RuntimeError, match=r"no environment waits for an action: recv\(\) first"):
        pool.send(np.zeros(BATCH, dtype=np.int64))
    pool.async_reset(seed=1)
    ids = pool.recv()[4]["env_id"]
    with pytest.raises(RuntimeError, match=r"no actions yet: send\(\) before the next recv"):
        pool.recv()
    pool.send(np.zeros(BATCH, dtype=np.int64), ids)
    assert len(pool.recv()[0]) == BATCH


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.reset(seed=1),
        lambda pool: pool.reset_ids(np.zeros(NUM_ENVS, np.uint64)),
        lambda pool: pool.step(np.zeros(NUM_ENVS, np.int64)),
        lambda pool: pool.observation,
        lambda pool: pool.save(),
    ],
)
def test_synchronous_calls_are_refused(call: Callable[[native.EnvironmentPool], Any], pool: native.EnvironmentPool):
    """The message says what to call instead."""
    with pytest.raises(RuntimeError, match=r"was made with batch_size = 2, .*use async_reset\(\), send\(\) and recv"):
        call(pool)


def test_wrong_actions_are_refused_and_nothing_is_sent(pool: native.EnvironmentPool):
    """An action out of range names its environment; ids are those of the latest batch."""
    with pytest.raises(ValueError, match="ale-py starts all 3 environments at once"):
        pool.async_reset(seed=1, env_ids=[0, 1])
    pool.async_reset(seed=1, env_ids=range(NUM_ENVS))
    ids = pool.recv()[4]["env_id"]
    with pytest.raises(ValueError, match=f"action 99 of environment {ids[1]} is out of range: expected 0 to 3"):
        pool.send(np.array([0, 99]))
    with pytest.raises(ValueError, match=r"expected 2 actions, got int64 of \(3,\)"):
        pool.send(np.zeros(3, dtype=np.int64))
    others = [env for env in range(NUM_ENVS) if env not in ids] + [int(ids[0])]
    with pytest.raises(ValueError, match="actions for all of the batch that it gave last"):
        pool.send(np.zeros(BATCH, dtype=np.int64), others)
    pool.send(np.zeros(BATCH, dtype=np.int64))
    pool.recv()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 4}, "batch_size is 4, expected at most num_envs, 3"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"batch_size": 2, "deterministic": True}, "deterministic is for environments that this package steps, not"),
        ({"batch_size": 2, "autoreset_mode": "Disabled"}, "ale-py resets by itself"),
        ({"batch_size": 2, "id": "ALE/Brekout-v5"}, "no Atari game is called 'ALE/Brekout-v5'"),
    ],
)
def test_make_refuses(arguments: dict[str, Any], message: str):
    """A batch has at most all games, and its order can't be fixed."""
    with pytest.raises(ValueError, match=message):
        native.make(**(GAME | arguments))
