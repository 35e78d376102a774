"""MiniGrid's tasks: what its Gymnasium environments give, seen as an image of cells."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from penstock import native

DOORKEY = "minigrid/MiniGrid-DoorKey-5x5-v0"


@pytest.fixture(name="wrappers")
def _wrappers():
    return pytest.importorskip("minigrid.wrappers", reason="comes with penstock-rl[minigrid]")


def test_tasks_equal_minigrids_own_without_words(wrappers):
    """The view, rewards and ends are those of MiniGrid's environment with its own wrapper and the same seed."""
    pool = native.make(DOORKEY, 1, autoreset_mode="Disabled", max_steps=30)
    env = wrappers.ImgObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0", max_steps=30))
    np.testing.assert_array_equal(pool.reset(seed=4)[0][0], env.reset(seed=4)[0])
    env.action_space.seed(0)
    for _ in range(30):
        action = int(env.action_space.sample())
        got, wanted = pool.step(np.array([action])), env.step(action)
        np.testing.assert_array_equal(got[0][0], wanted[0])
        assert [got[1][0], got[2][0], got[3][0]] == list(wanted[1:4])
    assert pool.environment["observation"] == {"dtype": "uint8", "shape": (7, 7, 3)}
    assert pool.environment["max_episode_steps"] == 30


def test_a_wrapper_may_see_the_words(wrappers):
    """Those that are named come before the words are dropped, and what they make of them stays."""
    flat = native.make(DOORKEY, 1, wrappers=(wrappers.FlatObsWrapper,))
    assert len(flat.environment["observation"]["shape"]) == 1
    whole = native.make(DOORKEY, 1, wrappers=(wrappers.FullyObsWrapper,))
    assert whole.environment["observation"]["shape"] == (5, 5, 3)


def test_the_limit_of_a_task_is_reported(wrappers):
    """250 steps of DoorKey; a BabyAI task has one for each mission, and so none here."""
    assert native.make(DOORKEY, 1).environment["max_episode_steps"] == 250
    assert native.make("minigrid/BabyAI-GoToRedBall-v0", 1).environment["max_episode_steps"] is None
    assert native.make(DOORKEY, 1, max_episode_steps=9).environment["max_episode_steps"] == 9
    assert native.make("minigrid/MiniGrid-Empty-5x5-v0", 1, size=16).environment["max_episode_steps"] == 4 * 16**2


@pytest.mark.parametrize(
    ("name", "near"),
    [("minigrid-doorkey-5x5-v0", "; similar: minigrid/MiniGrid-DoorKey-5x5-v0, "), ("CartPole-v1", "")],
)
def test_ids_that_are_none_of_minigrids_are_refused(wrappers, name, near):
    """With similar ones of MiniGrid, and no others, and the command that lists all."""
    said = f"MiniGrid has no environment 'minigrid/{name}'{near}.*; `penstock envs minigrid/` lists all"
    with pytest.raises(ValueError, match=said) as caught:
        native.make(f"minigrid/{name}", 1)
    assert "similar: minigrid/CartPole" not in str(caught.value)


def test_a_missing_package_is_named_with_its_extra():
    """Without MiniGrid."""
    code = f"import sys; sys.modules['minigrid'] = None; from penstock.native import make; make('{DOORKEY}', 1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{DOORKEY} needs MiniGrid, and importing it failed" in result.stderr
    assert "pip install 'penstock-rl[minigrid]'" in result.stderr
