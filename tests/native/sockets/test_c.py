"""The header for C: its server trains as any other, and its client steps any server."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock import native
from penstock.native.sockets import server as python_server
from penstock.native.sockets import wire
from penstock.native.sockets.server import EnvironmentServer

from ...support.services.environment_server import EnvironmentProcess
from .test_socket_pool import ID, Drifting, assert_same_rounds, play_rounds, served, serving
from .test_wire import exchanged, hello

FOLDER = Path(python_server.__file__).parent
CLIENT = r"""
#include "client.h"
int main(int count, char **arguments) {
  penstock_client client;
  uint64_t seeds[2] = {7, 8}, next[2] = {1, 2};
  int64_t actions[2] = {count > 4 ? 7 : 1, 0};
  float seen[8];
  if (penstock_connect(&client, "127.0.0.1", atoi(arguments[1]), arguments[2], 2, count > 3 ? 3 : 0, 150.0))
    return printf("%s\n", client.error), 1;
  if (penstock_reset(&client, seeds, NULL)) return 2;
  for (int step = 0; step < 3; ++step) {
    if (penstock_step(&client, next, actions, NULL)) return printf("%s\n", client.error), 3;
    memcpy(seen, client.observation, sizeof seen);
    printf("%.9g %.9g %g %d\n", seen[0], seen[4], client.reward[1], client.truncated[0]);
  }
  if (count > 3) memcpy(seen, client.final, sizeof seen), printf("%.9g\n", seen[0]);
  penstock_disconnect(&client);
  return 0;
}
"""


ECHO = r"""
#include "environment.h"
static void reset(void *state, uint64_t seed) { *(float *)state = (float)seed; }
static penstock_result step(void *state, const void *action) {
  memcpy(state, (const float *)action + 1, sizeof(float));
  const penstock_result result = {((const float *)action)[0], 0, 0};
  return result;
}
static void observe(const void *state, float *out) { out[0] = *(const float *)state; }
int main(int count, char **arguments) {
  const penstock_environment echo = {.name = "Echo", .state_bytes = sizeof(float), .observation_size = 1,
                                     .action_size = 2, .action_low = -2.0f, .action_high = 0.5f,
                                     .reward_threshold = NAN, .reset = reset, .step = step, .observe = observe};
  int port = 0, listening = penstock_listen("127.0.0.1", count > 1 ? atoi(arguments[1]) : 0, &port);
  printf("socket/Echo at 127.0.0.1:%d\n", port), fflush(stdout);
  return listening < 0 || penstock_serve(listening, &echo);
}
"""


def compiled(source: Path, target: Path, headers: Path = FOLDER) -> str:
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-Wpedantic", f"-I{headers}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(target), "-lm"], check=True)
    return str(target)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    program = compiled(FOLDER / "cartpole.c", tmp_path_factory.mktemp("c") / "cartpole")
    with EnvironmentProcess(command=[program]) as process:
        yield process


def test_the_c_server_steps_cartpole(cartpole):
    """From its own starts, its steps are Gymnasium's equations in float64; limits are counted."""
    pool = native.make(ID, 2, address=cartpole.address, max_episode_steps=20)
    assert pool.environment["max_episode_steps"] == 20
    assert pool.environment["reward_threshold"] == 475
    seen = pool.reset(seed=1)[0]
    assert (np.abs(seen) <= 0.05).all()
    assert (seen[0] != seen[1]).all()
    own = native.make("gymnasium/CartPole-v1", 2)
    own.reset(seed=0)
    for env, row in zip(own.vector_env.envs, seen, strict=True):
        env.unwrapped.state = row.astype(np.float64)
    for step in range(8):
        got, wanted = pool.step(np.array([0, 1])), own.step(np.array([0, 1]))
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-6, err_msg=str(step))
    pool.close()


def test_actions_of_floats_reach_the_c_server(tmp_path):
    """Each environment gets its own row; bounds, no limit and no threshold are described as they are."""
    (tmp_path / "echo.c").write_text(ECHO)
    with EnvironmentProcess(command=[compiled(tmp_path / "echo.c", tmp_path / "echo")]) as server:
        pool = native.make("socket/Echo", 3, address=server.address)
        assert pool.environment["max_episode_steps"] is None
        assert pool.environment["reward_threshold"] is None
        np.testing.assert_array_equal(pool.single_action_space.low, np.float32([-2, -2]))
        np.testing.assert_array_equal(pool.single_action_space.high, np.float32([0.5, 0.5]))
        np.testing.assert_array_equal(pool.reset(seed=[3, 4, 5])[0], np.float32([[3], [4], [5]]))
        seen, reward, *_ = pool.step(np.float32([[1, 2], [3, 4], [5, 6]]))
        np.testing.assert_array_equal(seen[:, 0], [2, 4, 6])
        np.testing.assert_array_equal(reward, [1, 3, 5])
        pool.close()


def test_a_killed_c_server_leaves_no_trace(cartpole):
    """As the Python one."""
    pool = native.make(ID, 3, address=cartpole.address)
    wanted = play_rounds(pool)

    def between(step):
        if step == 50:
            cartpole.kill()
            cartpole.start()

    got = play_rounds(pool, between=between)
    assert_same_rounds(got, wanted)
    pool.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (hello(name=b"Ant-v5"), b"ask for socket/CartPole-v1"),
        (hello(num_envs=0), b"out of range"),
        (hello(num_envs=1 << 31), b"out of range"),
        (hello(version=3), b"versions 1 and 2"),
        (hello(settings=b'{"g": 1}'), b"no settings"),
    ],
)
def test_the_c_server_refuses_by_name(cartpole, body, said):
    """And goes on to serve others."""
    ((kind, text),) = exchanged(cartpole.address, (wire.HELLO, body))
    assert kind == wire.FAILED
    assert said in text
    native.make(ID, 1, address=cartpole.address).close()


def test_the_c_server_refuses_wrong_requests(cartpole):
    """An action out of range, a step before a reset, and a body of another size."""
    step = bytes(8) + (5).to_bytes(8, "little") + b"\x01"
    reset = bytes(8) + b"\x01"
    for frames in ([(wire.RESET, reset), (wire.STEP, step)], [(wire.STEP, bytes(16) + b"\x01")], [(wire.RESET, b"")]):
        answers = exchanged(cartpole.address, (wire.HELLO, hello()), *frames)
        assert answers[-1][0] == wire.FAILED


WAITING = r"""
#include "client.h"
int main(int count, char **arguments) {
  penstock_client client;
  uint64_t seed = 1;
  int64_t action = 0;
  if (count < 2 || penstock_connect(&client, "127.0.0.1", atoi(arguments[1]), "Slow", 1, 0, 150.0)) return 1;
  if (penstock_reset(&client, &seed, NULL)) return 2;
  penstock_limit_waits(client.fd, 0.2);
  for (int step = 0; step < 2; ++step)
    printf("%d %s\n", penstock_step(&client, &seed, &action, NULL), client.error), fflush(stdout), getchar();
  penstock_disconnect(&client);
  return 0;
}
"""


def test_the_c_client_takes_no_late_answer_for_the_next_one(tmp_path):
    """After a time-out it is not connected: the answer that came since belongs to the step before."""
    answered = threading.Event()

    class Slow(Drifting):
        def step(self, action):
            answered.wait(150)
            return super().step(0)

    (tmp_path / "waiting.c").write_text(WAITING)
    program = compiled(tmp_path / "waiting.c", tmp_path / "waiting")
    with serving(EnvironmentServer(Slow, "Slow", "127.0.0.1:0")) as server:
        command = [program, server.address.split(":")[1]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout.readline() == "-1 no answer, or none of the protocol\n"
            answered.set()
            client.stdin.write("\n\n")
            client.stdin.flush()
            assert client.stdout.readline() == "-1 not connected\n"
        assert client.returncode == 0


def test_the_c_server_observes_nothing_that_was_not_reset(cartpole):
    """A first reset of some environments shows zeros for the others, whose state is none yet."""
    two = bytes([7] + [0] * 7 + [8] + [0] * 7)
    answers = exchanged(cartpole.address, (wire.HELLO, hello(num_envs=2)), (wire.RESET, two + b"\x01\x00"))
    kind, body = answers[-1]
    assert kind == wire.OBSERVED
    first, second = np.frombuffer(body, np.float32).reshape(2, 4)
    assert first.any()
    assert not second.any()


def test_the_c_client_steps_any_server(tmp_path):
    """It gets what a pool gets."""
    (tmp_path / "client.c").write_text(CLIENT)
    program = compiled(tmp_path / "client.c", tmp_path / "client")
    with served() as server:
        port = server.address.split(":")[1]
        printed = subprocess.run([program, port, "CartPole-v1", "limit"], capture_output=True, text=True, check=True)
        pool = native.make(ID, 2, address=server.address)
        pool.reset(seed=[7, 8])
        rows = [pool.step(np.array([1, 0]))[0] for _ in range(3)]
        *lines, final = printed.stdout.splitlines()
        shown = np.array([line.split() for line in lines], np.float32)
        np.testing.assert_array_equal(shown[:2, :2], [[row[0, 0], row[1, 0]] for row in rows[:2]])
        np.testing.assert_array_equal(shown[:, 3], [0, 0, 1])
        np.testing.assert_array_equal(np.float32(final), rows[2][0, 0])
        pool.close()
        refused = subprocess.run([program, port, "Ant-v5"], capture_output=True, text=True, check=False)
        wrong = subprocess.run(
            [program, port, "CartPole-v1", "limit", "wrong"], capture_output=True, text=True, check=False
        )
    assert refused.returncode == 1
    assert "ask for socket/CartPole-v1" in refused.stdout
    # An answer of a step has no room for a text.
    assert wrong.returncode == 3
    assert "7" in wrong.stdout
    assert "no answer" not in wrong.stdout
