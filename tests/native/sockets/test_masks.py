"""Masks of allowed choices over a socket: they come in front of the array, from wherever the environment gives them."""

import struct

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from penstock import native
from penstock.native.sockets import wire
from penstock.native.sockets.server import EnvironmentServer

from ...support.environments.structured import CHOICES, ID, Explorer
from ...support.services.environment_server import EnvironmentProcess
from .test_c import compiled
from .test_socket_pool import Drifting, assert_same_rounds, play_rounds, served, serving
from .test_structured import assert_equal, both
from .test_wire import BOX, CHOICE, GOOD, answering, exchanged, hello

NAME = f"socket/{ID}"
LIGHTS = r"""
#include "environment.h"
/* Choice i switches light i on; one that is on is forbidden. All three end the episode. */
typedef struct { float on[3]; } lights;
static void reset(void *state, uint64_t seed) { memset(state, 0, sizeof(lights)); ((lights *)state)->on[seed % 3] = 1; }
static penstock_result step(void *state, const void *action) {
  lights *now = state;
  int64_t choice;
  memcpy(&choice, action, sizeof choice);
  if (now->on[choice] == 1) abort();
  now->on[choice] = 1;
  const penstock_result result = {1.0, now->on[0] + now->on[1] + now->on[2] == 3, 0};
  return result;
}
static void observe(const void *state, float *out) { memcpy(out, state, sizeof(lights)); }
static void allowed(const void *state, unsigned char *out) {
  const lights *now = state;
  if (now->on[0] + now->on[1] + now->on[2] == 3) abort();
  for (int choice = 0; choice < 3; ++choice) out[choice] = now->on[choice] == 0 ? 7 : 0;
}
int main(int count, char **arguments) {
  const penstock_environment served = {.name = "Lights", .state_bytes = sizeof(lights), .observation_size = 3,
                                       .action_count = 3, .reward_threshold = NAN, .reset = reset, .step = step,
                                       .observe = observe, .action_mask = allowed};
  int port = 0, listening = penstock_listen("127.0.0.1", count > 1 ? atoi(arguments[1]) : 0, &port);
  printf("socket/Lights at 127.0.0.1:%d\n", port), fflush(stdout);
  return listening < 0 || penstock_serve(listening, &served);
}
"""
MASKED = {"one_array": True, "action_mask": "info"}


class Told(Drifting):
    """Gives what it is told as its mask, at the reset and afterwards."""

    observation_space, action_space = Box(0, 255, (4, 5, 1), np.uint8), Discrete(2, start=7)
    first, later, ends, actions = np.array([1, 0]), np.array([0, 1], np.int8), False, []

    def reset(self, *, seed):
        return np.full((4, 5, 1), 200, np.uint8), {"action_mask": self.first} if self.first is not None else {}

    def step(self, action):
        self.actions.append(action)
        info = {} if self.later is None else {"action_mask": self.later}
        return np.full((4, 5, 1), 100, np.uint8), 0.0, self.ends, False, info


def told(**attributes):
    return serving(EnvironmentServer(type("Told", (Told,), attributes), "Told", "127.0.0.1:0"))


@pytest.fixture(scope="module")
def lights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lights")
    (folder / "lights.c").write_text(LIGHTS)
    with EnvironmentProcess(command=[compiled(folder / "lights.c", folder / "lights")]) as process:
        yield process


@pytest.mark.parametrize("source", ["info", "observation"])
@pytest.mark.parametrize("structured", [False, True])
def test_the_mask_comes_first_as_in_a_wrapped_pool(source, structured):
    """Formats, observations and the environment's own mask, up to the end of an episode, whose last one needs none."""
    options = {"one_array": True, "structured": structured, "action_mask": source, "masked": source}
    with served(ID) as server:
        pools = both(ID, server, num_envs=2, **options)
        assert pools[0].environment["observation"] == pools[1].environment["observation"]
        assert pools[0].environment["observation"]["behind_mask"] == (258,)
        assert pools[0].single_observation_space.encode == pools[1].single_observation_space.encode
        seen = [pool.reset(seed=[5, 1])[0] for pool in pools]
        theirs = Explorer(masked=source)
        theirs.reset(seed=5)
        for _ in range(8):
            assert_equal(*seen)
            assert seen[0][0, :CHOICES].tolist() == theirs.mask.tolist()
            actions = seen[0][:, :CHOICES].argmax(1)
            theirs.step(int(actions[0]))
            seen = [pool.step(actions)[0] for pool in pools]
        assert_equal(*seen)
        for pool in pools:
            pool.close()


def test_a_single_array_behind_the_mask_keeps_its_type():
    """Bytes stay bytes, whose shape is described for networks; the environment gets choices from its space's start."""
    with told(actions=(acted := [])) as server:
        pool = native.make("socket/Told", 1, address=server.address, one_action=True, **MASKED)
        assert pool.environment["observation"] == {"dtype": "uint8", "shape": (22,), "behind_mask": (4, 5, 1)}
        assert pool.reset(seed=0)[0].tolist() == [[1, 0] + [200] * 20]
        assert pool.step(np.array([0]))[0].tolist() == [[0, 1] + [100] * 20]
        pool.step(np.array([1]))
        assert acted == [7, 8]
        pool.close()


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"first": np.ones(3)},
            r"'action_mask' is array\(\[1., 1., 1.\]\) in the info of environment 0, expected 0 or 1",
        ),
        ({"first": np.ones((1, 2))}, r"for each of the 2 choices"),
        ({"first": np.array([1.0, np.nan])}, r"'action_mask' is array\(\[ 1., nan\]\)"),
        ({"first": [1, 2]}, r"'action_mask' is \[1, 2\]"),
        ({"first": None}, r"'action_mask' is missing in the info of environment 0, .* in every reset and step"),
        ({"later": None}, r"'action_mask' is missing"),
    ],
)
def test_a_mask_of_a_wrong_length_or_value_is_named(attributes, said):
    """By the server, in the reset or step that gives it."""
    with told(**attributes) as server:
        pool = native.make("socket/Told", 1, address=server.address, **MASKED)
        with pytest.raises(RuntimeError, match=said):  # noqa: PT012  (some are found at the reset)
            pool.reset(seed=0)
            pool.step(np.array([7]))
        pool.close()


def test_the_last_observation_of_an_episode_needs_no_mask():
    """Nothing is chosen after the end."""
    with told(later=None, ends=True) as server:
        pool = native.make("socket/Told", 1, address=server.address, **MASKED)
        pool.reset(seed=0)
        assert pool.step(np.array([7]))[0][0, :2].tolist() == [1, 1]
        pool.close()


@pytest.mark.parametrize(
    ("space", "actions", "source", "said"),
    [
        (Box(0, 1, (2,)), Box(-1, 1, (1,)), "info", r"action_mask: the actions are Box.*expected Discrete ones"),
        (Box(0, 1, (2,)), MultiBinary(2), "observation", r"action_mask: the actions are MultiBinary"),
        (
            Box(0, 1, (2,)),
            Discrete(2),
            "observation",
            r"expected a Dict whose 'action_mask' has a number for each of the 2",
        ),
        (Dict(action_mask=MultiBinary(3), a=Box(0, 1, (2,))), Discrete(2), "observation", r"number for each of the 2"),
        (Dict(action_mask=Discrete(2), a=Box(0, 1, (2,))), Discrete(2), "observation", r"is no array of 2 numbers"),
    ],
)
def test_spaces_without_such_a_mask_are_refused(space, actions, source, said):
    """Before anything starts."""
    kind = type("Other", (Drifting,), {"observation_space": space, "action_space": actions})
    with (
        serving(EnvironmentServer(kind, "Other", "127.0.0.1:0")) as server,
        pytest.raises(ValueError, match=said),
    ):
        native.make("socket/Other", 1, address=server.address, one_array=True, action_mask=source)


def test_a_mask_needs_one_array():
    """As of Gymnasium's environments."""
    with pytest.raises(ValueError, match=r"action_mask = 'info' is about one array.*expected one_array = True"):
        native.make(NAME, 1, address="127.0.0.1:1", action_mask="info")


def test_a_server_that_sends_other_masks_than_0_and_1_is_refused():
    """Nothing of them reaches a policy."""
    described = {**GOOD, "observation": BOX, "action": CHOICE, "action_mask": True}
    row = struct.pack("<BBff", 1, 2, 0.5, 0.5)
    with answering(described, (2, 1, 10, 8), then=[(wire.OBSERVED, row)]) as listening:
        pool = native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}", **MASKED)
        with pytest.raises(RuntimeError, match=r"'action_mask' of environment 0 is 2, expected 0 to 1"):
            pool.reset(seed=0)
        pool.close()
    with (
        answering({**described, "action_mask": False}, (2, 1, 8, 8)) as listening,
        pytest.raises(ValueError, match="gives action_mask False, expected True"),
    ):
        native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}", **MASKED)


def test_a_c_servers_mask_comes_first(lights):
    """Only allowed choices reach it; a first observation and a last one have their masks too."""
    pool = native.make("socket/Lights", 3, address=lights.address, **MASKED)
    assert pool.environment["observation"] == {"dtype": "float32", "shape": (6,), "behind_mask": (3,)}
    seen = pool.reset(seed=[0, 1, 2])[0]
    assert seen.tolist() == np.hstack([1 - np.eye(3), np.eye(3)]).tolist()
    seen, *_ = pool.step(np.array([1, 2, 0]))
    assert seen.tolist() == np.hstack([np.eye(3)[[2, 0, 1]], 1 - np.eye(3)[[2, 0, 1]]]).tolist()
    seen, _, terminated, *_ = pool.step(np.array([2, 0, 1]))
    assert terminated.all()
    assert (seen == 1).all()
    pool.close()


def test_a_c_server_steps_with_no_forbidden_choice(lights):
    """Also where the client did not ask for masks, and the environment is served without them."""
    pool = native.make("socket/Lights", 1, address=lights.address)
    assert pool.environment["observation"] == {"dtype": "float32", "shape": (3,)}
    pool.reset(seed=[1])
    with pytest.raises(RuntimeError, match="is forbidden by its action_mask"):
        pool.step(np.array([1]))
    pool.reset(seed=[1])
    pool.step(np.array([2]))
    pool.close()


def test_a_c_server_without_a_mask_says_so(tmp_path):
    """Before anything starts."""
    (tmp_path / "lights.c").write_text(
        LIGHTS.replace(", .action_mask = allowed", "").replace("static void allowed", "void allowed")
    )
    with EnvironmentProcess(command=[compiled(tmp_path / "lights.c", tmp_path / "lights")]) as server:
        with pytest.raises(ValueError, match=r"the environment has no action_mask: leave environment\.action_mask out"):
            native.make("socket/Lights", 1, address=server.address, **MASKED)
        for wrong in (hello(name=b"Lights", wishes=2), hello(name=b"Lights", version=1, wishes=1)):
            ((kind, text),) = exchanged(server.address, (wire.HELLO, wrong))
            assert kind == wire.FAILED
            assert b"wishes" in text or b"versions 1 and 2" in text


def assert_no_trace(server, name, **settings):
    pool = native.make(name, 3, address=server.address, reconnect_seconds=30, **MASKED, **settings)

    def draw(rng):
        return pool.observation[:, :3].argmax(1)

    wanted = play_rounds(pool, draw=draw)

    def between(step):
        if step in {1, 43}:
            server.kill()
            server.start()

    got = play_rounds(pool, between=between, draw=draw)
    assert_same_rounds(got, wanted)
    pool.close()


def test_a_killed_server_of_masks_leaves_no_trace(lights):
    """In Python and in C: masks are compared too, and the same choices are allowed again."""
    assert_no_trace(lights, "socket/Lights")
    with EnvironmentProcess(f"{Explorer.__module__}:{ID}") as explorers:
        assert_no_trace(explorers, NAME, masked="info")
