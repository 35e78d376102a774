"""EnvPool's tasks: what EnvPool gives in both autoreset modes, and episodes that are functions of seeds and actions."""

import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from gymnasium.spaces.utils import flatten, flatten_space

from penstock import native
from penstock.native.adapters.batched_array import BatchedArray, with_true_bounds
from penstock.native.adapters.one_array import Encoding, masked_encoding

from ...support.environments.rounds import assert_same, play

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")
NUM_ENVS, STEPS = 3, 60
CARTPOLE, BALANCE, CATCH = "envpool/CartPole-v1", "envpool/CartpoleBalance-v1", "envpool/Catch-v0"
MAZE, PLAY = "envpool/Maze-v0", "envpool/Play2048-v1"


@pytest.fixture(name="envpool")
def _envpool():
    return pytest.importorskip("envpool", reason="comes with penstock-rl[envpool]")


def actions_of(pool):
    pool.action_space.seed(0)
    return [pool.action_space.sample() for _ in range(STEPS)]


def test_next_steps_are_envpools_own(envpool):
    """Observations, rewards and flags of an EnvPool that was made with the same seeds, resets included."""
    pool = native.make(CARTPOLE, NUM_ENVS)
    own = envpool.make_gymnasium("CartPole-v1", num_envs=NUM_ENVS, num_threads=1, seed=[5, 6, 7])
    np.testing.assert_array_equal(pool.reset(seed=5)[0], own.reset()[0])
    ended = 0
    for action in actions_of(pool):
        got, wanted = pool.step(action), own.step(action.astype(np.int32))
        for left, right in zip(got[:4], wanted[:4], strict=True):
            np.testing.assert_array_equal(left, right)
        ended += int(got[2].sum())
    assert ended > 2
    pool.close()


def test_a_reset_in_the_same_step_shows_the_last_observation_too(envpool):
    """The final observation is what EnvPool shows after the episode's last step, and the next episode has begun."""
    same, own = native.make(CARTPOLE, 1, autoreset_mode="SameStep"), native.make(CARTPOLE, 1)
    same.reset(seed=1)
    own.reset(seed=1)
    for action in actions_of(same):
        got, wanted = same.step(action), own.step(action)
        if wanted[2][0]:
            np.testing.assert_array_equal(got[4]["final_obs"][0], wanted[0][0])
            assert (np.abs(got[0]) <= 0.05).all()
            break
        np.testing.assert_array_equal(got[0], wanted[0])
    else:
        pytest.fail("no episode ended")
    assert same.step(np.zeros(1, np.int64))[4]["elapsed_step"] == [1]


def test_dictionaries_are_one_array_as_gymnasium_flattens_them(envpool):
    """It holds for dm_control's task in EnvPool, and for every kind of leaf."""
    pool, plain = native.make(BALANCE, 2, one_array=True), native.make(BALANCE, 2)
    got, parts = pool.reset(seed=3)[0], plain.reset(seed=3)[0]
    np.testing.assert_array_equal(got, np.concatenate([parts["position"], parts["velocity"]], axis=1))
    assert pool.environment["observation"] == {"dtype": "float64", "shape": (5,)}
    space = Dict(
        {"a": Discrete(3, start=1), "b": Dict({"c": Box(-1, 1, (2, 2)), "d": MultiBinary(2)}), "e": Discrete(2)}
    )
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    inner = {name: np.stack([row["b"][name] for row in rows]) for name in ("c", "d")}
    batch = {**{name: np.array([row[name] for row in rows]) for name in "ae"}, "b": inner}
    encoder = BatchedArray(space)
    np.testing.assert_array_equal(encoder(batch), np.stack([flatten(space, row) for row in rows]))
    assert encoder.space.shape == flatten_space(space).shape


def as_rows(batch):
    """The leaves of nested dictionaries, by name."""
    found = {}
    for name, part in batch.items():
        of_part = {f"{name}.{key}": value for key, value in as_rows(part).items()} if isinstance(part, dict) else None
        found |= of_part or {name: np.asarray(part)}
    return found


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_leaves_and_masks_equal_envpools_own(envpool, mode):
    """Each leaf in the array is EnvPool's, a choice one-hot, behind the mask, over the ends of episodes too."""
    asked = {"one_array": True, "structured": True, "action_mask": "observation"}
    pool, plain = (
        native.make(MAZE, NUM_ENVS, autoreset_mode=mode, max_episode_steps=9, **more) for more in (asked, {})
    )
    described = pool.environment["observation"]
    assert described["leaves"][0]["name"] == "action_mask"
    assert described["behind_mask"] == (described["shape"][0] - 4,)
    got, wanted = pool.reset(seed=5)[0], plain.reset(seed=5)[0]
    for action in actions_of(plain)[:25]:
        first, own = 0, as_rows(wanted)
        assert {leaf["name"] for leaf in described["leaves"]} == own.keys()
        for leaf in described["leaves"]:
            part = own[leaf["name"]].reshape(NUM_ENVS, -1)
            if leaf["kind"] == "choice":
                part = np.eye(leaf["sizes"][0])[part[:, 0]]
            np.testing.assert_array_equal(got[:, first : first + part.shape[1]], part)
            first += part.shape[1]
        assert got.shape == (NUM_ENVS, first)
        got, wanted = pool.step(action)[0], plain.step(action)[0]


def test_leaves_of_floats_keep_their_type(envpool):
    """Nothing passes through float32."""
    pool = native.make(BALANCE, 2, one_array=True, structured=True)
    assert pool.environment["observation"]["dtype"] == "float64"
    assert [(leaf["name"], leaf["shape"]) for leaf in pool.environment["observation"]["leaves"]] == [
        ("position", (3,)),
        ("velocity", (2,)),
    ]


def test_a_mask_among_infos_comes_before_the_board(envpool):
    """PGX calls it `legal_action_mask`; rounds have it too, and in the same step that of the next episode."""
    pool, plain = native.make(PLAY, 2, one_array=True, action_mask="info"), native.make(PLAY, 2)
    assert pool.environment["observation"] == {"dtype": "int8", "shape": (500,), "behind_mask": (4, 4, 31)}
    (seen, _), (board, infos) = pool.reset(seed=2), plain.reset(seed=2)
    pool.reset_ids(np.array([2, 3], np.uint64))
    actions = np.array([np.argmax(seen[:, :4], 1)] * 3)
    rounds = play(pool, actions)["observation"]
    board, _, _, _, infos = plain.step(actions[0])
    np.testing.assert_array_equal(rounds[0], seen)
    np.testing.assert_array_equal(rounds[1, :, :4], infos["legal_action_mask"])
    np.testing.assert_array_equal(rounds[1, :, 4:], board.reshape(2, -1))


def test_a_batch_is_encoded_as_its_rows_are():
    """With leaves and a mask, in the observation and beside it; a single array behind the mask keeps its type."""
    space = Dict(
        {
            "a": Discrete(3, start=1),
            "b": Dict({"c": Box(-1, 1, (2, 2)), "d": MultiBinary(2)}),
            "action_mask": Box(0, 1, (2,), np.int8),
        }
    )
    space.seed(0)
    rows = [space.sample() for _ in range(4)]
    inner = {name: np.stack([row["b"][name] for row in rows]) for name in ("c", "d")}
    batch = {**{name: np.array([row[name] for row in rows]) for name in ("a", "action_mask")}, "b": inner}
    asked = Encoding(one_array=True, structured=True, action_mask="observation")
    encoder = BatchedArray(space, Discrete(2), asked)
    one, described = masked_encoding(space, Discrete(2), "observation", structured=True)
    assert encoder.space.leaves == described.leaves
    np.testing.assert_array_equal(encoder(batch), np.stack([one(row) for row in rows]))
    board = BatchedArray(Box(0, 255, (2, 3), np.uint8), Discrete(2), Encoding(one_array=True, action_mask="info"))
    seen = board(np.full((4, 2, 3), 200, np.uint8), mask=np.eye(4, 2, dtype=bool))
    assert seen.dtype == np.uint8
    assert seen[0].tolist() == [1, 0] + [200] * 6


@pytest.mark.parametrize(
    ("env_id", "source", "message"),
    [
        (MAZE, "info", "has neither 'action_mask' nor 'legal_action_mask' among its infos; choose .* 'observation'"),
        (BALANCE, "info", "among its infos; leave it out"),
        (BALANCE, "observation", "action_mask: the actions are Box.* expected Discrete ones; leave it out"),
        (CARTPOLE, "observation", "expected a Dict whose 'action_mask' has a number for each of the 2 choices"),
    ],
)
def test_masks_that_there_are_not_are_refused(envpool, env_id, source, message):
    """Before an EnvPool is made."""
    with pytest.raises(ValueError, match=message):
        native.make(env_id, 1, one_array=True, action_mask=source)


def test_bounds_that_are_none_say_so():
    """Some tasks of EnvPool call the smallest positive float the least value of an unbounded number."""
    limits = np.finfo(np.float64)
    space = with_true_bounds(Dict({"x": Box(limits.tiny, limits.max, (2,), np.float64), "y": Box(0.0, 1.0)}))
    assert space == Dict({"x": Box(-np.inf, np.inf, (2,), np.float64), "y": Box(0.0, 1.0)})


def test_a_state_with_leaves_and_a_mask_is_restored(envpool):
    """By the same actions, which include forbidden ones here."""
    asked = {"one_array": True, "structured": True, "action_mask": "observation", "max_episode_steps": 9}
    pools = [native.make(MAZE, 2, **asked) for _ in range(2)]
    actions = np.random.default_rng(0).integers(0, 4, (20, 2))
    pools[0].reset_ids(np.array([2**40, 9], np.uint64))
    play(pools[0], actions)
    pools[1].restore(pools[0].save())
    assert_same(*(play(pool, actions) for pool in pools))


@pytest.mark.parametrize("env_id", [CARTPOLE, BALANCE, CATCH])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_state_is_restored_by_the_same_actions(envpool, env_id, threads):
    """After episodes have ended too, whose successors EnvPool draws from generators that run on; with any threads."""
    made = [native.make(env_id, 2, count, one_array=True) for count in (1, threads)]
    space = made[0].action_space
    space.seed(1)
    actions = [space.sample().astype(np.float32 if made[0].environment["action"]["kind"] == "box" else np.int64)] * 40
    seen = []
    for pool in made:
        pool.reset_ids(np.array([2**40, 9], np.uint64))
        seen.append(played(pool, actions))
    np.testing.assert_array_equal(*seen)
    state = made[0].save()
    made[1].reset_ids(np.array([1, 2], np.uint64))
    played(made[1], actions[:5])
    made[1].restore(state)
    np.testing.assert_array_equal(*(played(pool, actions) for pool in made))


def played(pool, actions):
    shape, described = (len(actions), pool.num_envs), pool.environment["observation"]
    observation = np.empty((*shape, *described["shape"]), described["dtype"])
    pool.begin_round(observation, *(np.empty(shape, kind) for kind in (np.float32, np.uint8, np.uint8, np.int32)))
    for t, action in enumerate(actions):
        pool.step_round(t, action)
    pool.end_round()
    return observation


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_time_limit_holds_where_envpool_ignores_it(envpool, mode):
    """Catch lasts nine steps whatever EnvPool is told; the next episode begins when it should."""
    pool = native.make(CATCH, 2, max_episode_steps=4, autoreset_mode=mode)
    pool.reset(seed=0)
    period = 5 if mode == "NextStep" else 4
    for step in range(1, 3 * period + 1):
        _, _, terminated, truncated, infos = pool.step(np.ones(2, np.int64))
        assert not terminated.any()
        assert truncated.all() == (step % period == 4 % period)
        assert ("final_obs" in infos) == (mode == "SameStep" and truncated.any())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "envpool/CartPole-v9"}, "EnvPool has no environment 'envpool/CartPole-v9'; similar: envpool/CartPole"),
        ({"id": "envpool/NoSuch"}, "no environment 'envpool/NoSuch'; `penstock envs envpool/` lists all"),
        ({"id": "envpool/TicTacToe-v1"}, "has 2 players, whose rows EnvPool gives in any order"),
        ({"autoreset_mode": "Disabled"}, "EnvPool resets by itself; autoreset_mode is NextStep or SameStep"),
        ({"id": "envpool/Ant-v5", "frame_skips": 2}, "no setting 'frame_skips'.*did you mean frame_skip"),
        ({"id": "envpool/Ant-v5", "frame_skip": 2.5}, "frame_skip must be int, got 2.5"),
        ({"render_mode": "rgb_array"}, "can't be drawn here"),
    ],
)
def test_mistakes_are_refused_by_name(envpool, arguments, message):
    """Before anything is made."""
    with pytest.raises(ValueError, match=message):
        native.make(**{"id": CARTPOLE, "num_envs": 2} | arguments)


def test_seeds_for_some_environments_alone_are_refused(envpool):
    """EnvPool seeds its environments when it is made."""
    pool = native.make(CARTPOLE, 2)
    with pytest.raises(ValueError, match="give each a seed, or none"):
        pool.reset(seed=[1, None])
    first = pool.reset()[0]
    again = pool.reset(options={"reset_mask": np.array([True, False])})[0]
    assert (first[1] == again[1]).all()
    assert (first[0] != again[0]).any()


def test_a_missing_package_is_named_with_its_extra():
    """Without EnvPool."""
    code = f"import sys; sys.modules['envpool'] = None; from penstock.native import make; make('{CARTPOLE}', 1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "envpool/CartPole-v1 needs EnvPool, and importing it failed" in result.stderr
    assert "pip install 'penstock-rl[envpool]'" in result.stderr
