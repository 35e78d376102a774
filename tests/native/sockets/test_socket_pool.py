"""Environments behind a socket: what their server steps, seed for seed, and the same rows after a lost server."""

import socket
import threading
from contextlib import contextmanager
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple

from penstock import native
from penstock.native.sockets import wire
from penstock.native.sockets.server import EnvironmentServer, serve_id
from penstock.native.sockets.vector import episode_seed

from ...support.services.environment_server import EnvironmentProcess

ID, PENDULUM = "socket/CartPole-v1", "socket/Pendulum-v1"


@contextmanager
def serving(server: EnvironmentServer):
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def served(env_id="CartPole-v1", address="127.0.0.1:0", **options):
    return serving(serve_id(env_id, address, **options))


class Drifting:
    """An environment that depends on a clock: the number of resets of all of its kind."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,)), Discrete(2)
    resets = 0

    def reset(self, *, seed):
        Drifting.resets += 1
        return np.full(1, Drifting.resets, np.float32), {}

    def step(self, action):
        if action == 1:
            raise RuntimeError("the motor is stuck")
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self):
        pass


def play_rounds(pool, rounds=2, steps=40, between=lambda index: None, draw=None):
    """Play rounds of one policy; returns their columns and episodes."""
    pool.reset_ids(np.arange(5, 5 + pool.num_envs, dtype=np.uint64))
    spec, rng = pool.environment, np.random.default_rng(0)
    played = []
    for index in range(rounds):
        shape = (steps, pool.num_envs)
        columns = [
            np.zeros((*shape, *spec["observation"]["shape"]), spec["observation"]["dtype"]),
            *(np.zeros(shape, dtype) for dtype in (np.float32, np.uint8, np.uint8, np.int32)),
        ]
        pool.begin_round(*columns)
        for t in range(steps):
            between(index * steps + t)
            pool.step_round(t, rng.integers(2, size=pool.num_envs) if draw is None else draw(rng))
        end = pool.end_round()
        played.append([*columns, end.bootstrap_observation, *end.episodes.values()])
    return played


def assert_same_rounds(got, wanted):
    """Assert that rounds of `play_rounds` have the same columns and episodes."""
    for left, right in zip(got, wanted, strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, other)


def test_steps_are_gymnasiums_seed_for_seed():
    """The first episode has the pool's seed; each that follows a seed of its own, in next-step mode one step later."""
    with served() as server:
        pool = native.make(ID, 3, address=server.address)
        own, episode = [gymnasium.make("CartPole-v1") for _ in range(3)], [0] * 3
        seen = pool.reset(seed=7)[0]
        np.testing.assert_array_equal(seen, [env.reset(seed=7 + index)[0] for index, env in enumerate(own)])
        over, ended = np.zeros(3, bool), 0
        for actions in np.random.default_rng(1).integers(2, size=(150, 3)):
            got = pool.step(actions)
            for env in range(3):
                if over[env]:
                    episode[env] += 1
                    wanted = own[env].reset(seed=episode_seed(7 + env, episode[env]))[0], 0.0, False, False
                else:
                    wanted = own[env].step(actions[env])
                for left, right in zip(got[:4], wanted[:4], strict=False):
                    np.testing.assert_array_equal(left[env], right)
            over = got[2] | got[3]
            ended += int(over.sum())
        assert ended > 5
        pool.close()


@pytest.mark.parametrize(
    ("env_id", "observation", "action"), [("Pendulum-v1", (3,), "box"), ("FrozenLake-v1", (16,), "discrete")]
)
def test_spaces_cross_the_socket(env_id, observation, action):
    """Actions of floats, and observations that are encoded as one array; bounds too."""
    with served(env_id) as server:
        pool = native.make(f"socket/{env_id}", 2, address=server.address, one_array=True)
        assert pool.environment["observation"] == {"dtype": "float32", "shape": observation}
        assert pool.environment["action"]["kind"] == action
        pool.reset(seed=0)
        pool.action_space.seed(0)
        seen, *_ = pool.step(pool.action_space.sample())
        assert seen.shape == (2, *observation)
        assert pool.observation_space.contains(seen)
        if env_id == "Pendulum-v1":
            np.testing.assert_array_equal(pool.single_action_space.high, [2.0])
            np.testing.assert_array_equal(pool.single_observation_space.high, np.array([1, 1, 8], np.float32))
        pool.close()


def test_settings_and_limits_go_to_the_server(tmp_path):
    """Also over a Unix socket: gravity is the served environment's, and its steps are limited there."""
    with served("Pendulum-v1", f"unix:{tmp_path}/pendulum") as server:
        pool = native.make(PENDULUM, 1, address=server.address, max_episode_steps=3, g=0.5)
        assert pool.environment["max_episode_steps"] == 3
        own = gymnasium.make("Pendulum-v1", g=0.5)
        pool.reset(seed=1)
        own.reset(seed=1)
        for step in range(3):
            got, wanted = pool.step(np.zeros((1, 1), np.float32)), own.step(np.zeros(1, np.float32))
            np.testing.assert_array_equal(got[0][0], wanted[0])
            assert got[3][0] == (step == 2)
        pool.close()
    assert not (tmp_path / "pendulum").exists()


def test_a_unix_socket_that_a_killed_server_left_is_replaced(tmp_path):
    """One that is listened on is not, nor is a file."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with served("CartPole-v1", f"unix:{path}") as server:
        native.make(ID, 1, address=server.address).close()
        with pytest.raises(OSError, match="in use"):
            serve_id("CartPole-v1", f"unix:{path}")
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        serve_id("CartPole-v1", f"unix:{path}")
    assert path.read_text() == "mine"


def test_a_killed_server_that_comes_back_leaves_no_trace_in_rounds():
    """The episodes under way are played again in new environments, whenever the server dies: same rows, same end."""
    with EnvironmentProcess() as server:
        quiet = native.make(ID, 3, address=server.address)
        wanted = play_rounds(quiet)
        quiet.close()
        pool = native.make(ID, 3, address=server.address, reconnect_seconds=150)

        def between(step):
            if step in {0, 17, 40, 79}:
                server.kill()
                server.start()

        got = play_rounds(pool, between=between)
        assert_same_rounds(got, wanted)
        state = pool.save()
        server.kill()
        server.start()
        pool.restore(state)
        np.testing.assert_array_equal(pool.save()["repeated.shown"], state["repeated.shown"])
        pool.close()


def test_a_server_that_stays_away_ends_the_step_with_its_address():
    """After `reconnect_seconds`; the error says what to do."""
    with EnvironmentProcess() as server:
        pool = native.make(ID, 1, address=server.address, reconnect_seconds=0.3)
        pool.reset(seed=0)
        server.kill()
        with pytest.raises(RuntimeError, match=rf"{server.address}.*within 0.3 s; start the server again"):
            pool.step(np.zeros(1, np.int64))
        server.start()


def test_another_address_takes_over():
    """Addresses that do not answer are passed over, at the start and after a loss."""
    with EnvironmentProcess() as first, EnvironmentProcess() as second:
        both = f"{first.address}, {second.address}"
        pool = native.make(ID, 2, address=both, reconnect_seconds=150)
        pool.reset(seed=0)
        pool.step(np.zeros(2, np.int64))
        first.kill()
        for _ in range(5):
            pool.step(np.zeros(2, np.int64))
        pool.close()
        first.start()


def test_an_environment_that_depends_on_more_than_seeds_is_named_after_a_loss():
    """Its new environments show something else after the same actions, and nothing goes on from there."""
    with serving(EnvironmentServer(Drifting, "Drifting", "127.0.0.1:0")) as server:
        pool = native.make("socket/Drifting", 2, address=server.address)
        pool.reset(seed=0)
        for connection in list(server._open):
            connection.shutdown(2)
        with pytest.raises(RuntimeError, match=r"environment 0 was given the same seed and actions and has other"):
            pool.step(np.zeros(2, np.int64))
        pool.reset(seed=1)  # new episodes owe nothing to the lost ones
        pool.step(np.zeros(2, np.int64))
        pool.close()


def test_an_environment_that_fails_says_so_and_is_not_tried_again():
    """Its own words reach the caller; the pool needs a reset."""
    with serving(EnvironmentServer(Drifting, "Drifting", "127.0.0.1:0")) as server:
        pool = native.make("socket/Drifting", 1, address=server.address)
        pool.reset(seed=0)
        with pytest.raises(RuntimeError, match=r"reports: RuntimeError: the motor is stuck"):
            pool.step(np.ones(1, np.int64))
        pool.reset(seed=0)
        pool.step(np.zeros(1, np.int64))
        pool.close()


def test_ctrl_c_while_an_answer_is_awaited_leaves_no_answer_behind(monkeypatch):
    """The step after the next reset gets its own answer, not that of the interrupted one."""

    class Told(Drifting):
        observation_space, action_space = Box(-np.inf, np.inf, (1,)), Discrete(4)

        def step(self, action):
            return np.full(1, action, np.float32), float(action), False, False, {}

    receive = wire.receive_frame

    def interrupted(*arguments):
        if threading.current_thread() is threading.main_thread():  # the server's thread goes on
            raise KeyboardInterrupt
        return receive(*arguments)

    with serving(EnvironmentServer(Told, "Told", "127.0.0.1:0")) as server:
        pool = native.make("socket/Told", 1, address=server.address)
        pool.reset(seed=0)
        monkeypatch.setattr(wire, "receive_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.step(np.array([2]))
        monkeypatch.setattr(wire, "receive_frame", receive)
        with pytest.raises(RuntimeError, match="not every environment is ready"):
            pool.step(np.array([0]))
        pool.reset(seed=0)
        for action in (0, 3, 1):
            assert pool.step(np.array([action]))[1] == [action]
        pool.close()


@pytest.mark.parametrize(
    ("space", "action", "said"),
    [
        (Box(0, 10, (2,), np.uint8), [300, 5], r"300 of environment 0 is no uint8: expected 0 to 255"),
        (Box(0, 10, (2,), np.uint8), [-1, 5], r"-1 of environment 0 is no uint8"),
        (Box(0, 1, (2,), np.bool_), [2, 0], r"2 of environment 0 is no bool: expected 0 to 1"),
        (Box(0, 10, (2,), np.int64), [2.0**63, 5.0], r"is no int64: expected -9"),
        (Box(-1, 1, (2,), np.float16), [70000.0, 0], r"action of environment 0 is not finite as float16: got \[70000"),
    ],
)
def test_an_action_that_its_type_does_not_hold_is_refused(space, action, said):
    """It would reach the environment as another number; nothing was stepped."""

    class Boxed(Drifting):
        action_space = space

        def step(self, action):
            return np.asarray(action[:1], np.float32), 0.0, False, False, {}

    with serving(EnvironmentServer(Boxed, "Boxed", "127.0.0.1:0")) as server:
        pool = native.make("socket/Boxed", 1, address=server.address)
        pool.reset(seed=0)
        with pytest.raises(ValueError, match=said):
            pool.step([action])
        assert pool.step([[1, 0]])[0] == [[1.0]]
        pool.close()


def test_a_silent_server_is_given_up_after_reply_seconds():
    """A step that takes longer counts as a loss; new environments may be faster."""
    release = threading.Event()

    class Slow(Drifting):
        def step(self, action):
            release.wait(150)
            return super().step(0)

    with serving(EnvironmentServer(Slow, "Slow", "127.0.0.1:0")) as server:
        pool = native.make("socket/Slow", 1, address=server.address)
        pool.reset(seed=0)
        vector = pool.vector_env
        vector._connection._seconds = 0.2
        vector._request = replace(vector._request, reply_seconds=0.2, reconnect_seconds=1)
        with pytest.raises(RuntimeError):
            pool.step(np.zeros(1, np.int64))
        pool.close()
        release.set()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"there is no address: expected environment.address"),
        ({"address": "nowhere"}, r"address 'nowhere': expected host:port"),
        ({"address": "::1:7000"}, r"expected an IPv6 address in brackets"),
        ({"address": "127.0.0.1:1", "reconnect_seconds": 0.1}, r"no environment answers \(127.0.0.1:1: .*refused"),
        ({"address": "127.0.0.1:1", "reply_seconds": 0}, r"reply_seconds is 0, expected seconds above 0"),
        ({"address": "127.0.0.1:1", "reply_seconds": 1e10}, r"expected seconds above 0, at most 100,000,000"),
        ({"address": "127.0.0.1:1", "max_episode_steps": 2**63}, r"max_episode_steps must be at most 9,223,"),
        ({"address": "127.0.0.1:1", "num_threads": 2}, r"leave num_threads at 1"),
        ({"address": "127.0.0.1:1", "render_mode": "rgb_array"}, r"can't be drawn here"),
    ],
)
def test_mistakes_are_refused_by_name(options, said):
    """Before anything is connected to, or once nothing answers."""
    with pytest.raises(ValueError, match=said):
        native.make(ID, 1, **options)


def test_reset_options_that_do_not_cross_are_refused():
    """An environment would go on without them, and nobody would notice."""
    with served() as server:
        pool = native.make(ID, 1, address=server.address)
        with pytest.raises(ValueError, match=r"reset options \['level'\]: these environments take none but reset_mask"):
            pool.reset(seed=0, options={"level": 7})
        pool.reset(seed=0)
        with pytest.raises(ValueError, match=r"reset options"):
            pool.reset(options={"level": 7})
        pool.step(np.zeros(1, np.int64))  # nothing was reset
        pool.close()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("Ant-v5", {}, r"the server has 'CartPole-v1', expected 'Ant-v5'; ask for socket/CartPole-v1"),
        ("CartPole-v1", {"gravty": 3.0}, r"can't be made with \{'gravty': 3.0\}: .*gravty"),
        ("CartPole-v1", {"autoreset_mode": "Disabled"}, r"autoreset_mode is NextStep or SameStep"),
    ],
)
def test_a_server_refuses_by_name(name, options, said):
    """Its words reach the user, before anything starts."""
    with served() as server, pytest.raises(ValueError, match=said):
        native.make(f"socket/{name}", 1, address=server.address, **options)


def test_a_secret_must_be_the_servers(monkeypatch):
    """Without it nobody else's machine is listened to, and who lacks it gets no environments."""
    with pytest.raises(ValueError, match=r"0.0.0.0:0' can be reached by other machines.*PENSTOCK_ENVIRONMENT_TOKEN"):
        serve_id("CartPole-v1", "0.0.0.0:0")
    monkeypatch.setenv("PENSTOCK_ENVIRONMENT_TOKEN", "one")
    with served() as server:
        native.make(ID, 1, address=server.address).close()
        monkeypatch.setenv("PENSTOCK_ENVIRONMENT_TOKEN", "another")
        with pytest.raises(ValueError, match="the token is wrong"):
            native.make(ID, 1, address=server.address)


def test_the_variable_replaces_the_address(monkeypatch):
    """Each machine that acts may have a server of its own."""
    with served() as server:
        monkeypatch.setenv("PENSTOCK_ENVIRONMENT_ADDRESS", server.address)
        native.make(ID, 1, address="127.0.0.1:1").close()


def test_large_seeds_are_folded_where_a_server_asks_for_it():
    """`seed_bits` is for generators that take less; smaller seeds stay as they are."""
    seen = []

    class Seeded(Drifting):
        def reset(self, *, seed):
            seen.append(seed)
            return super().reset(seed=seed)

    with serving(EnvironmentServer(Seeded, "Seeded", "127.0.0.1:0", seed_bits=31)) as server:
        pool = native.make("socket/Seeded", 3, address=server.address)
        pool.reset_ids(np.array([5, 2**31, 2**64 - 1], np.uint64))
        pool.close()
    assert seen[0] == 5
    assert max(seen) < 2**31


@pytest.mark.parametrize(
    ("which", "space", "said"),
    [
        ("observation", Text(5), r"observation space is Text.*it is Text.*TransformObservation before it is served"),
        ("observation", Sequence(Discrete(3)), r"it is Sequence.*TransformObservation"),
        ("observation", Dict(a=Tuple([Discrete(2), Text(5)])), r"its part 'a.1' is Text"),
        ("observation", Box(0, 1, (0,)), r"it is Box\(\[\], \[\], \(0,\), float32\), expected Box"),
        ("observation", Dict(), r"it is Dict\(\), expected Box"),
        ("action", Graph(Discrete(2), None), r"action space is Graph.*it is Graph.*TransformAction"),
        ("action", Dict(one=OneOf([Discrete(2), Discrete(3)])), r"its part 'one' is OneOf.*TransformAction"),
    ],
)
def test_what_does_not_fit_the_protocol_is_named(which, space, said):
    """Before anything starts: the server names the part, and what to wrap."""
    kind = type("Other", (Drifting,), {f"{which}_space": space})
    with (
        serving(EnvironmentServer(kind, "Other", "127.0.0.1:0")) as server,
        pytest.raises(ValueError, match=said),
    ):
        native.make("socket/Other", 1, address=server.address)


def test_an_id_that_is_none_is_not_served():
    """Nothing is listened on."""
    with pytest.raises(ValueError, match=r"Nothing-v0 can't be served"):
        serve_id("Nothing-v0", "127.0.0.1:0")
