"""The mask of allowed choices of another library's environment comes in front of the array, from wherever it is."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from penstock import native
from penstock.native.adapters.one_array import MaskedArray

from ...support.environments.structured import CHOICES, ID, Explorer


class Board(gymnasium.Env[Any, Any]):
    """Observes bytes, and gives what it is told as its mask."""

    def __init__(self, mask: Any = (1, 0), space: Any = None, actions: Any = None) -> None:
        self.observation_space = space or Box(0, 255, (4, 5, 1), np.uint8)
        self.action_space = actions or Discrete(2, start=7)
        self.info = {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full((4, 5, 1), 200, np.uint8), {"action_mask": np.array([1, 1])}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((4, 5, 1), 100, np.uint8), 0.0, action == 8, False, self.info


@pytest.mark.parametrize("source", ["info", "observation"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_mask_comes_first_in_rounds_too(source: str, mode: str):
    """Every observation begins with what the environment allows then, also the last one of an episode."""
    arguments = {"one_array": True, "action_mask": source, "masked": source, "vectorization_mode": mode}
    pool = native.make(ID, 1, structured=True, **arguments)
    described = pool.environment["observation"]
    assert described["behind_mask"] == (258,)
    assert described["shape"] == (CHOICES + 258,)
    names = [leaf["name"] for leaf in described["leaves"]]
    assert names == ["action_mask", "arm.position", "camera", "goal.0", "goal.1.0", "goal.1.1", "shift"]
    pool.reset_ids(np.array([5], np.uint64))
    rounds = np.zeros((20, 1, CHOICES + 258), np.float32)
    flags = [np.zeros((20, 1), dtype) for dtype in (np.uint8, np.uint8, np.int32)]
    pool.begin_round(rounds, np.zeros((20, 1), np.float32), *flags)
    theirs = Explorer(masked=source)
    theirs.reset(seed=5)
    for step in range(20):
        mask = rounds[step, 0, :CHOICES]
        assert mask.tolist() == theirs.mask.tolist()
        action = int(mask.argmax())
        if theirs.step(action)[2]:
            theirs.reset()
        pool.step_round(step, np.array([action]))
    end = pool.end_round()
    assert end.bootstrap_observation[:, :CHOICES].sum(1).tolist() == [2.0] * 3
    pool.close()


def test_a_single_array_behind_the_mask_keeps_its_type_and_shape():
    """So that a network for images takes it; the other key of a Dict is taken out of it."""
    env = MaskedArray(Board(), "info", structured=False)
    assert env.observation_space == Box(np.zeros(22), np.array([1] * 2 + [255] * 20), dtype=np.uint8)
    assert env.observation_space.behind_mask == (4, 5, 1)
    seen, _ = env.reset()
    assert seen.dtype == np.uint8
    assert seen.tolist() == [1, 1] + [200] * 20
    assert env.step(7)[0].tolist() == [1, 0] + [100] * 20
    flat = native.make(ID, 1, one_array=True, action_mask="observation", masked="observation", flat=True)
    assert flat.environment["observation"] == {"dtype": "float32", "shape": (6,), "behind_mask": (3,)}
    bits = Dict({"lamps": MultiBinary([2, 3]), "action_mask": Box(0, 1, (2,), np.int8)})
    assert MaskedArray(Board(space=bits), "observation", structured=False).observation_space.behind_mask == (2, 3)


def test_a_missing_mask_is_refused_unless_the_episode_is_over():
    """The error says what was expected where; nobody acts after the end."""
    env = MaskedArray(Board(mask=None), "info", structured=False)
    env.reset()
    with pytest.raises(ValueError, match=r"'action_mask' is missing, expected 0 or 1 for each of the 2 choices"):
        env.step(7)
    assert env.step(8)[0][:2].tolist() == [1, 1]
    for mask in ([1, 1, 1], [0.5, 1], 1):
        wrong = MaskedArray(Board(mask=mask), "info", structured=False)
        with pytest.raises(ValueError, match=r"'action_mask' is .*, expected 0 or 1 for each"):
            wrong.step(7)


@pytest.mark.parametrize(
    ("board", "source", "message"),
    [
        (Board(), "observation", r"the observation space is Box.*expected a Dict whose 'action_mask' has a number for"),
        (Board(space=Dict({"action_mask": MultiBinary(3)})), "observation", r"each of the 2 choices; .*choose 'info'"),
        (Board(actions=Box(0, 1, (2,))), "info", r"the actions are Box.*expected Discrete ones; leave it out"),
    ],
)
def test_what_has_no_such_mask_is_refused(board: Any, source: Any, message: str):
    """Before anything is stepped."""
    with pytest.raises(ValueError, match=message):
        MaskedArray(board, source, structured=False)


@pytest.mark.parametrize(
    ("env_id", "source", "message"),
    [
        ("CartPole-v1", "info", "action_mask = 'info': CartPole-v1 observes one array as it is, .*; leave it out$"),
        ("toy/Taxi-v4", "info", "; leave it out, or choose 'Taxi-v4', the same environment stepped by another library"),
        (ID, "infos", "action_mask is 'infos', expected 'info', 'observation' or None"),
    ],
)
def test_options_without_an_effect_are_refused(env_id: str, source: Any, message: str):
    """Environments of this package say themselves what they forbid."""
    with pytest.raises(ValueError, match=message):
        native.make(env_id, 1, one_array=True, action_mask=source)
