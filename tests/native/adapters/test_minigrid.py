"""MiniGrid's tasks: what its Gymnasium environments give, seen as an image of cells."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, MultiBinary
from gymnasium.spaces.utils import flatten

from penstock import native

from ...support.environments.rounds import assert_same, play

DOORKEY = "minigrid/MiniGrid-DoorKey-5x5-v0"
STRUCTURED = {"one_array": True, "structured": True}


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


class Allowing(gymnasium.Wrapper):
    """Says that the first action alone is allowed, in its infos and observations."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = Dict({**env.observation_space.spaces, "action_mask": MultiBinary(7)})

    def reset(self, **kwargs):
        return self._masked(*self.env.reset(**kwargs))

    def step(self, action):
        seen, *rest, info = self.env.step(action)
        seen, info = self._masked(seen, info)
        return seen, *rest, info

    def _masked(self, seen, info):
        mask = np.eye(7, dtype=np.int8)[0]
        return {**seen, "action_mask": mask}, {**info, "action_mask": mask}


def test_structured_observations_equal_minigrids_own_but_for_the_words(wrappers):
    """View and direction are leaves, and the array is Gymnasium's flattening of them, step for step."""
    pool = native.make(DOORKEY, 1, autoreset_mode="Disabled", **STRUCTURED)
    described = pool.environment["observation"]
    assert [(leaf["name"], leaf["kind"], leaf["shape"]) for leaf in described["leaves"]] == [
        ("direction", "choice", ()),
        ("image", "image", (7, 7, 3)),
    ]
    assert (described["dtype"], described["shape"]) == ("float32", (4 + 7 * 7 * 3,))
    env = gymnasium.make("MiniGrid-DoorKey-5x5-v0")
    space = Dict({name: env.observation_space[name] for name in ("direction", "image")})
    got, (wanted, _) = pool.reset(seed=4)[0][0], env.reset(seed=4)
    env.action_space.seed(0)
    for _ in range(30):
        np.testing.assert_array_equal(got, flatten(space, {name: wanted[name] for name in space}))
        action = int(env.action_space.sample())
        got, wanted = pool.step(np.array([action]))[0][0], env.step(action)[0]


def test_a_structured_state_is_restored_by_the_same_actions(wrappers):
    """Over the ends of episodes too."""
    pools = [native.make(DOORKEY, 2, max_episode_steps=7, **STRUCTURED) for _ in range(2)]
    actions = np.random.default_rng(0).integers(0, 7, (20, 2))
    pools[0].reset_ids(np.array([2**40, 9], np.uint64))
    play(pools[0], actions)
    pools[1].restore(pools[0].save())
    assert_same(*(play(pool, actions) for pool in pools))


def test_a_mission_in_numbers_is_a_leaf(wrappers):
    """MiniGrid's own wrapper makes choices of its words; without `structured`, they are dropped as before."""
    asked = {"wrappers": (wrappers.DictObservationSpaceWrapper,), "one_array": True}
    leaves = native.make(DOORKEY, 1, structured=True, **asked).environment["observation"]["leaves"]
    assert [leaf["name"] for leaf in leaves] == ["direction", "image", "mission"]
    assert native.make(DOORKEY, 1, **asked).environment["observation"] == {"dtype": "uint8", "shape": (7, 7, 3)}


@pytest.mark.parametrize("source", ["info", "observation"])
def test_the_mask_of_a_wrapper_comes_before_the_view(wrappers, source):
    """The view behind it keeps its bytes and shape, so that the same network takes it; structured, it is a leaf."""
    asked = {"wrappers": (Allowing,), "one_array": True, "action_mask": source}
    pool = native.make(DOORKEY, 1, **asked)
    assert pool.environment["observation"] == {"dtype": "uint8", "shape": (154,), "behind_mask": (7, 7, 3)}
    pool.reset(seed=1)
    assert pool.step(np.zeros(1, np.int64))[0][0, :7].tolist() == [1, 0, 0, 0, 0, 0, 0]
    leaves = native.make(DOORKEY, 1, structured=True, **asked).environment["observation"]["leaves"]
    assert leaves[0]["name"] == "action_mask"
    assert [leaf["name"] for leaf in leaves][-2:] == ["direction", "image"]


def test_a_mask_that_there_is_not_is_refused(wrappers):
    """MiniGrid has none of its own."""
    with pytest.raises(ValueError, match="expected a Dict whose 'action_mask' has a number for each of the 7 choices"):
        native.make(DOORKEY, 1, one_array=True, action_mask="observation")


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
