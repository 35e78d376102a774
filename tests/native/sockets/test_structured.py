"""Structured spaces over a socket: a pool has the served environment's, and makes the same of them as a wrapped one."""

from collections import OrderedDict
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from penstock import native
from penstock.native.adapters.one_array import OneArray, is_one_array
from penstock.native.sockets.server import EnvironmentServer

from ...support.environments import structured_environments
from ...support.environments.structured import ID
from ...support.environments.structured_environments import SCENE, SPACES, registered_id
from ...support.services.environment_server import EnvironmentProcess
from .test_socket_pool import Drifting, assert_same_rounds, play_rounds, served, serving

SAMPLED = "test/Sampled-v0"
OBSERVED: dict[str, Any] = {
    "choice": Discrete(5, start=-2),
    "choices": MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-3, 7]]),
    "small choices": Dict(a=Discrete(3), b=MultiDiscrete([2, 2], dtype=np.int16)),
    "bits": MultiBinary([2, 3]),
    "bytes": Box(0, 255, (2, 3), np.uint8),
    "bounds": Dict(a=Box(np.array([-1, -np.inf, 0]), np.array([np.inf, 5, 0.25]), dtype=np.float64)),
    "numbers": Tuple([Box(-1, 1, (), kind) for kind in (np.float16, np.float32, np.float64)]),
    "integers": Dict(a=Box(-(1 << 63), (1 << 63) - 2, (2,), np.int64), b=Box(-3, 9, (1,), np.int16)),
    "booleans": Dict(a=Box(0, 1, (4,), np.bool_), b=Box(0, 1, (1,), np.float32)),
    "order": Dict(
        OrderedDict(z=Discrete(2), a=Tuple([Discrete(3), Dict(OrderedDict(y=MultiBinary(2), x=Discrete(2)))]))
    ),
}


class Sampled(gymnasium.Env[Any, Any]):
    """Shows samples of a space, in episodes of four steps."""

    def __init__(self, kind: str = "choice") -> None:
        self.observation_space, self.action_space = deepcopy(OBSERVED[kind]), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), float(action), self.steps == 4, False, {}


if SAMPLED not in gymnasium.registry:
    gymnasium.register(SAMPLED, Sampled)


def assert_equal(one: Any, other: Any) -> None:
    """Assert that two nested values have the same structure, types and numbers."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = tuple(one.values()), tuple(other.values())
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def both(env_id, server, num_envs=3, **options):
    """Return a pool of a server, and one that Gymnasium steps."""
    name = env_id.rpartition(":")[2]
    pools = [
        native.make(f"socket/{name}", num_envs, address=server.address, **options),
        native.make(f"gymnasium/{env_id}", num_envs, **options),
    ]
    assert pools[0].single_observation_space == pools[1].single_observation_space
    assert pools[0].own_action_space == pools[1].own_action_space
    return pools


@pytest.mark.parametrize("kind", OBSERVED)
def test_observations_are_the_environments_own(kind):
    """Spaces with their order, bounds and types, and every value in them, seed for seed up to the end of an episode."""
    with served(SAMPLED) as server:
        pools = both(SAMPLED, server, kind=kind)
        assert_equal(*(pool.reset(seed=[5, 1, 7])[0] for pool in pools))
        for step in range(4):
            found = [pool.step(np.array([0, 1, 1])) for pool in pools]
            assert pools[0].observation_space.contains(found[0][0])
            for one, other in zip(found[0][:4], found[1][:4], strict=True):
                assert_equal(one, other)
            assert found[0][2].all() == (step == 3)
        for pool in pools:
            pool.close()


def test_the_last_observations_of_same_step_mode_are_nested_too():
    """As Gymnasium's vectorisers give them in infos."""
    with served(SAMPLED) as server:
        pools = both(SAMPLED, server, kind="order", autoreset_mode="SameStep")
        for pool in pools:
            pool.reset(seed=[5, 1, 7])
        for _ in range(4):
            found = [pool.step(np.array([0, 1, 1]))[4] for pool in pools]
        for one, other in zip(found[0]["final_obs"], found[1]["final_obs"], strict=True):
            assert_equal(one, other)
        for pool in pools:
            pool.close()


@pytest.mark.parametrize("kind", [*(kind for kind, space in OBSERVED.items() if not is_one_array(space)), "explorer"])
def test_leaves_and_their_array_are_those_of_a_wrapped_pool(kind):
    """With `structured`; the array, its type and its leaves, and an encoder for policies."""
    env_id, options = (ID, {}) if kind == "explorer" else (SAMPLED, {"kind": kind})
    with served(env_id) as server:
        pools = both(env_id, server, one_array=True, structured=True, **options)
        assert pools[0].environment["observation"] == pools[1].environment["observation"]
        assert isinstance(pools[0].single_observation_space, OneArray)
        assert pools[0].single_observation_space.encode == pools[1].single_observation_space.encode
        assert_equal(*(pool.reset(seed=[5, 1, 7])[0] for pool in pools))
        for _ in range(4):
            assert_equal(*(pool.step(np.array([0, 1, 1]))[0] for pool in pools))
        for pool in pools:
            pool.close()


def test_without_the_option_the_array_is_that_of_version_1():
    """So that runs from then go on: as FlattenObservation has it, with floats in place of whole numbers but bytes."""
    expected = {"choices": ((14,), "float32"), "bits": ((6,), "float32"), "bytes": ((2, 3), "uint8")}
    expected |= {"choice": ((5,), "float32"), "integers": ((3,), "float32"), "numbers": ((3,), "float64")}
    with served(SAMPLED) as server:
        for kind, (shape, dtype) in expected.items():
            pool = native.make(f"socket/{SAMPLED}", 2, address=server.address, one_array=True, kind=kind)
            assert pool.environment["observation"] == {"dtype": dtype, "shape": shape}, kind
            seen = pool.reset(seed=[3, 4])[0]
            own = gymnasium.make(SAMPLED, kind=kind)
            if kind != "bytes":
                own = gymnasium.wrappers.FlattenObservation(own)
            np.testing.assert_array_equal(seen[0].reshape(shape), own.reset(seed=3)[0].astype(dtype).reshape(shape))
            pool.close()


@pytest.mark.parametrize("kind", SPACES)
def test_structured_actions_reach_the_environment(kind):
    """It refuses what its space does not contain; vectors earn what they earn in a wrapped pool."""
    env_id = registered_id(kind)
    with served(env_id) as server:
        pools = both(env_id, server, one_array=True, one_action=True)
        assert pools[0].environment["action"] == pools[1].environment["action"]
        for pool in pools:
            pool.reset(seed=[5, 1, 7])
        pools[0].action_space.seed(1)
        for _ in range(8):
            vectors = pools[0].action_space.sample()
            found = [pool.step(vectors) for pool in pools]
            for one, other in zip(found[0][:4], found[1][:4], strict=True):
                assert_equal(one, other)
        vectors[1, 0] = np.nan
        with pytest.raises(ValueError, match=r"action of environment 1.*is nan"):
            pools[0].step(vectors)
        for pool in pools:
            pool.close()


def test_the_environments_own_actions_cross_too():
    """Without `one_action`, as Gymnasium's `batch_space` nests them; what is none is refused, and steps nothing."""
    with served(registered_id("Hybrid")) as server:
        pools = both(registered_id("Hybrid"), server)
        for pool in pools:
            pool.reset(seed=0)
        pools[0].action_space.seed(1)
        action = pools[0].action_space.sample()
        assert_equal(*(pool.step(action)[1] for pool in pools))
        wrong = {**action, "gear": action["gear"].copy()}
        wrong["gear"][2] = 9
        for pool in pools:
            with pytest.raises(ValueError, match=r"expected a dictionary of \['arm', 'gear'\], got \['arm'\]"):
                pool.step({"arm": action["arm"]})
            with pytest.raises(ValueError, match=r"\['gear'\]: 9 of environment 2 is out of range: expected 2 to 4"):
                pool.step(wrong)
            with pytest.raises(ValueError, match=r"\['arm'\]: expected a tuple of 2 parts"):
                pool.step({**action, "arm": action["arm"][:1]})
            with pytest.raises(ValueError, match=r"\['arm'\]\[0\]: expected float64 of shape \(3, 2\), got .*\(2, 3\)"):
                pool.step({**action, "arm": (action["arm"][0].T, action["arm"][1])})
        assert_equal(*(pool.step(action)[1] for pool in pools))
        for pool in pools:
            pool.close()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"a": np.zeros(3), "b": 0}, r"'a' has the shape \(3,\) of float64, expected \(2,\) of float32"),
        ({"a": np.zeros(2)}, r"'b' is missing, expected shape \(\) of int64"),
        ({"a": np.zeros(2), "b": 9}, r"'b' of environment 0 is 9, expected 0 to 2"),
        (np.zeros(2), r"'a' is missing"),
        ({"a": np.zeros(2), "b": 0.7}, r"'b' is 0\.7, expected whole numbers"),
        ({"a": np.zeros(2), "b": np.nan}, r"'b' is nan, expected whole numbers"),
        ({"a": np.zeros(2), "b": np.inf}, r"'b' has inf to inf, expected -9223372036854775808 to"),
        ({"a": np.zeros((2, 1)), "b": 0}, r"'a' has the shape \(2, 1\) of float64, expected \(2,\) of float32"),
    ],
)
def test_observations_that_are_none_of_the_space_are_named(shown, said):
    """A leaf of a wrong size, one that is missing, and a choice that there is not."""

    class Other(Drifting):
        observation_space = Dict(a=Box(-1, 1, (2,)), b=Discrete(3))

        def reset(self, *, seed):
            return shown, {}

    with serving(EnvironmentServer(Other, "Other", "127.0.0.1:0")) as server:
        pool = native.make("socket/Other", 1, address=server.address)
        with pytest.raises(RuntimeError, match=said):
            pool.reset(seed=0)
        pool.close()


def test_whole_numbers_that_an_image_has_not_are_named():
    """They are not cut to its eight bits."""

    class Other(Drifting):
        observation_space = Box(0, 255, (2,), np.uint8)

        def reset(self, *, seed):
            return np.array([255, 300]), {}

    with serving(EnvironmentServer(Other, "Other", "127.0.0.1:0")) as server:
        pool = native.make("socket/Other", 1, address=server.address)
        with pytest.raises(RuntimeError, match="the value has 255 to 300, expected 0 to 255"):
            pool.reset(seed=0)
        pool.close()


def test_whole_numbers_may_be_floats():
    """A choice and an image may be, as environments give them that compute with floats."""

    class Other(Drifting):
        observation_space = Dict(a=Box(0, 255, (2,), np.uint8), b=Discrete(3))

        def reset(self, *, seed):
            return {"a": np.array([255.0, 3.0]), "b": 2.0}, {}

    with serving(EnvironmentServer(Other, "Other", "127.0.0.1:0")) as server:
        pool = native.make("socket/Other", 1, address=server.address)
        observation, _ = pool.reset(seed=0)
        assert (observation["a"].tolist(), observation["b"].tolist()) == ([[255, 3]], [2])
        pool.close()


def test_a_plain_observation_of_another_size_is_named():
    """It is not repeated to fill the row."""

    class Other(Drifting):
        observation_space = Box(-1, 1, (4,))

    with serving(EnvironmentServer(Other, "Other", "127.0.0.1:0")) as server:
        pool = native.make("socket/Other", 1, address=server.address)
        with pytest.raises(RuntimeError, match=r"the value has the shape \(1,\) of float32, expected \(4,\)"):
            pool.reset(seed=0)
        pool.close()


def test_a_space_that_is_nested_too_deep_is_not_served():
    """By the server, as a client refuses it."""
    space = Discrete(2)
    for _ in range(40):
        space = Tuple([space])
    kind = type("Deep", (Drifting,), {"observation_space": space})
    with (
        serving(EnvironmentServer(kind, "Deep", "127.0.0.1:0")) as server,
        pytest.raises(ValueError, match="nested deeper than 32 levels"),
    ):
        native.make("socket/Deep", 1, address=server.address)


def test_a_killed_server_of_structured_spaces_leaves_no_trace():
    """Observations of several parts and hybrid actions are played again as they were."""
    with EnvironmentProcess(f"{structured_environments.__name__}:{SCENE}") as server:
        options = {"one_array": True, "one_action": True, "structured": True}
        pool = native.make(f"socket/{SCENE}", 3, address=server.address, reconnect_seconds=30, **options)

        def draw(rng):
            return np.ascontiguousarray(pool.action_space.sample())

        pool.action_space.seed(3)
        wanted = play_rounds(pool, draw=draw)
        pool.action_space.seed(3)

        def between(step):
            if step in {0, 43}:
                server.kill()
                server.start()

        got = play_rounds(pool, between=between, draw=draw)
        assert_same_rounds(got, wanted)
        pool.close()
