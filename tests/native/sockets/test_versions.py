"""Programs of version 1 of the protocol, kept in `version_1/` as they were, work with those of today, or say why not.

Of `server.py` there only the import of `wire` is another: beside an installed Penstock it would find today's.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from penstock import native
from penstock.native.sockets import server as python_server
from penstock.native.sockets import wire
from penstock.native.sockets.server import EnvironmentServer

from ...support.environments.structured_environments import registered_id
from ...support.services.environment_server import EnvironmentProcess
from .test_c import CLIENT, ECHO, compiled
from .test_socket_pool import ID, Drifting, play_rounds, served, serving
from .test_wire import exchanged, hello

OLD = Path(__file__).parent / "version_1"
FILES = ("server.py", "batch.py", "rows.py", "tls.py", "wire.py")


def old_python(env_id):
    return EnvironmentProcess(command=[sys.executable, str(OLD / "server.py"), env_id, "--port"])


@pytest.fixture(scope="module")
def old_c(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    (folder / "echo.c").write_text(ECHO)
    with EnvironmentProcess(command=[compiled(folder / "echo.c", folder / "echo", OLD)]) as process:
        yield process


def test_a_pool_steps_a_server_of_version_1(old_c):
    """In Python and in C: the same rows as of today's, and after a loss it goes on in that version."""
    with old_python("CartPole-v1") as old, served() as new:
        pools = [native.make(ID, 3, address=server.address, one_array=True) for server in (old, new)]

        def between(step):
            if step == 43:
                old.kill()
                old.start()

        for left, right in zip(play_rounds(pools[0], between=between), play_rounds(pools[1]), strict=True):
            for one, other in zip(left, right, strict=True):
                np.testing.assert_array_equal(one, other)
        for pool in pools:
            pool.close()
    pool = native.make("socket/Echo", 2, address=old_c.address)
    pool.reset(seed=[3, 4])
    assert pool.step(np.float32([[1, 2], [0.5, -1]]))[0].tolist() == [[2], [-1]]
    pool.close()


def test_what_version_1_lacks_is_said_with_what_to_do(old_c):
    """Before anything starts."""
    for options, said in [
        ({"action_mask": "info"}, "speaks version 1 of the protocol, which has no masks: update its copy"),
        ({"structured": True}, "speaks version 1 of the protocol, which has one array alone: update the server's copy"),
    ]:
        with pytest.raises(ValueError, match=said):
            native.make("socket/Echo", 1, address=old_c.address, one_array=True, **options)
    with (
        old_python("CartPole-v1") as old,
        pytest.raises(
            ValueError, match=r"kind.*; the server at .* speaks version 1 .* if that is about its spaces update"
        ),
    ):
        native.make(ID, 1, address=old.address, kind="Hybrid")


def test_a_client_of_version_1_is_served():
    """As before: structured observations as one array of floats, choices from 0, and no word of masks."""
    with served("Blackjack-v1") as server:
        body = hello(version=1, name=b"Blackjack-v1")
        reset = (7).to_bytes(8, "little") + b"\x01"
        answers = exchanged(server.address, (wire.HELLO, body), (wire.RESET, reset))
        welcome = answers[0][1]
        assert wire.WELCOME_HEAD.unpack(welcome[: wire.WELCOME_HEAD.size]) == (1, 1, 45 * 4, 8)
        described = json.loads(welcome[wire.WELCOME_HEAD.size :])
        assert described["observation"]["shape"] == [45]
        assert described["observation"]["dtype"] == "float32"
        assert described["action"] == {"kind": "discrete", "n": 2}
        pool = native.make("socket/Blackjack-v1", 1, address=server.address, one_array=True)
        np.testing.assert_array_equal(np.frombuffer(answers[1][1], "<f4"), pool.reset(seed=7)[0][0])
        pool.close()


def test_a_client_of_version_1_is_told_what_it_lacks():
    """Actions of several parts."""
    with served(registered_id("Hybrid")) as server:
        ((kind, said),) = exchanged(server.address, (wire.HELLO, hello(version=1, name=b"test/FittingHybrid-v0")))
    assert kind == wire.FAILED
    assert b"the client speaks version 1 of the protocol, which has Discrete" in said
    assert b"update the client, or wrap the environment" in said


def test_clients_of_both_headers_step_todays_servers(tmp_path):
    """The header of version 1 and today's print the same."""
    new = Path(python_server.__file__).parent
    (tmp_path / "new.c").write_text(CLIENT)
    (tmp_path / "old.c").write_text(CLIENT.replace("client.h", "environment.h"))  # which had the client too
    programs = [compiled(tmp_path / f"{name}.c", tmp_path / name, at) for name, at in (("old", OLD), ("new", new))]
    with served() as server:
        port = server.address.split(":")[1]
        printed = [
            subprocess.run([program, port, "CartPole-v1"], capture_output=True, text=True, check=True).stdout
            for program in programs
        ]
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 3


def test_a_start_of_another_value_stays_the_same_for_both():
    """Choices count from 0 in version 1, and are the environment's own in version 2."""
    acted = []

    class Started(Drifting):
        action_space = Discrete(3, start=5)

        def step(self, action):
            acted.append(action)
            return super().step(0)

    with serving(EnvironmentServer(Started, "Started", "127.0.0.1:0")) as server:
        step = (bytes(8), (2).to_bytes(8, "little"), b"\x01")
        frames = (wire.RESET, bytes(8) + b"\x01"), (wire.STEP, b"".join(step))
        exchanged(server.address, (wire.HELLO, hello(version=1, name=b"Started")), *frames)
        pool = native.make("socket/Started", 1, address=server.address, one_action=True)
        pool.reset(seed=0)
        pool.step(np.array([2]))
        pool.close()
    assert acted == [7, 7]


def test_copied_files_serve_without_penstock(tmp_path):
    """Four files and NumPy: structured spaces and masks too."""
    for name in FILES:
        shutil.copy(Path(python_server.__file__).parent / name, tmp_path)
    (tmp_path / "serve.py").write_text(
        "import sys\n"
        "for name in ('penstock', 'gymnasium'):\n"
        "    sys.modules[name] = None  # as where they are not installed\n"
        "import numpy as np\n"
        "from server import EnvironmentServer\n"
        "class Space:\n"
        "    def __init__(self, **facts): self.__dict__ |= facts\n"
        "class Own:\n"
        "    observation_space = Space(spaces={'a': Space(low=np.zeros(2), high=np.ones(2), shape=(2,), dtype='f4'),\n"
        "                                      'b': Space(n=3, shape=(), dtype='i8')})\n"
        "    action_space = Space(n=2, shape=(), dtype='i8')\n"
        "    def reset(self, seed): return {'a': [0.5, 1], 'b': 2}, {'action_mask': [1, 0]}\n"
        "    def step(self, action): return {'a': [1, 0], 'b': 1}, action, False, False, {'action_mask': [0, 1]}\n"
        "server = EnvironmentServer(Own, 'Own', f'127.0.0.1:{sys.argv[1]}')\n"
        "print('socket/Own at', server.address, flush=True)\n"
        "server.serve()\n"
    )
    with EnvironmentProcess(command=[sys.executable, str(tmp_path / "serve.py")]) as server:
        options = {"one_array": True, "structured": True, "action_mask": "info"}
        pool = native.make("socket/Own", 2, address=server.address, **options)
        assert [leaf["name"] for leaf in pool.environment["observation"]["leaves"]] == ["action_mask", "a", "b"]
        assert pool.reset(seed=0)[0].tolist() == [[1, 0, 0.5, 1, 0, 0, 1]] * 2
        seen, reward, *_ = pool.step(np.array([0, 1]))
        assert seen.tolist() == [[0, 1, 1, 0, 0, 1, 0]] * 2
        assert reward.tolist() == [0, 1]
        pool.close()
