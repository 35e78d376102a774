"""Spaces of several parts in C: a server describes and checks them, and the client gets rows of any server."""

import subprocess

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from penstock import native
from penstock.native.sockets import wire
from penstock.native.sockets.rows import Rows, described_space

from ...support.services.environment_server import EnvironmentProcess
from .test_c import compiled
from .test_socket_pool import assert_same_rounds, play_rounds, served
from .test_structured import SAMPLED
from .test_wire import exchanged, hello

ROVER = r"""
#include "environment.h"
/* It sees its seed, its steps and its last action. Gear 2 ends the episode. */
typedef struct { uint64_t seed; int64_t steps; unsigned char action[8 + 3 + 2 * 4]; } rover;
static const penstock_leaf seen[] = {
    {.key = "camera", .kind = PENSTOCK_BOX, .type = PENSTOCK_UINT8, .axes = 3, .shape = {4, 5, 3}, .high = 255},
    {.key = "arm", .kind = PENSTOCK_BOX, .axes = 1, .shape = {2}, .low = -INFINITY, .high = 1.5},
    {.key = "height", .kind = PENSTOCK_BOX, .type = PENSTOCK_FLOAT64, .low = 0, .high = INFINITY},
    {.key = "steps", .kind = PENSTOCK_BOX, .type = PENSTOCK_INT32, .axes = 1, .shape = {1}, .low = -7, .high = 1000},
    {.key = "ever", .kind = PENSTOCK_BOX, .type = PENSTOCK_INT64, .low = 0, .high = INFINITY},
    {.key = "gear", .kind = PENSTOCK_DISCRETE, .choices = 3},
    {.key = "places", .kind = PENSTOCK_MULTI_DISCRETE, .axes = 1, .shape = {2}, .choices = 4},
    {.key = "lamps", .kind = PENSTOCK_MULTI_BINARY, .axes = 1, .shape = {3}}};
static const penstock_leaf moves[] = {
    {.key = "gear", .kind = PENSTOCK_DISCRETE, .choices = 3},
    {.key = "lamps", .kind = PENSTOCK_MULTI_BINARY, .axes = 1, .shape = {3}},
    {.key = "arm", .kind = PENSTOCK_BOX, .type = PENSTOCK_FLOAT32, .axes = 1, .shape = {2}, .low = -1, .high = 1}};
static void reset(void *state, uint64_t seed) { memset(state, 0, sizeof(rover)), ((rover *)state)->seed = seed; }
static penstock_result step(void *state, const void *action) {
  rover *now = state;
  int64_t gear;
  memcpy(now->action, action, sizeof now->action), memcpy(&gear, action, sizeof gear);
  now->steps++;
  const penstock_result result = {(double)gear, gear == 2, 0};
  return result;
}
static void put(unsigned char *row, size_t leaf, const void *from) {
  memcpy(row + penstock_offset(seen, leaf), from, penstock_offset(seen, leaf + 1) - penstock_offset(seen, leaf));
}
static void observe(const void *state, unsigned char *row) {
  const rover *now = state;
  const double height = (double)now->steps / 4;
  const int32_t steps = (int32_t)now->steps;
  const int64_t places[2] = {now->steps % 4, (now->steps + 1) % 4}, ever = (int64_t)(now->seed >> 1);
  memset(row, (int)now->seed % 256, penstock_offset(seen, 1));
  put(row, 1, now->action + 11), put(row, 2, &height), put(row, 3, &steps), put(row, 4, &ever);
  put(row, 5, now->action), put(row, 6, places), put(row, 7, now->action + 8);
}
int main(int count, char **arguments) {
  const penstock_environment served = {
      .name = "Rover", .state_bytes = sizeof(rover), .max_episode_steps = 9, .reward_threshold = NAN, .reset = reset,
      .step = step, .observation_leaves = seen, .observation_leaf_count = 8, .action_leaves = moves,
      .action_leaf_count = 3, .observe_leaves = observe};
  int port = 0, listening = penstock_listen("127.0.0.1", count > 1 ? atoi(arguments[1]) : 0, &port);
  printf("socket/Rover at 127.0.0.1:%d\n", port), fflush(stdout);
  if (listening >= 0 && penstock_serve(listening, &served)) return perror("penstock_serve"), 1;
  return 2;
}
"""
SEEN = Dict(
    [
        ("camera", Box(0, 255, (4, 5, 3), np.uint8)),
        ("arm", Box(-np.inf, 1.5, (2,))),
        ("height", Box(0, np.inf, (), np.float64)),
        ("steps", Box(-7, 1000, (1,), np.int32)),
        ("ever", Box(0, (1 << 63) - 1, (), np.int64)),
        ("gear", Discrete(3)),
        ("places", MultiDiscrete([4, 4])),
        ("lamps", MultiBinary(3)),
    ]
)
MOVES = Dict([("gear", Discrete(3)), ("lamps", MultiBinary(3)), ("arm", Box(-1, 1, (2,)))])
NAME = "socket/Rover"
CLIENT = r"""
#include "client.h"
int main(int count, char **arguments) {
  penstock_client client;
  const uint64_t seeds[2] = {7, 8};
  unsigned char actions[4096] = {0};
  if (penstock_connect(&client, "127.0.0.1", atoi(arguments[count - 1]), "", 2, 0, 5.0)) return 1;
  if (client.action_bytes > 2048 || penstock_reset(&client, seeds, NULL)) return 2;
  for (int round = 0;; ++round) {
    for (size_t byte = 0; byte < 2 * client.observation_bytes; ++byte) printf("%02x", client.observation[byte]);
    if (round == 1) return printf("\n%s\n", client.description), penstock_disconnect(&client), 0;
    if (penstock_step(&client, seeds, actions, NULL)) return printf("%s\n", client.error), 3;
    printf("\n");
  }
}
"""


def rover(folder, text=ROVER):
    (folder / "rover.c").write_text(text)
    return compiled(folder / "rover.c", folder / "rover")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with EnvironmentProcess(command=[rover(tmp_path_factory.mktemp("c"))]) as process:
        yield process


def test_a_c_server_has_the_spaces_of_its_leaves(server):
    """In their order, with types and bounds; observations are what the environment wrote, and actions what was sent."""
    pool = native.make(NAME, 2, address=server.address)
    assert pool.single_observation_space == SEEN
    assert list(pool.single_observation_space) == list(SEEN)
    assert pool.own_action_space == MOVES
    seen, _ = pool.reset(seed=[3, 250])
    np.testing.assert_array_equal(seen["ever"], [1, 125])
    actions = {"gear": [1, 0], "lamps": [[1, 0, 1], [0, 0, 1]], "arm": np.float32([[-1, 0.5], [0.25, 1]])}
    for step in range(1, 10):
        seen, reward, terminated, truncated, _ = pool.step(actions)
        np.testing.assert_array_equal(reward, [1, 0])
        assert not terminated.any()
        assert truncated.all() == (step == 9)
        if step == 9:
            break
        assert pool.observation_space.contains(seen)
        np.testing.assert_array_equal(seen["camera"], np.broadcast_to(np.reshape([3, 250], (2, 1, 1, 1)), (2, 4, 5, 3)))
        for name, expected in actions.items():
            np.testing.assert_array_equal(seen[name], expected)
        np.testing.assert_array_equal(seen["height"], [step / 4] * 2)
        np.testing.assert_array_equal(seen["steps"], [[step]] * 2)
        np.testing.assert_array_equal(seen["places"], [[step % 4, (step + 1) % 4]] * 2)
    pool.close()


def test_a_killed_c_server_of_leaves_leaves_no_trace(server):
    """As one of plain observations: with one array of all leaves, and vectors of actions."""
    pool = native.make(NAME, 3, address=server.address, one_array=True, one_action=True, structured=True)

    def draw(rng):
        return np.ascontiguousarray(pool.action_space.sample())

    def between(step):
        if step in {0, 43}:
            server.kill()
            server.start()

    pool.action_space.seed(3)
    wanted = play_rounds(pool, draw=draw)
    pool.action_space.seed(3)
    got = play_rounds(pool, between=between, draw=draw)
    assert_same_rounds(got, wanted)
    pool.close()


def test_the_c_server_checks_every_choice(server):
    """Choices and bits of actions; a client of version 1, which has no leaves, is told to update."""
    rows = Rows(described_space(MOVES))

    def row(gear=0, lamp=0):
        made = np.zeros(1, rows.dtype)
        made["0"], made["1"] = gear, lamp
        return made.tobytes()

    def answers(action):
        reset, step = (wire.RESET, bytes(8) + b"\x01"), (wire.STEP, bytes(8) + action + b"\x01")
        return exchanged(server.address, (wire.HELLO, hello(name=b"Rover")), reset, step)

    assert [kind for kind, _ in answers(row())] == [wire.WELCOME, wire.OBSERVED, wire.STEPPED]
    for wrong in (row(gear=3), row(gear=-1), row(lamp=2), row(lamp=-1)):
        kind, said = answers(wrong)[-1]
        assert kind == wire.FAILED
        assert b"an action is none" in said
    ((kind, said),) = exchanged(server.address, (wire.HELLO, hello(name=b"Rover", version=1)))
    assert kind == wire.FAILED
    assert b"update the client" in said


def test_leaves_that_are_none_are_not_served(tmp_path):
    """A leaf without a key beside others, and a choice of nothing: the server ends, with the system's message."""
    for right, wrong in ((", .choices = 3},", "},"), ('.key = "gear", .kind', ".kind")):
        program = rover(tmp_path, ROVER.replace(right, wrong))
        done = subprocess.run([program, "0"], capture_output=True, text=True, check=False, timeout=150)
        assert done.returncode == 1
        assert "Invalid argument" in done.stderr


def test_the_c_client_gets_rows_of_a_structured_server(tmp_path):
    """The bytes that a pool makes its observations of, and the description of their layout."""
    (tmp_path / "client.c").write_text(CLIENT)
    program = compiled(tmp_path / "client.c", tmp_path / "client")
    with served(SAMPLED) as python_server:
        port = python_server.address.split(":")[1]
        printed = subprocess.run([program, port], capture_output=True, text=True, check=True).stdout
        pool = native.make(f"socket/{SAMPLED}", 2, address=python_server.address)
        seen = pool.reset(seed=[7, 8])[0]
        pool.close()
    first, _, described = printed.splitlines()
    assert '"kind": "discrete"' in described
    np.testing.assert_array_equal(np.frombuffer(bytes.fromhex(first), "<i8"), seen)
