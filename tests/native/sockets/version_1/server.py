"""Serves environments to Penstock over a socket. Needs Python and NumPy; Gymnasium only to make an id or to flatten.

Beside an environment that can't have Penstock (another Python, a container, a robot's computer), copy this file and
`wire.py`, and call `EnvironmentServer`, or run `python server.py CartPole-v1 --port 7000`. A connection owns its
environments, which end with it; each has a thread.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import logging
import math
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

import wire

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_VARIABLE = "PENSTOCK_ENVIRONMENT_TOKEN"  # noqa: S105  (the name of a variable)
"""Environment variable with the text that clients must send; without it, a server listens on loopback alone."""

_HELLO_SECONDS = 10.0
_SENDING_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_CONNECTIONS = 256
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NUMBERS = "biuf"

logger = logging.getLogger(__name__)


class RefusedError(ValueError):
    """A client asked for what is not served; it gets the text."""


class EnvironmentServer:
    """Listens on an address from its making on, and serves environments while `serve` runs.

    `address` is the one that clients are given, `host:port` or `unix:/path`.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        name: str,
        address: str = "127.0.0.1:7000",
        *,
        takes_limit: bool = False,
        seed_bits: int = 64,
        token: str | None = None,
    ) -> None:
        """Listen.

        Args:
            make: Makes one environment with Gymnasium's `reset(seed=)`, `step`, `observation_space` and `action_space`.
                Its keyword arguments are a client's settings, which a run has as `environment.settings`.
            name: Clients ask for it, as `socket/<name>`.
            address: `host:port` (port 0 takes a free one) or `unix:/path`.
            takes_limit: Whether `make` takes `max_episode_steps` too; otherwise the steps are counted here.
            seed_bits: Seeds have up to 64 bits; larger ones are folded into so many, for generators that take less.
            token: Text that clients must send; None takes `PENSTOCK_ENVIRONMENT_TOKEN`.

        Raises:
            ValueError: The address is none, or not of this machine's loopback while there is no token.
            OSError: It can't be listened on.
        """
        if not 1 <= seed_bits <= 64:
            raise ValueError(f"seed_bits is {seed_bits}, expected 1 to 64")
        family, where = wire.address_parts(address)
        self._token = (os.environ.get(TOKEN_VARIABLE, "") if token is None else token).encode()
        is_unix = family == socket.AF_UNIX
        if not is_unix and where[0] not in _LOOPBACK and not self._token:
            raise ValueError(
                f"address {address!r} can be reached by other machines, whose users could make environments here: "
                f"expected 127.0.0.1, or a secret in the variable {TOKEN_VARIABLE} here and where the run acts"
            )
        self._make, self.name, self._takes_limit, self._seed_bits = make, name, takes_limit, seed_bits
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            if is_unix:
                _remove_stale(where)
            else:
                self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind(where)
            self._listening.listen(128)
        except OSError:
            self._listening.close()
            raise
        bound = self._listening.getsockname()
        self.address = f"unix:{bound}" if is_unix else written(bound[0], bound[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def serve(self) -> None:
        """Serve clients until `close` is called by another thread or a signal's handler."""
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if self._closed.wait(_PAUSE_SECONDS):
                    return
                logger.warning("a connection is not accepted: %s", error)  # such as too many open files
                continue
            with self._lock:
                is_full = len(self._open) >= _CONNECTIONS
                if not is_full:
                    self._open.add(connection)
            if is_full:
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # which wakes `accept`
        self._listening.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if self.address.startswith("unix:"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix("unix:"))  # noqa: PTH108  (one import less where this is copied)

    def _serve(self, connection: socket.socket) -> None:
        batch = None
        try:
            _prepare(connection)
            batch = self._welcome(connection)
            connection.settimeout(None)
            while _answer(connection, batch):
                pass
        except wire.WireError as error:
            logger.info("a client is gone: %s", error)
        except Exception as error:  # noqa: BLE001  (an environment may raise anything, and the client is told)
            plain = isinstance(error, RefusedError)
            said = str(error) if plain else f"{type(error).__name__}: {error}"
            logger.info("a client is refused: %s", said)
            with contextlib.suppress(OSError):
                connection.settimeout(_SENDING_SECONDS)
                wire.send_frame(connection, wire.FAILED, said.encode()[: wire.MAX_TEXT_BYTES])
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
            if batch is not None:
                batch.close()

    def _welcome(self, connection: socket.socket) -> Batch:
        kind, body = wire.receive_frame(connection, wire.MAX_TEXT_BYTES, _HELLO_SECONDS)
        head = wire.HELLO_HEAD
        if kind != wire.HELLO or len(body) < head.size:
            raise wire.WireError("the first frame is no HELLO")
        magic, version, num_envs, limit, token_bytes, name_bytes, settings_bytes = head.unpack(body[: head.size])
        if magic != wire.MAGIC or len(body) != head.size + token_bytes + name_bytes + settings_bytes:
            raise wire.WireError("the first frame is no HELLO of this protocol")
        texts = bytes(body[head.size :])
        token, name = texts[:token_bytes], texts[token_bytes : token_bytes + name_bytes].decode()
        if not hmac.compare_digest(token, self._token):
            raise RefusedError(f"the token is wrong: expected the text of {TOKEN_VARIABLE} that the server has")
        if version != wire.VERSION:
            raise RefusedError(f"the client speaks version {version} of the protocol, the server {wire.VERSION}")
        if name not in {"", self.name}:
            raise RefusedError(f"the server has {self.name!r}, expected {name!r}; ask for socket/{self.name}")
        if not 1 <= num_envs <= wire.MAX_ENVS or limit < -1:
            raise RefusedError(f"num_envs {num_envs} with max_episode_steps {limit} is out of range")
        try:
            settings = json.loads(texts[token_bytes + name_bytes :] or b"{}")
        except ValueError as error:
            raise RefusedError(f"the settings are no JSON: {error}") from error
        if not isinstance(settings, dict):
            raise RefusedError(f"the settings are {settings!r}, expected an object")
        batch = Batch(self._make, settings, num_envs, limit, takes_limit=self._takes_limit, seed_bits=self._seed_bits)
        sizes = wire.WELCOME_HEAD.pack(wire.VERSION, num_envs, batch.observation_bytes, batch.action_bytes)
        described = {"name": self.name, **batch.description}
        connection.settimeout(_SENDING_SECONDS)
        wire.send_frame(connection, wire.WELCOME, sizes, json.dumps(described, allow_nan=False).encode())
        return batch


class Batch:
    """The environments of one connection."""

    def __init__(
        self,
        make: Callable[..., Any],
        settings: dict[str, Any],
        num_envs: int,
        limit: int,
        *,
        takes_limit: bool,
        seed_bits: int,
    ) -> None:
        self._seed_bits = seed_bits
        self._counted = 0 if takes_limit or limit < 0 else limit
        given = {**settings, "max_episode_steps": limit} if takes_limit and limit else settings
        self._envs: list[Any] = []
        try:
            for _ in range(num_envs):
                try:
                    made = make(**given)
                except Exception as error:
                    raise RefusedError(f"the environment can't be made with {given}: {error}") from error
                self._envs.append(made)
                self._envs[-1] = _one_array(made)
            self._describe(self._envs[0], limit)
        except BaseException:
            self.close()
            raise
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._seen = np.zeros((num_envs, *self._shape), dtype=self._dtype)
        self._ready = np.zeros(num_envs, dtype=np.bool_)

    def _describe(self, env: Any, limit: int) -> None:
        observed, action = env.observation_space, env.action_space
        dtype, self._shape = np.dtype(observed.dtype), tuple(observed.shape)
        # Whole numbers but bytes are floats, as in runs: a network reads nothing else.
        self._dtype = dtype if dtype.kind == "f" or dtype == np.uint8 else np.dtype(np.float32)
        is_choice = hasattr(action, "n") and not action.shape
        if not is_choice and not (hasattr(action, "low") and np.dtype(action.dtype).kind == "f" and action.shape):
            raise RefusedError(
                f"the action space is {action}, expected Discrete or a Box of floats; wrap the environment with "
                f"gymnasium.wrappers.TransformAction before it is served"
            )
        self._first, self._count = (int(getattr(action, "start", 0)), int(action.n)) if is_choice else (0, 0)
        self._action_dtype = np.dtype(np.int64 if is_choice else action.dtype)
        self._action_shape: tuple[int, ...] = tuple(action.shape)
        described: dict[str, Any] = {"kind": "discrete", "n": self._count}
        if not is_choice:
            described = {"kind": "box", "dtype": self._action_dtype.name, "shape": self._action_shape}
            described |= _bounds(action)
        spec = getattr(env, "spec", None)
        own = getattr(spec, "max_episode_steps", None)
        self.observation_bytes = self._dtype.itemsize * math.prod(self._shape)
        self.action_bytes = self._action_dtype.itemsize * math.prod(self._action_shape)
        if self.observation_bytes * 2 * len(self._envs) + 16 * len(self._envs) > wire.MAX_FRAME_BYTES:
            raise RefusedError(f"{len(self._envs)} observations of {self.observation_bytes} bytes are too many")
        self.description = {
            "observation": {"dtype": self._dtype.name, "shape": self._shape, **_bounds(observed)},
            "action": described,
            "max_episode_steps": None if limit == -1 else limit or own,
            "reward_threshold": getattr(spec, "reward_threshold", None),
        }

    @property
    def num_envs(self) -> int:
        """Return the number of environments."""
        return len(self._envs)

    def reset(self, body: memoryview) -> bytes:
        """Start episodes: u64 seeds `[N]`, u8 `[N]` that is 1 for those to start; returns all observations."""
        seeds = np.frombuffer(body, "<u8", self.num_envs)
        for env in np.flatnonzero(np.frombuffer(body, np.uint8, self.num_envs, 8 * self.num_envs)).tolist():
            self._begin(env, int(seeds[env]))
        return self._seen.tobytes()

    def step(self, body: memoryview) -> list[bytes]:
        """Step: u64 seeds of next episodes `[N]`, actions `[N, ...]`, u8 `[N]` that is 1 for those to step."""
        count = self.num_envs
        seeds = np.frombuffer(body, "<u8", count)
        actions = np.frombuffer(body, self._action_dtype, count * math.prod(self._action_shape), 8 * count)
        actions = actions.reshape(count, *self._action_shape)
        chosen = np.frombuffer(body, np.uint8, count, (8 + self.action_bytes) * count)
        reward = np.zeros(count, dtype=np.float64)
        terminated, truncated = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.uint8)
        final: list[bytes] = []
        for env in np.flatnonzero(chosen).tolist():
            if not self._ready[env]:
                raise RefusedError(f"environment {env} was stepped before its first reset")
            if self._count and not 0 <= actions[env] < self._count:
                raise RefusedError(f"action {actions[env]} of environment {env}: expected 0 to {self._count - 1}")
            given = int(actions[env]) + self._first if self._count else actions[env].copy()
            seen, reward[env], is_terminated, is_truncated, _ = self._envs[env].step(given)
            self._steps[env] += 1
            terminated[env] = bool(is_terminated)
            truncated[env] = bool(is_truncated) or (0 < self._counted <= self._steps[env])
            self._seen[env] = seen
            if terminated[env] or truncated[env]:
                final.append(self._seen[env].tobytes())
                self._begin(env, int(seeds[env]))
        return [reward.tobytes(), terminated.tobytes(), truncated.tobytes(), self._seen.tobytes(), *final]

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            with contextlib.suppress(Exception):
                env.close()

    def _begin(self, env: int, seed: int) -> None:
        while seed >> self._seed_bits:
            seed = (seed & ((1 << self._seed_bits) - 1)) ^ (seed >> self._seed_bits)
        self._seen[env], _ = self._envs[env].reset(seed=seed)
        self._steps[env], self._ready[env] = 0, True


def serve_id(env_id: str, address: str, seed_bits: int = 64) -> EnvironmentServer:
    """Return a server of an environment in Gymnasium's registry, which is made once to see that it can be.

    Raises:
        ValueError: Gymnasium has no such id, can't make it, or it does not fit the protocol; or as `EnvironmentServer`.
        OSError: The address can't be listened on.
    """
    import gymnasium  # noqa: PLC0415  (a server of one's own environment needs none)

    def make(**settings: Any) -> Any:
        return gymnasium.make(env_id, disable_env_checker=True, **settings)

    try:
        Batch(make, {}, 1, 0, takes_limit=True, seed_bits=seed_bits).close()
    except RefusedError as error:
        raise ValueError(f"{env_id} can't be served: {error}") from error
    name = env_id.rpartition(":")[2]
    return EnvironmentServer(make, name, address, takes_limit=True, seed_bits=seed_bits)


def _answer(connection: socket.socket, batch: Batch) -> bool:
    """Answer one frame; returns whether the connection goes on."""
    most = (9 + batch.action_bytes) * batch.num_envs
    kind, body = wire.receive_frame(connection, most, None)
    if kind == wire.CLOSE:
        return False
    expected = {wire.RESET: 9 * batch.num_envs, wire.STEP: most}.get(kind)
    if len(body) != expected:
        raise RefusedError(f"received kind {kind} with {len(body)} bytes, expected RESET or STEP of the agreed sizes")
    answer = (wire.OBSERVED, [batch.reset(body)]) if kind == wire.RESET else (wire.STEPPED, batch.step(body))
    wire.send_frame(connection, answer[0], *answer[1])
    return True


def _one_array(env: Any) -> Any:
    """Return an environment that observes a Box, encoded as by Gymnasium's FlattenObservation if it does not."""
    space = env.observation_space
    if hasattr(space, "low") and space.shape and np.dtype(space.dtype).kind in _NUMBERS:
        return env
    if not getattr(space, "is_np_flattenable", False):
        raise RefusedError(f"the observation space is {space}, expected a Box, or a space that can be flattened")
    from gymnasium.wrappers import FlattenObservation  # noqa: PLC0415  (plain environments need none)

    return FlattenObservation(env)


def _bounds(space: Any) -> dict[str, Any]:
    return {"low": _bound(space.low), "high": _bound(space.high)}


def _bound(values: Any) -> Any:
    """Return one number if all are equal, otherwise all in row-major order; None for one that is infinite."""
    flat = [value if math.isfinite(value) else None for value in np.asarray(values).ravel().tolist()]
    return flat[0] if flat and all(value == flat[0] for value in flat) else flat


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed server has left, and nothing else."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:  # a socket that nobody listens on; a file is refused alike, and kept
            if stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH116  (one import less where this is copied)
                os.unlink(path)  # noqa: PTH108  (the same)
        except OSError:
            return


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def written(host: str, port: int) -> str:
    """Return an address as one text, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> None:
    """Serve an id of Gymnasium's registry until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve a Gymnasium environment to Penstock.")
    parser.add_argument("id", help="id in Gymnasium's registry, or module:id")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--seed-bits", type=int, default=64)
    given = parser.parse_args()
    server = serve_id(given.id, written(given.host, given.port), given.seed_bits)
    print(f"socket/{server.name} at {server.address}; Ctrl-C ends it", flush=True)  # noqa: T201
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


if __name__ == "__main__":
    main()
